// The spec of a convolution, written by oneflow/ops/_native_conv.py.
#pragma once

#include "operation.h"
#include "windows.h"

namespace native {

struct ConvSpec {
  enum Kind { kForward, kBackwardData, kBackwardWeights };
  enum Flag : int64_t { kWeightsChannelsLast = 1, kAlwaysDirect = 2, kAlwaysIm2col = 4, kAlwaysRows = 8 };  // the last three are for tests

  explicit ConvSpec(SpecReader reader) {
    kind = static_cast<Kind>(reader.next(kForward, kBackwardWeights));
    flags = reader.next(0, 15);
    dtypes = reader.next_dtypes();
    n = static_cast<int>(reader.next(1, 3));
    groups = reader.next(1);
    input = reader.next_dims(n + 2, 1), kernel = reader.next_dims(n + 2, 1), output = reader.next_dims(n + 2, 1);
    strides = reader.next_dims(n, 1), dilations = reader.next_dims(n, 1);
    pad_low = reader.next_dims(n, 0), pad_high = reader.next_dims(n, 0);
    reader.finish();
    if (input[0] != output[0] || input[1] != kernel[1] * groups || output[1] != kernel[0] || kernel[0] % groups != 0) {
      throw std::invalid_argument("the shapes do not belong together");
    }
    for (int i = 0; i < n; i++) {
      const int64_t room = input[i + 2] + pad_low[i] + pad_high[i] - ((kernel[i + 2] - 1) * dilations[i] + 1);
      if (room < 0 || room / strides[i] + 1 != output[i + 2]) {
        throw std::invalid_argument("the output's size is not that of the windows");
      }
    }
    if (n == 1 && groups > 1) add_axis();
  }

  bool weights_channels_last() const { return flags & kWeightsChannelsLast; }

  // The number of taps of a window.
  int64_t taps() const {
    int64_t count = 1;
    for (int i = 0; i < n; i++) count *= kernel[i + 2];
    return count;
  }

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

  Windows windows() const {
    Windows w{};
    w.samples = input[0];
    for (size_t i = 0; i < w.input.size(); i++) {
      const size_t missing = w.input.size() - static_cast<size_t>(n), axis = i - missing;
      const bool exists = i >= missing;
      w.input[i] = exists ? input[axis + 2] : 1;
      w.output[i] = exists ? output[axis + 2] : 1;
      w.kernel[i] = exists ? kernel[axis + 2] : 1;
      w.strides[i] = exists ? strides[axis] : 1;
      w.dilations[i] = exists ? dilations[axis] : 1;
      w.pads[i] = exists ? pad_low[axis] : 0;
    }
    return w;
  }

  double flops() const { return 2.0 * static_cast<double>(rows()) * kernel[0] * columns(); }

  Kind kind;
  int64_t flags;
  Dtypes dtypes;
  int n;  // spatial axes
  int64_t groups;
  dims input, kernel, output;  // (N, C, ...), (O, C / groups, ...), (N, O, ...), whatever their order in memory
  dims strides, dilations, pad_low, pad_high;

 private:
  // An image of one row for one without rows: oneDNN's kernels for depthwise convolutions are for images.
  void add_axis() {
    n = 2;
    for (dims* shape : {&input, &kernel, &output}) shape->insert(shape->begin() + 2, 1);
    for (dims* each : {&strides, &dilations}) each->insert(each->begin(), 1);
    for (dims* each : {&pad_low, &pad_high}) each->insert(each->begin(), 0);
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
