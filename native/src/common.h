// What the calls share: oneDNN's engine, working memory, a cache of what was made for a spec, operands as plain pointers.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dnnl.hpp"
#include "team.h"

namespace native {

using dims = dnnl::memory::dims;
using dt = dnnl::memory::data_type;

inline dt type_of(int64_t number) { return number == 0 ? dt::f32 : number == 1 ? dt::bf16 : dt::f16; }
inline size_t bytes_of(dt type) { return type == dt::f32 ? 4 : 2; }

inline dnnl::engine& engine() {
  static dnnl::engine* e = [] {
    dnnl::set_primitive_cache_capacity(64);  // our caches hold the primitives
    return new dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return *e;
}

inline dnnl::stream& stream() {
  static dnnl::stream* s = new dnnl::stream(engine());
  return *s;
}

// Large pieces of memory that calls use and give back; none belongs to a thread.
class Arena {
 public:
  struct Piece {
    char* data = nullptr;
    size_t size = 0;
  };

  Piece take(size_t size) {
    if (size == 0) return {};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto best = free_.end();
      for (auto it = free_.begin(); it != free_.end(); ++it) {
        if (it->size >= size && (best == free_.end() || it->size < best->size)) best = it;
      }
      if (best != free_.end()) {
        Piece piece = *best;
        free_.erase(best);
        kept_ -= piece.size;
        return piece;
      }
    }
    size = (size + (size >> 3) + kUnit - 1) / kUnit * kUnit;
    void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    if (size >= kHuge) madvise(data, size, MADV_HUGEPAGE);
    return {static_cast<char*>(data), size};
  }

  void give(Piece piece) {
    if (!piece.data) return;
    std::vector<Piece> surplus;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      free_.push_back(piece);
      kept_ += piece.size;
      while (free_.size() > kMostPieces || (kept_ > kMostKept && free_.size() > 1)) {
        auto least = std::min_element(free_.begin(), free_.end(), [](auto& a, auto& b) { return a.size < b.size; });
        kept_ -= least->size;
        surplus.push_back(*least);
        free_.erase(least);
      }
      if (kept_ > kMostKept) {
        surplus.push_back(free_.back());
        kept_ = 0;
        free_.clear();
      }
    }
    for (auto& p : surplus) munmap(p.data, p.size);
  }

 private:
  static constexpr size_t kUnit = 1 << 16, kHuge = 4 << 20, kMostKept = 128 << 20, kMostPieces = 32;
  std::mutex mutex_;
  std::vector<Piece> free_;
  size_t kept_ = 0;
};

inline size_t rounded(size_t size) { return (size + 127) / 128 * 128; }

// The working memory of one call, handed out in order.
class Scratch {
 public:
  explicit Scratch(size_t size) : piece_(arena().take(size)), at_(piece_.data) {}
  ~Scratch() { arena().give(piece_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  char* take(size_t size) {
    char* taken = at_;
    at_ += rounded(size);
    return size ? taken : nullptr;
  }

  // For a primitive's own use.
  dnnl::memory pad(size_t size) {
    return dnnl::memory({{static_cast<int64_t>(size)}, dt::u8, dims{1}}, engine(), take(size));
  }

 private:
  static Arena& arena() {
    static Arena* a = new Arena;
    return *a;
  }
  Arena::Piece piece_;
  char* at_;
};

using Key = std::vector<int64_t>;

// What was made for a spec; the least recently used go first.
template <class Made>
class Cache {
 public:
  template <class Make>
  std::shared_ptr<const Made> get(const int64_t* data, size_t size, const Make& make) {
    Key key(data, data + size);
    key.push_back(team::size());
    key.push_back(static_cast<int64_t>(team::min_parallel_work()));
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = index_.find(key);
      if (found != index_.end()) {
        order_.splice(order_.begin(), order_, found->second);
        return found->second->second;
      }
    }
    std::shared_ptr<const Made> made = make();
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = index_.find(key);
    if (found != index_.end()) return found->second->second;
    order_.emplace_front(key, made);
    index_[key] = order_.begin();
    if (order_.size() > kMost) {
      index_.erase(order_.back().first);
      order_.pop_back();
    }
    return made;
  }

 private:
  struct Hash {
    size_t operator()(const Key& v) const {
      uint64_t h = 1469598103934665603ull;
      for (int64_t x : v) h = (h ^ static_cast<uint64_t>(x)) * 1099511628211ull, h ^= h >> 29;
      return h;
    }
  };
  static constexpr size_t kMost = 1024;
  std::mutex mutex_;
  std::list<std::pair<Key, std::shared_ptr<const Made>>> order_;
  std::unordered_map<Key, typename decltype(order_)::iterator, Hash> index_;
};

inline size_t product_of(const dims& d) {
  size_t total = 1;
  for (auto v : d) total *= static_cast<size_t>(v);
  return total;
}

// Writes a text for Python; gives its length.
inline int told(const std::string& text, char* to, int room) {
  const size_t count = std::min(text.size(), static_cast<size_t>(room - 1));
  std::copy_n(text.data(), count, to);
  to[count] = 0;
  return static_cast<int>(count);
}

}  // namespace native
