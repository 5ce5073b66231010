// Sums of some pixels of a row stay in registers, each a vector of outputs: of one group, whose inputs are taken one by one, or,
// where a group has 1, 2 or 4 of both, of several groups. The lines of the image that some rows of the result read are copied
// before, with zeros beside the image, and stay in the second cache. Zeros times infinite weights are NaN: such sums are computed
// again, of the taps in the image alone.

#include "grouped_conv.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "vectors.h"

namespace native {

namespace {

namespace kernels {
using namespace simd::avx2;
#include "avx2_begin.h"
#include "epilogue.h"
#include "grouped_conv_kernels.h"
#include "isa_end.h"
}  // namespace kernels

constexpr int64_t kLanes = 8;
constexpr int kMostPixels = 12;  // whose sums registers hold
constexpr char kName[] = "grouped:avx2";

template <int... kPixels>
auto kernel_among(int64_t inputs, bool is_narrow, int64_t pixels, std::integer_sequence<int, kPixels...>) {
  using Kernel = bool(const kernels::Tile&);
  static constexpr Kernel* wide[] = {kernels::wide<kPixels + 1>...};
  static constexpr Kernel* narrow[][kMostPixels] = {
      {kernels::narrow<1, kPixels + 1>...}, {kernels::narrow<2, kPixels + 1>...}, {kernels::narrow<4, kPixels + 1>...}};
  return is_narrow ? narrow[inputs / 2][pixels - 1] : wide[pixels - 1];
}

auto kernel_for(int64_t inputs, bool is_narrow, int64_t pixels) {
  return kernel_among(inputs, is_narrow, pixels, std::make_integer_sequence<int, kMostPixels>());
}

constexpr int kMostSums = 12;  // of taps that are taken at once

template <int kInputs, int... kTaps>
auto adding_among(int64_t taps, std::integer_sequence<int, kTaps...>) {
  static constexpr void (*table[])(const kernels::Strip&) = {kernels::add_taps<kInputs, kTaps + 1>...};
  return table[taps - 1];
}

auto adding_for(int64_t inputs, int64_t taps) {
  if (inputs == 1) return adding_among<1>(taps, std::make_integer_sequence<int, kMostSums>());
  if (inputs == 2) return adding_among<2>(taps, std::make_integer_sequence<int, kMostSums / 2>());
  return adding_among<4>(taps, std::make_integer_sequence<int, kMostSums / 4>());
}

int64_t parts_of(int64_t size, int64_t most) { return (size + most - 1) / most; }

// Where a number of the weights of a convolution lies.
struct WeightSteps {
  int64_t output, input, tap;
};

class GroupedConv {
 public:
  // `inputs`, `outputs`: channels of a group.
  GroupedConv(const Windows& windows, int64_t groups, int64_t inputs, int64_t outputs, int threads)
      : windows_(windows),
        groups_(groups),
        inputs_(inputs),
        outputs_(outputs),
        is_narrow_(is_narrow(inputs, outputs)),
        threads_(threads) {
    constexpr int64_t kPartInputs = 32, kNumbers = 1 << 16;  // of the image and the result, which stay in the second cache
    const Windows& w = windows_;
    slices_of_cell_ = is_narrow_ ? 1 : parts_of(outputs, kLanes);
    cells_ = is_narrow_ ? parts_of(groups * outputs, kLanes) : groups;
    cell_inputs_ = is_narrow_ ? kLanes : inputs;
    parts_ = std::min(cells_, parts_of(groups * inputs, kPartInputs));
    pads_ = w.pads != Windows::Sizes{0, 0, 0} || w.input[0] < reach(0) || w.input[1] < reach(1) || w.input[2] < reach(2);
    is_in_place_ = !pads_ && (!is_narrow_ || groups * inputs % kLanes == 0);
    const int64_t part = parts_of(cells_, parts_), planes = w.samples * w.output[0], height = w.output[1];
    const auto image = [&](int64_t rows) { return w.kernel[0] * lines_of(rows) * reach(2) * part * cell_inputs_; };
    const auto numbers = [&](int64_t rows) { return image(rows) + rows * w.output[2] * part * slices_of_cell_ * kLanes; };
    int64_t rows = height;
    while (rows > 1 && (numbers(rows) > kNumbers || planes * parts_of(height, rows) * parts_ < 4 * threads)) rows--;
    blocks_ = parts_of(height, rows);
    rows = parts_of(height, blocks_);
    lines_ = lines_of(rows);
    if (!is_in_place_) image_ = image(rows) + kLanes;
    const int64_t line = is_in_place_ ? w.input[2] : reach(2);
    const int64_t plane = is_in_place_ ? w.dilations[0] * w.input[1] * line : lines_ * line;
    for (int64_t a = 0; a < w.kernel[0]; a++) {
      for (int64_t b = 0; b < w.kernel[1]; b++) {
        for (int64_t c = 0; c < w.kernel[2]; c++) taps_.push_back(a * plane + b * w.dilations[1] * line + c * w.dilations[2]);
      }
    }
  }

  // Whether a vector has the outputs of several groups.
  static bool is_narrow(int64_t inputs, int64_t outputs) {
    return inputs == outputs && outputs < kLanes && kLanes % outputs == 0;
  }

  size_t packed_size() const { return static_cast<size_t>(packed_count()) * sizeof(float); }
  size_t scratch_size() const { return static_cast<size_t>(threads_) * scratch_of_thread(); }
  bool pads() const { return pads_; }

  // Vectors of outputs, one for each input of each tap. `is_turned`: of the gradient to data, whose outputs are these weights'
  // inputs.
  void pack(const float* weights, const WeightSteps& steps, bool is_turned, float* packed) const {
    std::fill_n(packed, packed_count(), 0.0f);
    for_weights(steps, is_turned, [&](int64_t at, int64_t from) { packed[at] = weights[from]; });
  }

  // `after`: what follows the sums; null: nothing.
  void run(const float* input, const float* packed, float* result, const Epilogue* after, Scratch& scratch) const {
    char* const memory = scratch.take(scratch_size());
    thread_pool::on_threads(threads_, [&](int64_t thread) {
      const Memory its = memory_of(memory + static_cast<size_t>(thread) * scratch_of_thread());
      for (int64_t unit = units() * thread / threads_; unit < units() * (thread + 1) / threads_; unit++) {
        run_unit(unit, input, packed, result, after, its);
      }
    });
  }

  // The gradient to weights, of narrow groups: sums as `pack` has weights, which each thread has for itself.
  size_t sums_scratch_size() const { return static_cast<size_t>(threads_) * (scratch_of_thread() + aligned(packed_size())); }
  void run_sums(const float* input, const float* gradient, const WeightSteps& steps, float* result, Scratch& scratch) const {
    auto* const sums = reinterpret_cast<float*>(scratch.take(static_cast<size_t>(threads_) * aligned(packed_size())));
    char* const memory = scratch.take(scratch_size());
    const auto sums_of = [&](int64_t thread) {
      return sums + thread * static_cast<int64_t>(aligned(packed_size()) / sizeof(float));
    };
    thread_pool::on_threads(threads_, [&](int64_t thread) {
      const Memory its = memory_of(memory + static_cast<size_t>(thread) * scratch_of_thread());
      std::fill_n(sums_of(thread), packed_count(), 0.0f);
      for (int64_t unit = units() * thread / threads_; unit < units() * (thread + 1) / threads_; unit++) {
        add_unit(unit, input, gradient, sums_of(thread), its);
      }
    });
    for_weights(steps, false, [&](int64_t at, int64_t to) {
      result[to] = 0;
      for (int64_t thread = 0; thread < threads_; thread++) result[to] += sums_of(thread)[at];
    });
  }

 private:
  // The elements of the image between the first and the last one that windows along an axis read.
  int64_t reach(int axis, int64_t outputs) const {
    return (outputs - 1) * windows_.strides[axis] + (windows_.kernel[axis] - 1) * windows_.dilations[axis] + 1;
  }
  int64_t reach(int axis) const { return reach(axis, windows_.output[axis]); }
  int64_t lines_of(int64_t rows) const { return reach(1, rows); }
  int64_t units() const { return windows_.samples * windows_.output[0] * blocks_ * parts_; }
  int64_t packed_count() const { return cells_ * slices_of_cell_ * slice_size(); }
  int64_t slice_size() const { return static_cast<int64_t>(taps_.size()) * inputs_ * kLanes; }
  size_t taps_bytes() const { return taps_.size() * sizeof(int64_t); }
  size_t scratch_of_thread() const {
    const size_t again = pads_ ? aligned(taps_bytes()) + aligned(static_cast<size_t>(slice_size()) * sizeof(float)) : 0;
    return aligned(taps_bytes()) + aligned(static_cast<size_t>(image_) * sizeof(float)) + again;
  }

  // Of a thread.
  struct Memory {
    int64_t* taps;    // where they lie behind the first one, in numbers
    float* image;     // the lines that are copied
    int64_t* inside;  // those of one pixel's taps that are in the image,
    float* weights;   // and their weights
  };

  Memory memory_of(char* piece) const {
    Scratch mine(piece);
    Memory its{};
    its.taps = reinterpret_cast<int64_t*>(mine.take(taps_bytes()));
    its.image = reinterpret_cast<float*>(mine.take(static_cast<size_t>(image_) * sizeof(float)));
    if (pads_) its.inside = reinterpret_cast<int64_t*>(mine.take(taps_bytes()));
    if (pads_) its.weights = reinterpret_cast<float*>(mine.take(static_cast<size_t>(slice_size()) * sizeof(float)));
    std::fill_n(its.image + std::max<int64_t>(image_ - kLanes, 0), std::min(image_, kLanes), 0.0f);  // behind the last pixel
    return its;
  }

  // visit(where the number is among packed ones, where it is among weights)
  template <class Visit>
  void for_weights(const WeightSteps& steps, bool is_turned, const Visit& visit) const {
    const auto taps = static_cast<int64_t>(taps_.size());
    int64_t at = 0;
    for (int64_t slice = 0; slice < cells_ * slices_of_cell_; slice++) {
      for (int64_t tap = 0; tap < taps; tap++) {
        for (int64_t i = 0; i < inputs_; i++) {
          for (int64_t lane = 0; lane < kLanes; lane++, at++) {
            const int64_t group = is_narrow_ ? (slice * kLanes + lane) / outputs_ : slice / slices_of_cell_;
            const int64_t output = is_narrow_ ? lane % outputs_ : slice % slices_of_cell_ * kLanes + lane;
            if (group >= groups_ || output >= outputs_) continue;
            visit(at, is_turned ? (group * inputs_ + i) * steps.output + output * steps.input + (taps - 1 - tap) * steps.tap
                                : (group * outputs_ + output) * steps.output + i * steps.input + tap * steps.tap);
          }
        }
      }
    }
  }

  // Some rows of a plane of the result, of some cells, and what they read of the image.
  struct Unit {
    int64_t first_cell, end_cell;
    int64_t row, rows;    // of all rows of the result
    const float* origin;  // the first row's first pixel, at its first tap
    int64_t pixel_step, row_step;
  };

  Unit unit_of(int64_t unit, const float* input, const Memory& its) const {
    const int64_t part = unit % parts_, block = unit / parts_ % blocks_, plane = unit / parts_ / blocks_,
                  height = windows_.output[1];
    const int64_t first_row = height * block / blocks_, rows = height * (block + 1) / blocks_ - first_row;
    Unit its_own{cells_ * part / parts_, cells_ * (part + 1) / parts_, plane * height + first_row, rows, its.image, 0, 0};
    const int64_t inputs = groups_ * inputs_, channel = its_own.first_cell * cell_inputs_;
    const int64_t channels = std::min(its_own.end_cell * cell_inputs_, inputs) - channel;
    const int64_t step = is_in_place_ ? inputs : channels;
    if (is_in_place_) {
      its_own.origin = input + first_pixel(plane, first_row) * inputs + channel;
    } else {
      copy(plane, first_row, lines_of(rows), input + channel, channels, its.image);
    }
    its_own.pixel_step = windows_.strides[2] * step;
    its_own.row_step = windows_.strides[1] * (is_in_place_ ? windows_.input[2] : reach(2)) * step;
    for (size_t i = 0; i < taps_.size(); i++) its.taps[i] = taps_[i] * step;
    return its_own;
  }

  void run_unit(int64_t number, const float* input, const float* packed, float* result, const Epilogue* after,
                const Memory& its) const {
    const auto& output = windows_.output;
    const Unit unit = unit_of(number, input, its);
    const int64_t outputs = groups_ * outputs_, cell_outputs = is_narrow_ ? kLanes : outputs_;
    const int64_t tiles = parts_of(output[2], kMostPixels), taps = static_cast<int64_t>(taps_.size());
    kernels::Tile tile{nullptr, unit.pixel_step, its.taps, taps, inputs_, nullptr, nullptr, outputs, 0};
    for (int64_t slice = unit.first_cell * slices_of_cell_; slice < unit.end_cell * slices_of_cell_; slice++) {
      const int64_t cell = slice / slices_of_cell_, column = cell * cell_outputs + slice % slices_of_cell_ * kLanes;
      tile.weights = packed + slice * slice_size();
      tile.columns = std::min(kLanes, std::min(outputs, (cell + 1) * cell_outputs) - column);
      for (int64_t i = 0; i < unit.rows; i++) {
        const float* line = unit.origin + i * unit.row_step + (cell - unit.first_cell) * cell_inputs_;
        for (int64_t t = 0; t < tiles; t++) {
          const int64_t begin = output[2] * t / tiles, count = output[2] * (t + 1) / tiles - begin;
          const int64_t pixel = (unit.row + i) * output[2] + begin;
          tile.image = line + begin * tile.pixel_step;
          tile.result = result + pixel * outputs + column;
          const bool is_nan = kernel_for(inputs_, is_narrow_, count)(tile);
          if (is_nan && pads_) run_inside(tile, pixel, count, its);
        }
      }
    }
    if (!after) return;
    const int64_t column = unit.first_cell * cell_outputs, end = std::min(unit.end_cell * cell_outputs, outputs);
    for (int64_t row = unit.row; row < unit.row + unit.rows; row++) {
      const int64_t pixel = row * output[2];
      kernels::finish(*after, result + pixel * outputs + column, outputs, pixel, output[2], column, end);
    }
  }

  void add_unit(int64_t number, const float* input, const float* gradient, float* sums, const Memory& its) const {
    const Unit unit = unit_of(number, input, its);
    const int64_t outputs = groups_ * outputs_, columns = windows_.kernel[2], taps = static_cast<int64_t>(taps_.size());
    kernels::Strip strip{nullptr,   unit.pixel_step,    unit.row_step, columns > 1 ? its.taps[1] : 0, nullptr, outputs, 0,
                         unit.rows, windows_.output[2], nullptr};
    for (int64_t cell = unit.first_cell; cell < unit.end_cell; cell++) {
      strip.gradient = gradient + unit.row * windows_.output[2] * outputs + cell * kLanes;
      strip.columns = std::min(kLanes, outputs - cell * kLanes);
      for (int64_t tap = 0, count = 0; tap < taps; tap += count) {
        count = std::min(columns - tap % columns, kMostSums / inputs_);  // of one row of the window
        strip.image = unit.origin + (cell - unit.first_cell) * kLanes + its.taps[tap];
        strip.sums = sums + cell * slice_size() + tap * inputs_ * kLanes;
        adding_for(inputs_, count)(strip);
      }
    }
  }

  // Again for each pixel, of the taps in the image alone.
  void run_inside(kernels::Tile tile, int64_t pixel, int64_t count, const Memory& its) const {
    const int64_t of_tap = inputs_ * kLanes;
    const auto kernel = kernel_for(inputs_, is_narrow_, 1);
    const float* const weights = tile.weights;
    tile.taps = its.inside, tile.weights = its.weights;
    for (int64_t i = 0; i < count; i++, tile.image += tile.pixel_step, tile.result += tile.result_step) {
      tile.tap_count = 0;
      Window(windows_, pixel + i).for_rows([&](int64_t, int64_t tap, int64_t taps) {
        for (int64_t end = tap + taps; tap < end; tap++, tile.tap_count++) {
          its.inside[tile.tap_count] = its.taps[tap];
          std::copy_n(weights + tap * of_tap, of_tap, its.weights + tile.tap_count * of_tap);
        }
      });
      kernel(tile);
    }
  }

  // The pixel of the image that the first tap of the first pixel of a row reads, where nothing lies beside the image.
  int64_t first_pixel(int64_t plane, int64_t row) const {
    const auto& w = windows_;
    const int64_t depth = plane / w.output[0] * w.input[0] + plane % w.output[0] * w.strides[0];
    return (depth * w.input[1] + row * w.strides[1]) * w.input[2];
  }

  // Of some channels: what the windows of some rows reach.
  void copy(int64_t plane, int64_t row, int64_t lines, const float* input, int64_t channels, float* image) const {
    const auto& w = windows_;
    const int64_t inputs = groups_ * inputs_, columns = reach(2), line_size = columns * channels;
    const int64_t begin = std::clamp<int64_t>(w.pads[2], 0, columns), end = std::clamp(w.input[2] + w.pads[2], begin, columns);
    for (int64_t a = 0; a < w.kernel[0]; a++) {
      const int64_t depth = plane % w.output[0] * w.strides[0] - w.pads[0] + a * w.dilations[0];
      for (int64_t i = 0; i < lines; i++) {
        const int64_t line = row * w.strides[1] - w.pads[1] + i;
        float* to = image + (a * lines_ + i) * line_size;
        if (depth < 0 || depth >= w.input[0] || line < 0 || line >= w.input[1]) {
          std::fill_n(to, line_size, 0.0f);
          continue;
        }
        const int64_t pixel = ((plane / w.output[0] * w.input[0] + depth) * w.input[1] + line) * w.input[2] + begin - w.pads[2];
        std::fill_n(to, begin * channels, 0.0f);
        std::fill_n(to + end * channels, (columns - end) * channels, 0.0f);
        kernels::copy_pixels(input + pixel * inputs, inputs, end - begin, channels, to + begin * channels);
      }
    }
  }

  Windows windows_;
  int64_t groups_, inputs_, outputs_;  // channels of a group
  bool is_narrow_;
  int threads_;
  // A cell is a group, or, where they are narrow, the groups of a vector: what is not divided.
  int64_t cells_, cell_inputs_, slices_of_cell_;  // a slice: the outputs of a vector
  int64_t parts_, blocks_;                        // of the cells, of the rows of a plane of the result
  bool pads_, is_in_place_;
  int64_t lines_, image_ = 0;  // of a plane that is copied, numbers of all such planes
  std::vector<int64_t> taps_;  // how many pixels they lie behind the first one
};

// Whether the kernel of this name, oneDNN's, is slower: its own for vectors of one group is (by 1.0 to 1.9 times) where most
// lanes have outputs here.
bool is_slower(const std::string& name, int64_t inputs, int64_t outputs) {
  constexpr int64_t kLeastLanes = 6;  // of the last vector
  if (is_slow_implementation(name)) return isa() != Isa::kNone;
  const bool fills_lanes = GroupedConv::is_narrow(inputs, outputs) || (outputs - 1) % kLanes + 1 >= kLeastLanes;
  return isa() == Isa::kAvx2 && name == "jit:avx2" && fills_lanes;
}

WeightSteps weight_steps(const ConvSpec& s) {
  const int64_t inputs = s.kernel[1], taps = s.taps();
  return s.weights_channels_last() ? WeightSteps{taps * inputs, 1, inputs} : WeightSteps{taps * inputs, taps, 1};
}

// The gradient to data is a convolution whose windows are turned round.
Windows turned(const Windows& w) {
  Windows t = w;
  std::swap(t.input, t.output);
  for (size_t axis = 0; axis < Windows::kAxes; axis++) t.pads[axis] = (w.kernel[axis] - 1) * w.dilations[axis] - w.pads[axis];
  return t;
}

class GroupedWeights final : public ConvAlgorithm {
 public:
  GroupedWeights(const ConvSpec& s, int threads)
      : conv_(s.windows(), s.groups, s.kernel[1], s.kernel[0] / s.groups, threads), steps_(weight_steps(s)) {}

  std::string name() const override { return kName; }
  size_t scratch_size() const override { return conv_.sums_scratch_size(); }
  bool multiplies_padding() const override { return conv_.pads(); }

  void run(const void* first, const void* second, void* result, Scratch& scratch) const override {
    conv_.run_sums(static_cast<const float*>(first), static_cast<const float*>(second), steps_, static_cast<float*>(result),
                   scratch);
  }

 private:
  GroupedConv conv_;
  WeightSteps steps_;
};

class GroupedAlgorithm final : public ConvAlgorithm {
 public:
  GroupedAlgorithm(const ConvSpec& s, int threads)
      : is_turned_(s.kind == ConvSpec::kBackwardData),
        conv_(is_turned_ ? turned(s.windows()) : s.windows(), s.groups, is_turned_ ? s.kernel[0] / s.groups : s.kernel[1],
              is_turned_ ? s.kernel[1] : s.kernel[0] / s.groups, threads),
        steps_(weight_steps(s)) {}

  std::string name() const override { return kName; }
  size_t scratch_size() const override { return aligned(conv_.packed_size()) + conv_.scratch_size(); }
  bool multiplies_padding() const override { return false; }

  void run(const void* first, const void* second, void* result, Scratch& scratch) const override {
    auto* packed = reinterpret_cast<float*>(scratch.take(conv_.packed_size()));
    conv_.pack(static_cast<const float*>(second), steps_, is_turned_, packed);
    conv_.run(static_cast<const float*>(first), packed, static_cast<float*>(result), nullptr, scratch);
  }

 private:
  bool is_turned_;
  GroupedConv conv_;
  WeightSteps steps_;
};

GroupedConv conv_of(const ProductSpec& s, int threads) {
  return {s.windows(), s.groups, s.input[1] / s.groups, s.channels / s.groups, threads};
}

class GroupedProduct final : public Operation {
 public:
  GroupedProduct(const ProductSpec& s, const thread_pool::Settings& settings)
      : spec_(s), conv_(conv_of(s, settings.threads_for(s.flops()))) {
    threads_ = settings.threads_for(s.flops());
    scratch_size_ = conv_.scratch_size();
    operand_bytes_ = s.operand_bytes(conv_.packed_size());
  }

  std::string name() const override { return kName; }

  void run(void* const* operands, Scratch& scratch) const override {
    const Epilogue after(spec_, operands);
    conv_.run(static_cast<const float*>(operands[0]), static_cast<const float*>(operands[1]), after.result, &after, scratch);
  }

 private:
  ProductSpec spec_;
  GroupedConv conv_;
};

class GroupedPack final : public Operation {
 public:
  explicit GroupedPack(const ProductSpec& s) : conv_(conv_of(s, 1)) {
    const int64_t inputs = s.input[1] / s.groups;
    steps_ = {static_cast<int64_t>(element_count(s.weights)) / s.channels, 1, inputs};
    operand_bytes_ = {element_count(s.weights) * sizeof(float), conv_.packed_size()};
  }

  std::string name() const override { return std::to_string(conv_.packed_size()); }

  void run(void* const* operands, Scratch&) const override {
    conv_.pack(static_cast<const float*>(operands[0]), steps_, false, static_cast<float*>(operands[1]));
  }

 private:
  GroupedConv conv_;
  WeightSteps steps_;
};

}  // namespace

bool is_for_grouped_conv(const ConvSpec& s, const std::string& name) {
  if (s.groups == 1 || !s.dtypes.are_float32()) return false;
  const int64_t inputs = s.kernel[1], outputs = s.kernel[0] / s.groups;
  if (s.kind == ConvSpec::kForward) return is_slower(name, inputs, outputs);
  if (s.kind == ConvSpec::kBackwardWeights) return GroupedConv::is_narrow(inputs, outputs) && is_slower(name, inputs, outputs);
  return std::all_of(s.strides.begin(), s.strides.end(), [](int64_t stride) { return stride == 1; }) &&
         is_slower(name, outputs, inputs);
}

std::unique_ptr<ConvAlgorithm> make_grouped_conv(const ConvSpec& spec, int threads) {
  if (spec.kind == ConvSpec::kBackwardWeights) return std::make_unique<GroupedWeights>(spec, threads);
  return std::make_unique<GroupedAlgorithm>(spec, threads);
}

bool is_for_grouped_conv(const ProductSpec& s, const std::string& name) {
  return s.is_conv && s.groups > 1 && s.is_float32() && is_slower(name, s.input[1] / s.groups, s.channels / s.groups);
}

std::unique_ptr<Operation> make_grouped_product(const ProductSpec& spec, const thread_pool::Settings& settings) {
  return std::make_unique<GroupedProduct>(spec, settings);
}

std::unique_ptr<Operation> make_grouped_product_pack(const ProductSpec& spec) { return std::make_unique<GroupedPack>(spec); }

}  // namespace native
