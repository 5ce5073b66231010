// Working memory of calls. It belongs to no thread: XLA's threads come and go, and each may make the largest call.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <new>
#include <vector>

namespace native {

// Blocks of memory that calls borrow and return. Few are kept, and at most 128 MiB.
class Arena {
 public:
  struct Block {
    char* data = nullptr;
    size_t size = 0;
  };

  // The smallest free block that is large enough, or a new one.
  Block acquire(size_t size) {
    if (size == 0) return {};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto best = free_.end();
      for (auto it = free_.begin(); it != free_.end(); ++it) {
        if (it->size >= size && (best == free_.end() || it->size < best->size)) best = it;
      }
      if (best != free_.end()) {
        const Block block = *best;
        free_.erase(best);
        kept_ -= block.size;
        return block;
      }
    }
    size = (size + size / 8 + kUnit - 1) / kUnit * kUnit;  // some more than asked for, so that similar calls share it
    void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    if (size >= kHugePages) madvise(data, size, MADV_HUGEPAGE);
    return {static_cast<char*>(data), size};
  }

  // Takes a block back; what is too much is returned to the system, the smallest blocks first.
  void release(Block block) {
    if (!block.data) return;
    std::vector<Block> surplus;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      free_.push_back(block);
      kept_ += block.size;
      while (free_.size() > kMaxBlocks || kept_ > kMaxKept) {
        const auto least = std::min_element(free_.begin(), free_.end(), [](auto& a, auto& b) { return a.size < b.size; });
        kept_ -= least->size;
        surplus.push_back(*least);
        free_.erase(least);
      }
    }
    for (const auto& each : surplus) munmap(each.data, each.size);
  }

 private:
  static constexpr size_t kUnit = 1 << 16, kHugePages = 4 << 20, kMaxKept = 128 << 20, kMaxBlocks = 32;
  std::mutex mutex_;
  std::vector<Block> free_;
  size_t kept_ = 0;
};

constexpr size_t kAlignment = 128;
inline size_t aligned(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

// The working memory of one call, handed out piece by piece.
class Scratch {
 public:
  // `size`: the sum of `aligned` of every piece that will be taken.
  explicit Scratch(size_t size) : block_(arena().acquire(size)), next_(block_.data) {}
  // A piece that was taken before, for a part of the call.
  explicit Scratch(char* piece) : next_(piece) {}
  ~Scratch() { arena().release(block_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  char* take(size_t size) {
    if (size == 0) return nullptr;
    char* taken = next_;
    next_ += aligned(size);
    return taken;
  }

 private:
  static Arena& arena() {
    static Arena* shared = new Arena;  // never destroyed: threads may outlive the end of main
    return *shared;
  }

  Arena::Block block_;
  char* next_;
};

}  // namespace native
