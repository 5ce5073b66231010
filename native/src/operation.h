// What a call computes: made once for its spec, cached, and run from any thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "onednn.h"
#include "thread_pool.h"

namespace native {

// Reads a spec, the vector of integers that describes a call, from front to back. Throws where it is malformed.
class SpecReader {
 public:
  SpecReader(const int64_t* data, size_t size) : next_(data), end_(data + size) {}

  int64_t next(int64_t least, int64_t most = std::numeric_limits<int64_t>::max()) {
    if (next_ == end_) throw std::invalid_argument("the spec is too short");
    if (*next_ < least || *next_ > most) throw std::invalid_argument("a value of the spec is out of range");
    return *next_++;
  }

  dims next_dims(int count, int64_t least) {
    dims values(count);
    for (auto& value : values) value = next(least);
    return values;
  }

  dt next_dtype() { return next(0, 1) == 0 ? dt::f32 : dt::bf16; }

  // 0: everything is float32. From 1 on: computed in bfloat16, and bit i of the number less 1 says that operand i is float32.
  Dtypes next_dtypes() {
    const int64_t code = next(0, 8);
    Dtypes dtypes{code == 0 ? dt::f32 : dt::bf16, {}};
    for (int i = 0; i < 3; i++) dtypes.operands[i] = code == 0 || (code - 1) >> i & 1 ? dt::f32 : dt::bf16;
    return dtypes;
  }

  bool next_bool() { return next(0, 1) == 1; }

  float next_float() {
    const auto bits = static_cast<uint32_t>(next(0, 0xffffffffll));
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  void finish() const {
    if (next_ != end_) throw std::invalid_argument("the spec is too long");
  }

 private:
  const int64_t* next_;
  const int64_t* end_;
};

class Operation {
 public:
  virtual ~Operation() = default;

  // The name of the implementation, for the table of a job's ops.
  virtual std::string name() const = 0;

  // `operands`: the inputs, then the results. The calling thread holds the pool for `threads()`.
  virtual void run(void* const* operands, Scratch& scratch) const = 0;

  // The number of threads that it was made for, and must be run with.
  int threads() const { return threads_; }
  size_t scratch_size() const { return scratch_size_; }
  const std::vector<size_t>& operand_bytes() const { return operand_bytes_; }

 protected:
  int threads_ = 1;
  size_t scratch_size_ = 0;
  std::vector<size_t> operand_bytes_;
};

// One for each kind of call. `describe_only`: what `name` needs is decided, and no code is generated.
using MakeOperation = std::unique_ptr<Operation>(SpecReader, thread_pool::Settings, bool describe_only);
MakeOperation make_conv, make_matmul, make_transpose, make_product, make_pack, make_attention, make_attention_grad, make_update,
    make_product_update, make_summed_update, make_exchange, make_batch_norm, make_batch_norm_grad, make_cross_entropy, make_cross_entropy_grad, make_max_pool, make_max_pool_grad,
    make_layer_norm, make_layer_norm_grad, make_group_norm, make_group_norm_grad, make_lstm_cell, make_lstm_cell_grad, make_lstm_layer, make_lstm_layer_grad,
    make_largest;

}  // namespace native
