// A convolution as a matrix product: every window is written out as a row, and weights are taken in the layout they have.
#pragma once

#include "conv_spec.h"
#include "gemm.h"

namespace native {

class Im2colConv final : public ConvAlgorithm {
 public:
  // For one group.
  Im2colConv(const ConvSpec& spec, int threads, bool describe_only);

  std::string name() const override { return (is_pointwise_ ? "matmul " : "im2col, matmul ") + gemm_.name(); }
  bool is_slow() const { return gemm_.is_slow(); }
  size_t scratch_size() const override { return aligned(matrix_bytes_) + aligned(sums_bytes_) + gemm_.scratch_size() + rounding_.scratch_size(); }
  bool multiplies_padding() const override { return spec_.kind != ConvSpec::kBackwardData; }
  void run(const void* first, const void* second, void* result, Scratch& scratch) const override;

 private:
  template <class Element>
  void im2col(const Element* input, Element* matrix) const;
  void im2col(const void* input, void* matrix) const;
  void col2im(const float* matrix, float* input) const;
  template <class Visit>
  void for_each_tap(int64_t window, const Visit& visit) const;

  ConvSpec spec_;
  int threads_;
  bool is_pointwise_;      // the input is the matrix already
  bool channels_fastest_;  // within a row; otherwise taps are
  Gemm gemm_;
  Conversion rounding_;  // of the sums that col2im makes
  size_t matrix_bytes_ = 0, sums_bytes_ = 0;
  int64_t input_[3], output_[3], kernel_[3], stride_[3], dilation_[3], pad_[3];  // always three spatial axes
};

}  // namespace native
