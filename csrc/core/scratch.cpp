#include "core/scratch.h"

#include <algorithm>
#include <new>

#include "core/runtime.h"

namespace evenkeel {
namespace {

constexpr std::align_val_t line{64};
constexpr int64_t page = 4096, most_kept = int64_t{4} << 20;  // bytes; kept by a thread

bool keeps_any() {
#if defined(__SANITIZE_ADDRESS__)
  return false;  // so that what is used past its end or after it is found
#else
  return pool_limit() > 0;
#endif
}

struct Block {
  void* data;
  int64_t size;
};

// The blocks that a thread's calls gave back, the latest last: it is the likeliest to be in cache.
class Kept {
 public:
  ~Kept() {
    while (count_ > 0) free_oldest();
  }
  // A block of no fewer bytes and not many more, or null.
  Block take(int64_t bytes) {
    int best = -1;
    for (int i = 0; i < count_; ++i) {
      const int64_t size = blocks_[i].size;
      if (size >= bytes && size <= 4 * bytes + page && (best < 0 || size <= blocks_[best].size)) best = i;
    }
    if (best < 0) return {nullptr, 0};
    const Block found = blocks_[best];
    remove(best);
    return found;
  }
  void give_back(const Block& block) {
    if (!keeps_any() || block.size > most_kept) return ::operator delete(block.data, line);
    while (count_ == most_blocks || (count_ > 0 && bytes_ + block.size > most_kept)) free_oldest();
    blocks_[count_++] = block;
    bytes_ += block.size;
  }

 private:
  static constexpr int most_blocks = 16;
  void remove(int i) {
    bytes_ -= blocks_[i].size;
    std::copy(blocks_ + i + 1, blocks_ + count_, blocks_ + i);
    --count_;
  }
  void free_oldest() {
    ::operator delete(blocks_[0].data, line);
    remove(0);
  }
  Block blocks_[most_blocks];
  int count_ = 0;
  int64_t bytes_ = 0;
};

Kept& kept() {
  thread_local Kept own;
  return own;
}

}  // namespace

ScratchMemory::ScratchMemory(int64_t bytes) : size_(0), data_(nullptr) {
  if (bytes <= 0) return;
  const Block found = kept().take(bytes);
  const int64_t whole = keeps_any() ? (bytes + page - 1) / page * page : bytes;
  size_ = found.data ? found.size : whole;
  data_ = found.data ? found.data : ::operator new(static_cast<size_t>(size_), line);
}

ScratchMemory::~ScratchMemory() {
  if (data_) kept().give_back({data_, size_});
}

}  // namespace evenkeel
