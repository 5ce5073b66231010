// The gradient to the data of a convolution along one axis, as a convolution of the output's gradient, which is padded before,
// with the reversed weights: float32 numbers, on CPUs without AVX-512.
//
// oneDNN computes the same, and pads in its kernels. Where windows reach far beyond the array it makes a description, and now and
// then a kernel, for almost each number of pixels that may be left of a block: 0.1 ms for each pixel of a row. A copy with zeros
// takes a few hundredths of the convolution's time.
#pragma once

#include <memory>

#include "direct.h"

namespace native {

class PaddedGradient final : public ConvAlgorithm {
 public:
  // Whether it is such a gradient, for which oneDNN's description takes long.
  static bool takes(const ConvSpec& spec);

  PaddedGradient(const ConvSpec& spec, int threads, bool describe_only);

  std::string name() const override { return forward_.name(); }
  size_t scratch_size() const override;
  bool multiplies_padding() const override { return true; }
  bool is_slow() const { return forward_.is_slow(); }
  void run(const void* gradient, const void* weights, void* result, Scratch& scratch) const override;

 private:
  void pad(const float* gradient, float* padded) const;
  void reverse(const float* weights, float* reversed) const;

  int threads_;
  int64_t samples_, inputs_, outputs_, taps_;    // channels of the input, and of the output
  int64_t length_, padded_length_, begin_;       // of the output's gradient, and where it begins in the padded one
  int64_t output_step_, input_step_, tap_step_;  // between weights
  DirectConv forward_;
};

}  // namespace native
