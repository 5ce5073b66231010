// Sums stay in registers for some channels of the input and some of the output, while a tap meets a block of rows of pixels.
// Threads share the taps and the input's channels, so that none adds to another's sums. A block is as large as a cache, and is
// summed up by itself, which rounds less than one long sum.

#include "row_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "vectors.h"

namespace native {

namespace {

constexpr int64_t kBlockBytes = 1 << 17;  // of both arrays
constexpr int kVectors = 2;               // of output channels, at a time

// The pixels of a row that a tap meets, from the first ones on.
struct Pixels {
  const float *input, *gradient;
  int64_t count, input_step, gradient_step;
};

// Adds the sums over some rows of i + 1 channels of the input and j + 1 vectors of the gradient's `columns` channels, the last of
// which may be partial, to sums that are `width` apart.
struct Kernels {
  using Add = void(const RowWeights::Rows* begin, const RowWeights::Rows* end, const Pixels&, int64_t columns, float* sums,
                   int64_t width);
  int64_t most_rows;
  Add* add[2][kVectors][12];  // [is partial][j][i]
};

#define KERNELS "row_weights_kernels.h"
#include "each_isa.h"

const Kernels& kernels() { return for_this_cpu(avx2::kKernels, avx512::kKernels); }

// The output's indices along an axis whose windows have an input at one of their positions, and the first of these inputs.
struct Overlap {
  int64_t begin, end, input;

  Overlap(const Windows& w, int axis, int64_t position) {
    const int64_t shift = position * w.dilations[axis] - w.pads[axis], step = w.strides[axis];
    begin = shift < 0 ? (-shift + step - 1) / step : 0;
    const int64_t last = w.input[axis] - 1 - shift;
    end = last < 0 ? begin : std::max(begin, std::min(w.output[axis], last / step + 1));
    input = begin * step + shift;
  }
};

}  // namespace

bool RowWeights::takes(const ConvSpec& s) {
  constexpr int64_t kMostSums = 1 << 22;
  const bool is_float32 = s.dtypes.compute == dt::f32;
  return s.kind == ConvSpec::kBackwardWeights && is_float32 && runs_kernels(false) &&
         static_cast<int64_t>(element_count(s.kernel)) <= kMostSums;
}

// By 1.14 to 2.1 times for images of 6 x 6 to 64 x 64 pixels; where registers are not filled, oneDNN's are (measured with two
// threads).
bool RowWeights::is_fast(const ConvSpec& s) {
  constexpr int64_t kLeastChannels = 16;
  return isa() == Isa::kAvx2 && s.groups == 1 && s.kernel[1] >= kLeastChannels;
}

RowWeights::RowWeights(const ConvSpec& s, int threads)
    : threads_(threads), windows_(s.windows()), groups_(s.groups), inputs_(s.kernel[1]), outputs_(s.kernel[0] / s.groups) {
  const auto& [samples, input, output, kernel, strides, dilations, pads] = windows_;
  const int64_t taps = s.taps(), inputs = inputs_ * groups_, outputs = outputs_ * groups_;
  width_ = (outputs_ + lanes() - 1) / lanes() * lanes();
  const bool channels_last = s.weights_channels_last();
  output_step_ = inputs_ * taps, input_step_ = channels_last ? 1 : taps, tap_step_ = channels_last ? inputs_ : 1;
  const int64_t row_bytes = (output[2] * outputs + input[2] * inputs) * static_cast<int64_t>(sizeof(float));
  const int64_t rows = samples * output[0] * output[1], block = std::max<int64_t>(1, kBlockBytes / row_bytes);
  blocks_ = static_cast<size_t>((rows + block - 1) / block);
  for (int64_t a = 0; a < kernel[0]; a++) {
    for (int64_t b = 0; b < kernel[1]; b++) {
      Line line;
      for (int64_t row = 0; row < rows; row++) {
        if (row % block == 0) line.blocks.push_back(line.rows.size());
        const int64_t sample = row / (output[0] * output[1]), i = row / output[1] % output[0], j = row % output[1];
        const int64_t k = i * strides[0] - pads[0] + a * dilations[0], m = j * strides[1] - pads[1] + b * dilations[1];
        if (k < 0 || k >= input[0] || m < 0 || m >= input[1]) continue;
        line.rows.push_back({row * output[2] * outputs, ((sample * input[0] + k) * input[1] + m) * input[2] * inputs});
      }
      line.blocks.push_back(line.rows.size());
      lines_.push_back(std::move(line));
    }
  }
  const int64_t parts = (inputs_ + kernels().most_rows - 1) / kernels().most_rows;
  for (int64_t group = 0; group < groups_; group++) {
    for (int64_t tap = 0; tap < taps; tap++) {
      for (int64_t part = 0; part < parts; part++) {
        const int64_t begin = inputs_ * part / parts;
        units_.push_back({group, tap, begin, inputs_ * (part + 1) / parts - begin});
      }
    }
  }
}

size_t RowWeights::scratch_size() const {
  return aligned(units_.size() * static_cast<size_t>(kernels().most_rows * width_) * sizeof(float));
}

void RowWeights::run(const void* input, const void* gradient, void* result, Scratch& scratch) const {
  auto* sums = reinterpret_cast<float*>(scratch.take(scratch_size()));
  const int64_t of_unit = kernels().most_rows * width_;
  thread_pool::parallel_for(static_cast<int64_t>(units_.size()), threads_, [&](int64_t begin, int64_t end) {
    std::fill(sums + begin * of_unit, sums + end * of_unit, 0.0f);
    for (size_t block = 0; block < blocks_; block++) {
      for (int64_t i = begin; i < end; i++) {
        add_unit(units_[static_cast<size_t>(i)], block, static_cast<const float*>(input), static_cast<const float*>(gradient),
                 sums + i * of_unit);
      }
    }
    for (int64_t i = begin; i < end; i++)
      write_unit(units_[static_cast<size_t>(i)], sums + i * of_unit, static_cast<float*>(result));
  });
}

void RowWeights::add_unit(const Unit& unit, size_t block, const float* input, const float* gradient, float* sums) const {
  const Line& line = lines_[static_cast<size_t>(unit.tap / windows_.kernel[2])];
  const Overlap across(windows_, 2, unit.tap % windows_.kernel[2]);
  const Rows *begin = line.rows.data() + line.blocks[block], *end = line.rows.data() + line.blocks[block + 1];
  const int64_t inputs = inputs_ * groups_, outputs = outputs_ * groups_, vector = lanes();
  Pixels pixels{input + across.input * inputs + unit.group * inputs_ + unit.begin, nullptr, across.end - across.begin,
                windows_.strides[2] * inputs, outputs};
  for (int64_t column = 0; column < outputs_; column += kVectors * vector) {
    pixels.gradient = gradient + across.begin * outputs + unit.group * outputs_ + column;
    const int64_t columns = std::min(kVectors * vector, outputs_ - column);
    const auto add = kernels().add[columns % vector != 0][(columns - 1) / vector][unit.count - 1];
    add(begin, end, pixels, columns, sums + column, width_);
  }
}

void RowWeights::write_unit(const Unit& unit, const float* sums, float* result) const {
  float* to = result + unit.group * outputs_ * output_step_ + unit.begin * input_step_ + unit.tap * tap_step_;
  for (int64_t o = 0; o < outputs_; o++, to += output_step_) {
    for (int64_t r = 0; r < unit.count; r++) to[r * input_step_] = sums[r * width_ + o];
  }
}

}  // namespace native
