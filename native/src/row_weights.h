// The gradient to the weights of a convolution of float32 numbers, on CPUs without AVX-512: oneDNN has no kernel of its own for
// volumes there, and slower ones for images. Only what is inside an image is multiplied.
#pragma once

#include <vector>

#include "conv_spec.h"

namespace native {

class RowWeights final : public ConvAlgorithm {
 public:
  // Whether such a gradient can be computed on this CPU, and whether it is faster than oneDNN's, which for images are not slow.
  static bool takes(const ConvSpec& spec);
  static bool is_fast(const ConvSpec& spec);

  RowWeights(const ConvSpec& spec, int threads);

  std::string name() const override { return "row by row:" + isa_name(false); }
  size_t scratch_size() const override;
  bool multiplies_padding() const override { return false; }
  void run(const void* input, const void* gradient, void* result, Scratch& scratch) const override;

  // A row of pixels of the output's gradient, and where the row of the input that a tap meets begins: elements of the arrays.
  struct Rows {
    int64_t gradient, input;
  };

 private:
  // The rows that a tap's position along the first two axes meets, and, for each block of rows, the first of them and the last
  // one's end.
  struct Line {
    std::vector<Rows> rows;
    std::vector<size_t> blocks;
  };

  // Channels of the input at one tap, whose sums one thread computes.
  struct Unit {
    int64_t group, tap, begin, count;
  };

  void add_unit(const Unit& unit, size_t block, const float* input, const float* gradient, float* sums) const;
  void write_unit(const Unit& unit, const float* sums, float* result) const;

  int threads_;
  Windows windows_;
  int64_t groups_, inputs_, outputs_;            // channels of a group
  int64_t width_;                                // outputs, padded to whole vectors
  int64_t output_step_, input_step_, tap_step_;  // between weights
  std::vector<Line> lines_;
  std::vector<Unit> units_;
  size_t blocks_;
};

}  // namespace native
