// Convolutions with windows of nine taps over images so small that much of a window lies beside them. Only taps inside an image
// are multiplied, and weights are read or written once, in the layout they have. AVX-512 only.
#pragma once

#include "conv_spec.h"

namespace native {

// What is multiplied with what, as distances in bytes of the packed operands.
struct PixelPair {
  int64_t left, right;
};

// Forward, and the gradient to the data.
class FewPixels final : public ConvAlgorithm {
 public:
  // Whether such a convolution is to be computed, and can be on this CPU.
  static bool takes(const ConvSpec& spec, int threads);

  FewPixels(const ConvSpec& spec, int threads);

  std::string name() const override { return "few pixels"; }
  size_t scratch_size() const override { return aligned(data_bytes_) + aligned(sums_bytes_); }
  bool multiplies_padding() const override { return false; }
  void run(const void* data, const void* weights, void* result, Scratch& scratch) const override;

 private:
  void add_block(const char* data, const void* weights, int64_t panel, int64_t block, char* sums) const;

  int threads_;
  bool is_forward_;
  bool is_bf16_;                            // what is multiplied
  dt types_[3];                             // of the operands
  int64_t samples_, data_pixels_, pixels_;  // pixels of an image of the data, and of the result
  int64_t depth_, columns_;                 // channels: those that are summed over, and those of the result
  int64_t depth_step_, column_step_;        // between weights
  int64_t blocks_, panels_;                 // of the depth and of the columns
  std::vector<PixelPair> pairs_;            // of data and weights, for each pixel of a result's image
  std::vector<size_t> first_;               // pair of each pixel, and the end of the last one's
  size_t data_bytes_, sums_bytes_;
};

// The gradient to the weights.
class FewPixelsWeights final : public ConvAlgorithm {
 public:
  static bool takes(const ConvSpec& spec, int threads);

  FewPixelsWeights(const ConvSpec& spec, int threads);

  std::string name() const override { return "few pixels"; }
  size_t scratch_size() const override { return aligned(input_bytes_) + aligned(gradient_bytes_); }
  bool multiplies_padding() const override { return false; }
  void run(const void* input, const void* gradient, void* result, Scratch& scratch) const override;

 private:
  int threads_;
  bool is_bf16_;
  dt types_[3];
  int64_t words_, input_pixels_, output_pixels_;  // words of the samples
  int64_t inputs_, outputs_;                      // channels
  std::vector<PixelPair> pairs_;                  // of the gradient and the input, for each tap
  std::vector<size_t> first_;                     // pair of each tap, and the end of the last one's
  size_t input_bytes_, gradient_bytes_;
};

}  // namespace native
