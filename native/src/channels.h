// What the passes over matrices of rows and channels (channel_kernels.h) share: those of batch_norm.cc and group_norm.cc.
#pragma once

#include <cstdint>

namespace native {

constexpr int64_t kBlock = 32;  // rows, whose sums are added up before they are added to those of the rows before
constexpr int kMaxVectors = 4;  // of channels, at a time

inline int64_t padded(int64_t channels) { return (channels + 15) / 16 * 16; }  // whole vectors of any kernel

// A part of the rows with its sums: padded vectors. Forward they are three: shift, sums, squares. For gradients two: the sums of
// the gradient, and of it times x - mean.
struct Part {
  int64_t rows;
  const float* vectors;
};

}  // namespace native
