// Sliding windows over images: which pixels of the one array belong to a pixel of the other.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace native {

struct Windows {
  static constexpr int kAxes = 3;              // of an image; those that it lacks have one element
  static constexpr int64_t kMostPositions = 64;  // of a window, for `for_pixels`
  using Sizes = std::array<int64_t, kAxes>;

  static int64_t product(const Sizes& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

  int64_t samples;
  Sizes input, output, kernel, strides, dilations, pads;  // pads: before the first element
};

// For one index along an axis of an array: the indices of the other one that belong to it, and their positions in the window.
struct Reach {
  int count = 0;
  int64_t index[Windows::kMostPositions];
  int64_t position[Windows::kMostPositions];

  void add(int64_t other, int64_t at) { index[count] = other, position[count++] = at; }
};

// The elements that a window has.
inline Reach elements_of(const Windows& w, int axis, int64_t window) {
  Reach found;
  for (int64_t position = 0; position < w.kernel[axis]; position++) {
    const int64_t index = window * w.strides[axis] - w.pads[axis] + position * w.dilations[axis];
    if (index >= 0 && index < w.input[axis]) found.add(index, position);
  }
  return found;
}

// The windows that an element is in, the last one first, so that positions ascend.
inline Reach windows_of(const Windows& w, int axis, int64_t index) {
  Reach found;
  const int64_t from = index + w.pads[axis];
  for (int64_t window = std::min(from / w.strides[axis], w.output[axis] - 1); window >= 0; window--) {
    const int64_t offset = from - window * w.strides[axis];
    if (offset > (w.kernel[axis] - 1) * w.dilations[axis]) break;
    if (offset % w.dilations[axis] == 0) found.add(window, offset / w.dilations[axis]);
  }
  return found;
}

// Calls visit(pixel, pixels, positions, count) for each pixel of the rows [begin, end) of the output, or of the input: the pixels of
// the other array that belong to it, and the numbers of their positions in the window, which ascend.
template <class Visit>
void for_pixels(const Windows& w, bool of_output, int64_t begin, int64_t end, const Visit& visit) {
  const auto& mine = of_output ? w.output : w.input;
  const auto& others = of_output ? w.input : w.output;
  const auto reach = [&](int axis, int64_t index) { return of_output ? elements_of(w, axis, index) : windows_of(w, axis, index); };
  std::vector<Reach> columns;
  for (int64_t i = 0; i < mine[2]; i++) columns.push_back(reach(2, i));
  int64_t pixels[Windows::kMostPositions];
  int positions[Windows::kMostPositions];
  for (int64_t row = begin; row < end; row++) {
    const int64_t sample = row / (mine[0] * mine[1]);
    const Reach a = reach(0, row / mine[1] % mine[0]), b = reach(1, row % mine[1]);
    for (int64_t column = 0; column < mine[2]; column++) {
      const Reach& c = columns[static_cast<size_t>(column)];
      int count = 0;
      for (int i = 0; i < a.count; i++) {
        for (int j = 0; j < b.count; j++) {
          const int64_t line = ((sample * others[0] + a.index[i]) * others[1] + b.index[j]) * others[2];
          const int64_t before = (a.position[i] * w.kernel[1] + b.position[j]) * w.kernel[2];
          for (int k = 0; k < c.count; k++) {
            pixels[count] = line + c.index[k], positions[count++] = static_cast<int>(before + c.position[k]);
          }
        }
      }
      visit(row * mine[2] + column, pixels, positions, count);
    }
  }
}

}  // namespace native
