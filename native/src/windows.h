// Sliding windows over images: which pixels of the one array belong to a pixel of the other.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace native {

struct Windows {
  static constexpr int kAxes = 3;              // of an image; those that it lacks have one element
  static constexpr int64_t kMostPositions = 64;  // of a window, for `for_pixels`
  using Sizes = std::array<int64_t, kAxes>;

  static int64_t product(const Sizes& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

  int64_t samples;
  Sizes input, output, kernel, strides, dilations, pads;  // pads: before the first element
};

// For one index along an axis of an array: the indices of the other one that belong to it, and their positions in the window. Both
// are equally spaced.
struct Reach {
  int64_t count, index, index_step, position, position_step;
};

// The elements that a window has.
inline Reach elements_of(const Windows& w, int axis, int64_t window) {
  const int64_t step = w.dilations[axis], start = window * w.strides[axis] - w.pads[axis];
  const auto position_from = [&](int64_t index) { return index <= start ? 0 : (index - start + step - 1) / step; };
  const int64_t first = position_from(0), end = std::min(w.kernel[axis], position_from(w.input[axis]));
  return {std::max<int64_t>(end - first, 0), start + first * step, step, first, 1};
}

// The windows that an element is in, the last one first, so that positions ascend. They have no dilations.
inline Reach windows_of(const Windows& w, int axis, int64_t index) {
  const int64_t step = w.strides[axis], from = index + w.pads[axis];
  const int64_t last = std::min(from / step, w.output[axis] - 1), position = from - last * step;
  const int64_t count = position < w.kernel[axis] ? (w.kernel[axis] - 1 - position) / step + 1 : 0;
  return {std::min(count, last + 1), last, -1, position, step};
}

// The elements that a pixel of the output reads.
struct Window {
  Window(const Windows& windows, int64_t pixel) : input(windows.input), kernel(windows.kernel) {
    const auto& output = windows.output;
    const int64_t line = pixel / output[2];
    sample = line / (output[0] * output[1]);
    axes[0] = elements_of(windows, 0, line / output[1] % output[0]), axes[1] = elements_of(windows, 1, line % output[1]);
    axes[2] = elements_of(windows, 2, pixel % output[2]);
  }

  // Calls visit(pixel, tap, count) for each row of elements: the first one, and its tap.
  template <class Visit>
  void for_rows(const Visit& visit) const {
    const auto& [a, b, c] = axes;
    for (int64_t i = 0; i < a.count; i++) {
      for (int64_t j = 0; j < b.count; j++) {
        const int64_t line = (sample * input[0] + a.index + i * a.index_step) * input[1] + b.index + j * b.index_step;
        visit(line * input[2] + c.index, ((a.position + i) * kernel[1] + b.position + j) * kernel[2] + c.position, c.count);
      }
    }
  }

  bool is_whole() const { return axes[0].count == kernel[0] && axes[1].count == kernel[1] && axes[2].count == kernel[2]; }

  const Windows::Sizes &input, &kernel;
  int64_t sample;
  Reach axes[3];
};

// Calls visit(pixel, pixels, positions, count) for each pixel of the rows [begin, end) of the output, or of the input: the pixels of
// the other array that belong to it, and the numbers of their positions in the window, which ascend. Allocates nothing: it runs on
// threads, where no error can be thrown.
template <class Visit>
void for_pixels(const Windows& w, bool of_output, int64_t begin, int64_t end, const Visit& visit) {
  const auto& mine = of_output ? w.output : w.input;
  const auto& others = of_output ? w.input : w.output;
  const auto reach = [&](int axis, int64_t index) { return of_output ? elements_of(w, axis, index) : windows_of(w, axis, index); };
  int64_t pixels[Windows::kMostPositions];
  int positions[Windows::kMostPositions];
  for (int64_t row = begin; row < end; row++) {
    const int64_t sample = row / (mine[0] * mine[1]);
    const Reach a = reach(0, row / mine[1] % mine[0]), b = reach(1, row % mine[1]);
    for (int64_t column = 0; column < mine[2]; column++) {
      const Reach c = reach(2, column);
      int count = 0;
      for (int64_t i = 0; i < a.count; i++) {
        for (int64_t j = 0; j < b.count; j++) {
          const int64_t plane = sample * others[0] + a.index + i * a.index_step;
          const int64_t line = (plane * others[1] + b.index + j * b.index_step) * others[2] + c.index;
          const int64_t above = (a.position + i * a.position_step) * w.kernel[1] + b.position + j * b.position_step;
          const int64_t before = above * w.kernel[2] + c.position;
          for (int64_t k = 0; k < c.count; k++) {
            pixels[count] = line + k * c.index_step, positions[count++] = static_cast<int>(before + k * c.position_step);
          }
        }
      }
      visit(row * mine[2] + column, pixels, positions, count);
    }
  }
}

}  // namespace native
