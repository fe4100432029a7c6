// Memory for outputs. glibc gives large blocks back to the system when they are freed, and the next call faults the
// pages in again, which costs several times what a kernel does. So large outputs lie in blocks of their own, aligned
// for huge pages, and a freed block waits for the next output of its size.
//
// The cost is at most pool_limit() bytes of waiting blocks, and that such an output of an operator cannot be resized,
// which the stable ABI allows torch's own memory alone. Waiting blocks beyond half the limit are marked as free to take
// for the system (MADV_FREE), which does so only when memory is short. The latest are not: marking a block each time that
// it is freed costs up to a third of what a kernel does with it.
//
// Blocks that are written past the caches and blocks that are not do not take each other's place where there are both:
// an ordinary store to what no cache holds waits for memory, and so does one past the caches to what one of them holds.
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/caches.h"
#include "core/direct_memory.h"
#include "core/environment.h"
#include "core/runtime.h"

#if defined(__linux__)
#include <pthread.h>
#include <sys/mman.h>
#endif

namespace evenkeel {
namespace {

#if defined(__linux__) && defined(MADV_HUGEPAGE) && defined(MADV_FREE)

constexpr int64_t huge_page = int64_t{2} << 20;

struct Block {
  void* data;
  int64_t size;
  bool streamed;  // written past the caches
  bool marked;  // as free to take
};

// Never destroyed: tensors may be freed after the static objects are gone.
struct Pool {
  std::mutex mutex;
  std::vector<Block> waiting;  // oldest first
  std::unordered_map<const void*, Block> taken;
  int64_t bytes = 0, unmarked = 0;  // of the waiting

  // Takes the i-th of the waiting.
  Block remove(size_t i) {
    const Block block = waiting[i];
    waiting.erase(waiting.begin() + static_cast<int64_t>(i));
    bytes -= block.size;
    unmarked -= block.marked ? 0 : block.size;
    return block;
  }
};

Pool& pool() {
  static Pool* const only = [] {
    static Pool* made = new Pool;
    // another thread may hold the mutex while this one forks
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); }, [] { made->mutex.unlock(); });
    return made;
  }();
  return *only;
}

// A block of its own, aligned for huge pages, or null.
void* map(int64_t size) {
  char* const start = static_cast<char*>(
      mmap(nullptr, size + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (start == MAP_FAILED) return nullptr;
  const int64_t before = (huge_page - reinterpret_cast<uintptr_t>(start) % huge_page) % huge_page;
  if (before > 0) munmap(start, before);
  munmap(start + before + size, huge_page - before);
  madvise(start + before, size, MADV_HUGEPAGE);  // only advice: a refusal changes nothing
  return start + before;
}

// A waiting block, or null.
void* waiting_block(Pool& p, int64_t size, bool streamed) {
  const std::lock_guard<std::mutex> hold(p.mutex);
  const auto latest = [&](bool either) -> void* {  // it is the likeliest to be in cache
    for (size_t i = p.waiting.size(); i-- > 0;) {
      const Block& block = p.waiting[i];
      if (block.size == size && (either || block.streamed == streamed)) return p.remove(i).data;
    }
    return nullptr;
  };
  void* const of_its_kind = latest(false);
  return of_its_kind ? of_its_kind : latest(true);
}

void* take(int64_t size, bool streamed) {
  Pool& p = pool();
  void* const waiting = waiting_block(p, size, streamed);
  void* const data = waiting ? waiting : map(size);
  const std::lock_guard<std::mutex> hold(p.mutex);
  if (data) p.taken.emplace(data, Block{data, size, streamed, false});
  return data;
}

bool is_taken(const void* data) {
  Pool& p = pool();
  const std::lock_guard<std::mutex> hold(p.mutex);
  return p.taken.count(data) > 0;
}

void give_back(void* data) {
  std::vector<Block> leaving;
  {
    Pool& p = pool();
    const std::lock_guard<std::mutex> hold(p.mutex);
    const Block block = p.taken.extract(data).mapped();
    p.waiting.push_back(block);
    p.bytes += block.size;
    p.unmarked += block.size;
    while (p.bytes > pool_limit()) leaving.push_back(p.remove(0));
    for (size_t i = 0; p.unmarked > pool_limit() / 2; ++i) {
      Block& oldest = p.waiting[i];
      if (oldest.marked) continue;
      madvise(oldest.data, oldest.size, MADV_FREE);  // while nobody can take it
      oldest.marked = true;
      p.unmarked -= oldest.size;
    }
  }
  for (const Block& block : leaving) munmap(block.data, block.size);
}

void* block_for(int64_t bytes, int64_t tensors) {
  if (bytes < smallest_pooled || pool_limit() == 0) return nullptr;
  const int64_t unit = bytes < 2 * huge_page ? smallest_pooled : huge_page;
  return take(ceil_divide(bytes, unit) * unit, is_past_caches(tensors * bytes));
}

#else

void* block_for(int64_t, int64_t) { return nullptr; }
void give_back(void*) {}
bool is_taken(const void*) { return false; }

#endif

const DirectMemory direct_memory{
    [](int64_t bytes, int64_t tensors) noexcept {
      void* data = nullptr;
      completes([&] { data = block_for(bytes, tensors); });
      return data;
    },
    [](void* data) noexcept { give_back(data); },
};

}  // namespace

int64_t pool_limit() {
  static const int64_t limit = [] {
    int64_t megabytes;
    return (read_setting(pool_setting, &megabytes) ? megabytes : 256) << 20;
  }();
  return limit;
}

Tensor empty(const std::vector<int64_t>& sizes, ScalarType dtype, int64_t tensors) {
  const int64_t ndim = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> strides(sizes.size());
  int64_t count = 1;
  bool none = false;
  for (size_t axis = sizes.size(); axis-- > 0;) {
    strides[axis] = count;
    count *= sizes[axis] > 0 ? sizes[axis] : 1;
    none = none || sizes[axis] == 0;
  }
  AtenTensorHandle handle;
  const int32_t type = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  const int32_t cpu = aoti_torch_device_type_cpu();
  if (void* const data = none ? nullptr : block_for(count * size_of(dtype_of(dtype)), tensors)) {
    const auto give = [](void* block, void*) { give_back(block); };
    TORCH_ERROR_CODE_CHECK(torch_from_blob(data, ndim, sizes.data(), strides.data(), 0, type, cpu, -1, &handle,
                                           aoti_torch_layout_strided(), nullptr, 0, give, nullptr));
  } else {
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(ndim, sizes.data(), strides.data(), type, cpu, 0, &handle));
  }
  return Tensor(handle);
}

bool is_pooled(const Tensor& t) {
  const void* const data = t.data_ptr();
  return is_taken(static_cast<const char*>(data) - t.storage_offset() * t.element_size());
}

}  // namespace evenkeel

const evenkeel::DirectMemory* evenkeel_direct_memory() { return &evenkeel::direct_memory; }
