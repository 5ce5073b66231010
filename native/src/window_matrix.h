// The matrix of all windows of an image, each a row: all channels of the first tap, then those of the next one. Elements beside the image are
// zeros.
#pragma once

#include <algorithm>
#include <cstring>

#include "windows.h"

namespace native {

class WindowMatrix {
 public:
  WindowMatrix(const Windows& windows, int64_t channels)
      : windows_(windows), channels_(channels), depth_(channels * Windows::product(windows.kernel)) {}

  int64_t depth() const { return depth_; }

  // Some rows of it. Allocates nothing: it runs on threads, where no error can be thrown.
  void write(const float* data, int64_t begin, int64_t end, float* row) const {
    for (int64_t pixel = begin; pixel < end; pixel++, row += depth_) {
      const Window window(windows_, pixel);
      if (!window.is_whole()) std::fill_n(row, depth_, 0.0f);
      window.for_rows([&](int64_t at, int64_t tap, int64_t count) {
        const int64_t step = windows_.dilations[2], pixels = step == 1 ? count : 1;  // that lie beside each other
        for (int64_t i = 0; i < count; i += pixels) {
          const float* from = data + (at + i * step) * channels_;
          std::memcpy(row + (tap + i) * channels_, from, static_cast<size_t>(pixels * channels_) * sizeof(float));
        }
      });
    }
  }

 private:
  Windows windows_;
  int64_t channels_, depth_;
};

}  // namespace native
