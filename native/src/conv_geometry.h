// The shapes of a convolution, as both kinds of specs have them: n, groups, input, kernel, output, strides, dilations, pads.
#pragma once

#include "operation.h"
#include "windows.h"

namespace native {

struct ConvGeometry {
  explicit ConvGeometry(SpecReader& reader) {
    n = static_cast<int>(reader.next(1, 3));
    groups = reader.next(1);
    input = reader.next_dims(n + 2, 1), kernel = reader.next_dims(n + 2, 1), output = reader.next_dims(n + 2, 1);
    strides = reader.next_dims(n, 1), dilations = reader.next_dims(n, 1);
    pad_low = reader.next_dims(n, 0), pad_high = reader.next_dims(n, 0);
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

  // The number of taps of a window.
  int64_t taps() const {
    int64_t count = 1;
    for (int i = 0; i < n; i++) count *= kernel[i + 2];
    return count;
  }

  Windows windows() const {
    Windows w{input[0], {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}};
    for (int i = 0; i < n; i++) {
      const int axis = Windows::kAxes - n + i;
      w.input[axis] = input[i + 2], w.output[axis] = output[i + 2], w.kernel[axis] = kernel[i + 2];
      w.strides[axis] = strides[i], w.dilations[axis] = dilations[i], w.pads[axis] = pad_low[i];
    }
    return w;
  }

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

}  // namespace native
