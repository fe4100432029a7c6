// Runs that are no whole cache lines, written past the caches.
#pragma once

#include <cstring>

#include "core/caches.h"
#include "core/positions.h"

namespace evenkeel::EVENKEEL_ISA {

// Longer ones are written where they belong: their two ends weigh little, and the buffer would leave the nearest cache.
constexpr int64_t most_in_lines = 16384;  // bytes

inline bool on_a_cache_line(const void* p) { return reinterpret_cast<uintptr_t>(p) % cache_line == 0; }
// Elements from p to the next cache line.
template <class T>
inline int64_t elements_to_line(const T* p) {
  return static_cast<int64_t>((cache_line - reinterpret_cast<uintptr_t>(p) % cache_line) % cache_line / sizeof(T));
}

// Writes runs past the caches in whole lines, also where two runs share one. An ordinary store among streams waits until
// its line has come from memory, and the streams behind it wait too. So runs are written to a buffer that lies on its
// lines as the output does, and whole lines leave from there. Nothing waits in it after the end of its life.
template <class T>
class LineWriter {
 public:
  // Of runs of so many elements at most that follow each other from `out` on; does nothing where they are long, or whole
  // lines themselves.
  LineWriter(const void* out, int64_t length, bool streamed)
      : buffer_(streamed && shares_lines(out, length) ? length + 2 * line : 0) {}
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;
  ~LineWriter() { finish(); }

  explicit operator bool() const { return buffer_.data(); }

  // Where the run is to be written that belongs at `to`.
  T* place(T* to) {
    if (to != base_ + filled_) {
      finish();
      first_ = filled_ = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % cache_line / sizeof(T));
      base_ = to - filled_;
    }
    return buffer_.data() + filled_;
  }

  // The run stands in its place.
  void add(int64_t length) {
    filled_ += length;
    const T* from = buffer_.data();
    for (; filled_ >= line; filled_ -= line, base_ += line, from += line) {
      if (first_) {  // the line's beginning is not of these runs
        copy(line);
        first_ = 0;
      } else {
        stream_bytes<cache_line>(base_, from);
      }
    }
    if (from != buffer_.data()) std::memcpy(buffer_.data(), from, cache_line);
  }

 private:
  static constexpr int64_t line = cache_line / sizeof(T);

  static bool shares_lines(const void* out, int64_t length) {
    const int64_t bytes = length * static_cast<int64_t>(sizeof(T));
    return bytes <= most_in_lines && (bytes % cache_line || !on_a_cache_line(out)) &&
           reinterpret_cast<uintptr_t>(out) % sizeof(T) == 0;
  }
  void copy(int64_t end) { std::memcpy(base_ + first_, buffer_.data() + first_, (end - first_) * sizeof(T)); }
  void finish() {
    if (filled_ > first_) copy(filled_);
  }

  const Buffer<T> buffer_;
  T* base_ = nullptr;  // the line of the output that the buffer's first one stands for
  int64_t first_ = 0, filled_ = 0;
};

}  // namespace evenkeel::EVENKEEL_ISA
