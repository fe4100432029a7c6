// Matrices turned: samples whose channels lie innermost as contiguous ones, and back.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "core/vectors.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// AVX2 moves 32-bit elements between the halves of a register slowly.
constexpr int turned_bytes = register_bytes == 32 ? 16 : register_bytes;

// The elements of two vectors in turn: of their lower halves (first = 0), or of their upper ones (first = count / 2).
template <int first, class V, size_t... i>
EVENKEEL_INLINE V in_turn(const V& a, const V& b, std::index_sequence<i...>) {
#if defined(EVENKEEL_HAS_SHUFFLE)
  return __builtin_shufflevector(a, b, (first + i / 2 + i % 2 * sizeof...(i))...);
#else
  return V{(i % 2 ? b : a)[first + i / 2]...};
#endif
}

// Takes the vectors for one sequence, and the elements of its two halves in turn; so many times. log2(count) times turn
// a matrix whose rows are the vectors.
template <int times, class V, size_t count>
EVENKEEL_INLINE void take_in_turn(V (&v)[count]) {
  constexpr size_t width = sizeof(V) / sizeof(ElementOf<V>);
  constexpr std::make_index_sequence<width> each{};
  for (int done = 0; done < times; ++done) {
    V next[count];
    for (size_t i = 0; i < count / 2; ++i) {
      next[2 * i] = in_turn<0>(v[i], v[i + count / 2], each);
      next[2 * i + 1] = in_turn<width / 2>(v[i], v[i + count / 2], each);
    }
    for (size_t i = 0; i < count; ++i) v[i] = next[i];
  }
}

// The rows of a matrix: so many elements apart, or at given places.
template <class U>
struct EvenRows {
  U* first;
  int64_t stride;
  EVENKEEL_INLINE U* operator()(int64_t row) const { return first + row * stride; }
  EVENKEEL_INLINE EvenRows from(int64_t row) const { return {first + row * stride, stride}; }
};
template <class U>
EvenRows(U*, int64_t) -> EvenRows<U>;  // clang deduces it from version 17 on
template <class U>
struct PlacedRows {
  U* base;
  const int64_t* places;
  EVENKEEL_INLINE U* operator()(int64_t row) const { return base + places[row]; }
  EVENKEEL_INLINE PlacedRows from(int64_t row) const { return {base, places + row}; }
};

// No fewer rows and columns than a square has.
template <class U, int64_t side, class From, class To>
void turn_by_squares(const From& from, const To& to, int64_t rows, int64_t columns) {
  using V = VectorOf<U, static_cast<int>(side * sizeof(U))>;
  // the last square is not past the end, but over what others have done
  for (int64_t i = 0; i < columns; i += side) {
    const int64_t column = std::min(i, columns - side);
    const To written = to.from(column);
    const auto turn_square = [&](const From& read, int64_t row) __attribute__((always_inline)) {
      V square[side];
      for (int64_t k = 0; k < side; ++k) std::memcpy(&square[k], read(k) + column, sizeof(V));
      take_in_turn<std::bit_width(static_cast<uint64_t>(side)) - 1>(square);
      for (int64_t k = 0; k < side; ++k) std::memcpy(written(k) + row, &square[k], sizeof(V));
    };
    From read = from;
    for (int64_t row = 0; row < rows - side; row += side, read = read.from(side)) turn_square(read, row);
    turn_square(from.from(rows - side), rows - side);
  }
}

template <class U>
using LongVector = VectorOf<U, turned_bytes>;

// The places of a matrix's elements in that vector k of its turned ones, whose rows are few vectors, or whose columns.
template <bool rows, size_t few, size_t width, size_t k>
struct TurnedPlaces {
  static constexpr size_t of(size_t i) {
    const size_t element = k * width + i;
    return rows ? element % few * width + element / few : i * few + k;
  }
};

// The vector whose element i is Places::of(i) of the sequence of several: those of the vectors before `next` are in place.
template <class Places, size_t next = 1, class V, size_t count, size_t... i>
EVENKEEL_INLINE V elements_of(const V (&v)[count], const V& before, std::index_sequence<i...> each) {
  if constexpr (next == count) {
    return before;
  } else {
    constexpr size_t width = sizeof...(i);
    constexpr auto source = [](size_t at) {
      const size_t element = Places::of(at);
      if (element / width == next) return width + element % width;
      return next == 1 && element < width ? element : at;
    };
#if defined(EVENKEEL_HAS_SHUFFLE)
    const V both = __builtin_shufflevector(before, v[next], source(i)...);
#else
    const V both{(source(i) < width ? before : v[next])[source(i) % width]...};
#endif
    return elements_of<Places, next + 1>(v, both, each);
  }
}

// The matrix whose rows are few vectors, or whose columns are, turned.
template <bool rows, class V, size_t few>
EVENKEEL_INLINE void turn_vectors(V (&v)[few]) {
  constexpr size_t width = sizeof(V) / sizeof(ElementOf<V>);
  if constexpr (std::has_single_bit(few)) {
    take_in_turn<std::bit_width(rows ? few : width) - 1>(v);
  } else {
    constexpr std::make_index_sequence<width> each{};
    const auto turn = [&]<size_t... k>(std::index_sequence<k...>) __attribute__((always_inline)) {
      const V turned[] = {elements_of<TurnedPlaces<rows, few, width, k>>(v, v[0], each)...};
      for (size_t i = 0; i < few; ++i) v[i] = turned[i];
    };
    turn(std::make_index_sequence<few>{});
  }
}

// Few rows: `few` vectors hold as many columns as one of them has elements.
template <size_t few, class U>
void turn_few_rows(const U* from, int64_t from_stride, U* to, int64_t columns) {
  constexpr int64_t width = turned_bytes / sizeof(U);
  for (int64_t i = 0; i < columns; i += width) {
    const int64_t column = std::min(i, columns - width);
    LongVector<U> v[few];
    for (size_t k = 0; k < few; ++k) std::memcpy(&v[k], from + k * from_stride + column, sizeof(v[k]));
    turn_vectors<true>(v);
    // each by itself: as one copy it would be read in longer pieces than it was written in, and have to wait
    for (size_t k = 0; k < few; ++k) std::memcpy(to + column * few + k * width, &v[k], sizeof(v[k]));
  }
}
template <size_t few, class U>
void turn_few_columns(const U* from, U* to, int64_t to_stride, int64_t rows) {
  constexpr int64_t width = turned_bytes / sizeof(U);
  for (int64_t i = 0; i < rows; i += width) {
    const int64_t row = std::min(i, rows - width);
    LongVector<U> v[few];
    for (size_t k = 0; k < few; ++k) std::memcpy(&v[k], from + row * few + k * width, sizeof(v[k]));
    turn_vectors<false>(v);
    for (size_t column = 0; column < few; ++column) std::memcpy(to + column * to_stride + row, &v[column], sizeof(v[0]));
  }
}

// Calls body(count), known at compile time, where that is from 2 to `most`.
template <size_t most, class Body>
bool with_few(int64_t count, const Body& body) {
  const auto is = [&](auto few) { return count == static_cast<int64_t>(few()) ? (body(few), true) : false; };
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return (is(std::integral_constant<size_t, i + 2>{}) || ...);
  }(std::make_index_sequence<most - 1>{});
}

// to (columns, rows) <- from (rows, columns)
template <class From, class To>
void turn_one(const From& from, const To& to, int64_t rows, int64_t columns) {
  using U = std::remove_reference_t<decltype(*to(0))>;
  if constexpr (std::is_same_v<From, EvenRows<const U>> && std::is_same_v<To, EvenRows<U>>) {
    if (columns == 1 && from.stride == 1) return static_cast<void>(std::memcpy(to.first, from.first, rows * sizeof(U)));
    if (rows == 1 && to.stride == 1) return static_cast<void>(std::memcpy(to.first, from.first, columns * sizeof(U)));
    if constexpr (sizeof(U) < 8) {
      constexpr int64_t width = turned_bytes / sizeof(U);
      constexpr size_t most = sizeof(U) == 4 && turned_bytes == 16 ? 4 : 7;  // squares take what is more
      if (to.stride == rows && columns >= width &&
          with_few<most>(rows, [&](auto few) { turn_few_rows<few>(from.first, from.stride, to.first, columns); })) {
        return;
      }
      if (from.stride == columns && rows >= width &&
          with_few<most>(columns, [&](auto few) { turn_few_columns<few>(from.first, to.first, to.stride, rows); })) {
        return;
      }
    }
  }
  const int64_t shorter = std::min(rows, columns);
  if constexpr (sizeof(U) == 2 || turned_bytes > 16) {
    if (shorter >= 8) return turn_by_squares<U, 8>(from, to, rows, columns);
  }
  if constexpr (sizeof(U) == 4 || (sizeof(U) == 8 && register_bytes > 16)) {
    if (shorter >= 4) return turn_by_squares<U, 4>(from, to, rows, columns);
  }
  if constexpr (sizeof(U) == 8) {
    if (shorter >= 2) return turn_by_squares<U, 2>(from, to, rows, columns);
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) std::memcpy(to(column) + row, from(row) + column, sizeof(U));
  }
}

// The same bits as integers.
template <class T>
auto* bits_of(T* p) {
  using U = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  return reinterpret_cast<std::conditional_t<std::is_const_v<T>, const U, U>*>(p);
}

// Each of some matrices of elements of `size` bytes, one after the other.
inline void turn(const void* from, void* to, int64_t size, int64_t count, int64_t rows, int64_t columns) {
  const auto each = [&](auto element) {
    using U = decltype(element);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t offset = i * rows * columns;
      turn_one(EvenRows<const U>{static_cast<const U*>(from) + offset, columns},
               EvenRows<U>{static_cast<U*>(to) + offset, rows}, rows, columns);
    }
  };
  size == 2 ? each(uint16_t{}) : size == 4 ? each(uint32_t{}) : each(uint64_t{});
}

}  // namespace
}  // namespace evenkeel::EVENKEEL_ISA
