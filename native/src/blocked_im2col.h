// A convolution as products of matrices, of some windows at a time, on CPUs without AVX-512: where images have few channels and
// windows are long, oneDNN makes one product of all windows of an image, which its kernels compute at half of the speed.
#pragma once

#include "conv_spec.h"
#include "window_blocks.h"

namespace native {

class BlockedIm2col final : public ConvAlgorithm {
 public:
  // Whether it can be computed so, on this CPU: forward, and the gradient to weights.
  static bool takes(const ConvSpec& spec);

  BlockedIm2col(const ConvSpec& spec, int threads);

  std::string name() const override { return "im2col, matmul " + blocks_.product().name(); }
  size_t scratch_size() const override {
    return aligned(weights_bytes_) + static_cast<size_t>(blocks_.threads()) * scratch_of_thread();
  }
  bool multiplies_padding() const override { return true; }
  void run(const void* first, const void* second, void* result, Scratch& scratch) const override;

 private:
  void run_forward(const float* input, const float* weights, float* result, char* memory) const;
  void run_weights(const float* input, const float* gradient, float* result, char* memory) const;
  // Weights as (O, ..., I), in place of (O, I, ...), or the other way.
  void turn(const float* from, float* to, bool channels_last) const;
  size_t scratch_of_thread() const { return aligned(sums_bytes_) + blocks_.scratch_of_thread(); }

  WindowBlocks blocks_;
  int64_t filters_, channels_, taps_;
  bool is_forward_, is_turned_;  // turned: weights are (O, I, ...) in memory
  size_t sums_bytes_ = 0, weights_bytes_ = 0;
};

}  // namespace native
