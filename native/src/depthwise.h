// The gradient to the weights of a depthwise convolution, in which each channel has a window of its own, over images that are smaller
// than their windows. oneDNN leaves these to a kernel for groups of any size, which takes 40 times as long.
#pragma once

#include "conv_spec.h"

namespace native {

class DepthwiseWeights final : public ConvAlgorithm {
 public:
  // Whether such a gradient is to be computed, and can be on this CPU.
  static bool takes(const ConvSpec& spec);

  DepthwiseWeights(const ConvSpec& spec, int threads);

  std::string name() const override { return "depthwise"; }
  size_t scratch_size() const override { return aligned(matrix()); }
  bool multiplies_padding() const override { return false; }
  void run(const void* input, const void* gradient, void* result, Scratch& scratch) const override;

 private:
  size_t matrix() const { return static_cast<size_t>(taps_ * width_) * sizeof(float); }  // bytes

  int threads_;
  Windows windows_;
  dt types_[3];
  int64_t channels_, width_, taps_;  // width: channels, padded to whole vectors
};

}  // namespace native
