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
class LineWriter {
 public:
  // Of runs of so many bytes at most that follow each other from `out` on, of elements of so many bytes; does nothing
  // where they are long, or whole lines themselves.
  LineWriter(const void* out, int64_t bytes, int64_t element, bool streamed)
      : buffer_(streamed && shares_lines(out, bytes, element) ? bytes + 2 * cache_line : 0) {}
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;
  ~LineWriter() { finish(); }

  explicit operator bool() const { return buffer_.data(); }

  // Where the run is to be written that belongs at `to`.
  template <class T>
  T* place(T* to) {
    char* const target = reinterpret_cast<char*>(to);
    if (target != base_ + filled_) {
      finish();
      first_ = filled_ = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % cache_line);
      base_ = target - filled_;
    }
    return reinterpret_cast<T*>(buffer_.data() + filled_);
  }

  // The run of so many bytes stands in its place.
  void add(int64_t bytes) {
    filled_ += bytes;
    const char* from = buffer_.data();
    for (; filled_ >= cache_line; filled_ -= cache_line, base_ += cache_line, from += cache_line) {
      if (first_) {  // the line's beginning is not of these runs
        copy(cache_line);
        first_ = 0;
      } else {
        stream_bytes<cache_line>(base_, from);
      }
    }
    if (from != buffer_.data()) std::memcpy(buffer_.data(), from, cache_line);
  }

 private:
  static bool shares_lines(const void* out, int64_t bytes, int64_t element) {
    return bytes <= most_in_lines && (bytes % cache_line || !on_a_cache_line(out)) &&
           reinterpret_cast<uintptr_t>(out) % element == 0;
  }
  void copy(int64_t end) { std::memcpy(base_ + first_, buffer_.data() + first_, end - first_); }
  void finish() {
    if (filled_ > first_) copy(filled_);
  }

  const Buffer<char> buffer_;
  char* base_ = nullptr;  // the line of the output that the buffer's first one stands for
  int64_t first_ = 0, filled_ = 0;
};

}  // namespace evenkeel::EVENKEEL_ISA
