// What is used of oneDNN everywhere: its engine and stream, data types, reorders.
#pragma once

#include <cstdint>
#include <string>

#include "dnnl.hpp"
#include "isa.h"
#include "scratch.h"

namespace native {

using dims = dnnl::memory::dims;
using dt = dnnl::memory::data_type;

inline size_t bytes_of(dt type) { return dnnl::memory::data_type_size(type); }

// The dtype that a call multiplies in, and those of its operands in memory: two inputs, then the result. Sums are float32.
struct Dtypes {
  dt compute;
  dt operands[3];

  bool are_float32() const {
    for (const dt operand : operands) {
      if (operand != dt::f32) return false;
    }
    return compute == dt::f32;
  }
};

inline size_t element_count(const dims& shape) {
  size_t count = 1;
  for (const auto size : shape) count *= static_cast<size_t>(size);
  return count;
}

// The strides of (N, C, ...) whose channels vary fastest in memory.
inline dims data_strides(const dims& shape) {
  dims strides(shape.size());
  strides[1] = 1;
  int64_t step = shape[1];
  for (size_t i = shape.size(); i-- > 2; step *= shape[i]) strides[i] = step;
  strides[0] = step;
  return strides;
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

// Whether it is one that oneDNN takes where it has no better one: convolutions by products of matrices, which it packs in each call.
inline bool is_slow_implementation(const std::string& name) {
  return name.find("ref") != std::string::npos || name.find("gemm:") != std::string::npos;
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

// Copies an array into another dtype; nothing where that is its own.
class Conversion {
 public:
  Conversion() = default;

  Conversion(size_t count, dt from, dt to)
      : from_({static_cast<int64_t>(count)}, from, dims{1}), to_({static_cast<int64_t>(count)}, to, dims{1}) {
    if (from == to) return;
    is_needed_ = true;
    reorder_ = Reorder(from_, to_);
  }

  bool is_needed() const { return is_needed_; }
  size_t scratch_size() const { return is_needed_ ? aligned(to_.get_size()) + reorder_.scratch_size() : 0; }

  void run(const void* from, void* to, Scratch& scratch) const {
    reorder_.run(dnnl::memory(from_, engine(), const_cast<void*>(from)), dnnl::memory(to_, engine(), to), scratch);
  }

  // The array itself, or a copy in working memory.
  const void* run(const void* from, Scratch& scratch) const {
    if (!is_needed_) return from;
    void* to = scratch.take(to_.get_size());
    run(from, to, scratch);
    return to;
  }

 private:
  bool is_needed_ = false;
  dnnl::memory::desc from_, to_;
  Reorder reorder_;
};

}  // namespace native
