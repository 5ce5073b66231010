// What is used of oneDNN everywhere: its engine and stream, data types, reorders.
#pragma once

#include <cstdint>

#include "dnnl.hpp"
#include "scratch.h"

namespace native {

using dims = dnnl::memory::dims;
using dt = dnnl::memory::data_type;

inline size_t bytes_of(dt type) { return type == dt::f32 ? 4 : 2; }

inline size_t element_count(const dims& shape) {
  size_t count = 1;
  for (const auto size : shape) count *= static_cast<size_t>(size);
  return count;
}

inline dnnl::engine& engine() {
  static dnnl::engine* shared = [] {
    dnnl::set_primitive_cache_capacity(64);  // our own cache holds what is in use
    return new dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return *shared;
}

inline dnnl::stream& stream() {
  static dnnl::stream* shared = new dnnl::stream(engine());
  return *shared;
}

// Primitives take their working memory from the caller, so that they can be shared by threads.
inline dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

inline dnnl::memory take_scratchpad(Scratch& scratch, size_t size) {
  return dnnl::memory({{static_cast<int64_t>(size)}, dt::u8, dims{1}}, engine(), scratch.take(size));
}

// Copies an array from one layout in memory into another.
class Reorder {
 public:
  Reorder() = default;

  Reorder(const dnnl::memory::desc& from, const dnnl::memory::desc& to) {
    const dnnl::reorder::primitive_desc made(engine(), from, engine(), to, user_scratchpad());
    scratchpad_ = made.scratchpad_desc().get_size();
    primitive_ = dnnl::reorder(made);
  }

  size_t scratch_size() const { return aligned(scratchpad_); }

  void run(const dnnl::memory& from, const dnnl::memory& to, Scratch& scratch) const {
    primitive_.execute(stream(),
                       {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, take_scratchpad(scratch, scratchpad_)}});
  }

 private:
  size_t scratchpad_ = 0;
  dnnl::reorder primitive_;
};

}  // namespace native
