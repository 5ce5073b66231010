// The spec of a convolution, written by oneflow/ops/_native_conv.py.
#pragma once

#include "conv_geometry.h"

namespace native {

struct ConvSpec : ConvGeometry {
  enum Kind { kForward, kBackwardData, kBackwardWeights };
  enum Flag : int64_t {
    kWeightsChannelsLast = 1,
    kAlwaysDirect = 2,
    kAlwaysIm2col = 4,
    kAlwaysRows = 8
  };  // the last three are for tests

  explicit ConvSpec(SpecReader reader) : ConvSpec(Head(reader), reader) {}

  bool weights_channels_last() const { return flags & kWeightsChannelsLast; }

  // The matrix that im2col makes: a row per window, which holds every channel at every tap.
  int64_t rows() const { return static_cast<int64_t>(element_count(output)) / output[1]; }
  int64_t columns() const { return kernel[1] * taps(); }

  bool is_padded() const {
    for (int i = 0; i < n; i++) {
      if (pad_low[i] != 0 || pad_high[i] != 0) return true;
    }
    return false;
  }

  // Whether the input is that matrix already: windows are one element large and adjacent.
  bool is_pointwise() const {
    for (int i = 0; i < n; i++) {
      if (strides[i] != 1) return false;
    }
    return taps() == 1 && !is_padded();
  }

  // Whether the windows of one axis reach beyond both ends of the image.
  bool window_exceeds_image() const {
    for (int i = 0; i < n; i++) {
      if ((kernel[i + 2] - 1) * dilations[i] >= input[i + 2]) return true;
    }
    return false;
  }

  double flops() const { return 2.0 * static_cast<double>(rows()) * kernel[0] * columns(); }

  Kind kind;
  int64_t flags;
  Dtypes dtypes;

 private:
  // What a spec has before the shapes.
  struct Head {
    explicit Head(SpecReader& reader)
        : kind(static_cast<Kind>(reader.next(kForward, kBackwardWeights))),
          flags(reader.next(0, 15)),
          dtypes(reader.next_dtypes()) {}
    Kind kind;
    int64_t flags;
    Dtypes dtypes;
  };

  ConvSpec(const Head& head, SpecReader& reader) : ConvGeometry(reader), kind(head.kind), flags(head.flags), dtypes(head.dtypes) {
    reader.finish();
  }
};

// One way to compute a convolution.
class ConvAlgorithm {
 public:
  virtual ~ConvAlgorithm() = default;
  virtual std::string name() const = 0;
  virtual size_t scratch_size() const = 0;
  virtual bool multiplies_padding() const = 0;  // as if it were zeros
  // `first` and `second` are what the kind reads: input and weights, the output's gradient and weights, or both.
  virtual void run(const void* first, const void* second, void* result, Scratch& scratch) const = 0;
};

}  // namespace native
