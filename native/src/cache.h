// A cache that forgets what was used least recently.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace native {

using Key = std::vector<int64_t>;

template <class Value>
class Cache {
 public:
  // `make` runs without the lock, now and then twice for one key: it may take milliseconds.
  template <class Make>
  std::shared_ptr<const Value> get(const Key& key, const Make& make) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = index_.find(key);
      if (found != index_.end()) {
        order_.splice(order_.begin(), order_, found->second);
        return found->second->second;
      }
    }
    std::shared_ptr<const Value> made = make();
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = index_.find(key);
    if (found != index_.end()) return found->second->second;
    order_.emplace_front(key, made);
    index_[key] = order_.begin();
    if (order_.size() > kMaxEntries) {
      index_.erase(order_.back().first);
      order_.pop_back();
    }
    return made;
  }

 private:
  struct Hash {
    size_t operator()(const Key& key) const {
      uint64_t h = 1469598103934665603ull;  // FNV-1a over words, with the high bits folded in
      for (const int64_t word : key) {
        h = (h ^ static_cast<uint64_t>(word)) * 1099511628211ull;
        h ^= h >> 29;
      }
      return h;
    }
  };

  static constexpr size_t kMaxEntries = 1024;
  std::mutex mutex_;
  std::list<std::pair<Key, std::shared_ptr<const Value>>> order_;  // the most recently used first
  std::unordered_map<Key, typename decltype(order_)::iterator, Hash> index_;
};

}  // namespace native
