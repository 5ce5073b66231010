// Tiles of the input are transformed, multiplied with transformed weights, one matrix product for each of the 16 places of a
// tile, and the sums are transformed into 2 x 2 pixels of the result. All is done for so few tiles at a time that they stay in a
// cache.
//
// Tiles of 4 x 4 pixels would need less arithmetic, but are off by three to six times as much, and round where direct sums are
// exact: sums of small whole numbers, and zeros.
//
// Gradients to weights are the transpose of that: of each place of a tile, a product over all tiles.
//
// A tile mixes its values, so that an infinity makes NaNs of results that it has no part in. Where a result is not finite, the
// tile is computed directly in products with packed weights, and all of the convolution where weights are packed in each
// call.
//
// Weights are packed into panels of two vectors of output channels, missing ones zeros: first all transformed ones,
// [panel][place][input channel][output channel], then, for products with packed weights, the weights themselves,
// [panel][tap][input channel][output channel].

#include "winograd.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "vectors.h"

namespace native {

namespace {

constexpr int64_t kTaps = 9, kVectors = 2;  // of a panel
constexpr auto* kName = "winograd";
constexpr int kSize = 2, kSide = 4, kPlaces = 16;  // pixels of a tile's result and of what it reads, in a row; and numbers

int64_t panel_width() { return kVectors * lanes(); }
int64_t panels_of(const ProductSpec& s) { return (s.channels + panel_width() - 1) / panel_width(); }

// The tiles of all images.
struct Tiles {
  int64_t down, across, count;

  explicit Tiles(const ProductSpec& s)
      : down((s.output[2] + kSize - 1) / kSize), across((s.output[3] + kSize - 1) / kSize), count(s.output[0] * down * across) {}
};

size_t packed_bytes(const ProductSpec& s, int64_t numbers) {  // of each pair of channels
  return static_cast<size_t>(panels_of(s) * panel_width() * s.input[1] * numbers) * sizeof(float);
}

// Weights in memory: where the first one is, and how far others lie behind it.
struct Weights {
  const float* first;
  int64_t output_step, input_step, tap_step;
};

struct Call {
  const Tiles& tiles;
  const float *data, *weights;
  Epilogue after;                  // without an offset: null
  std::atomic<bool>* is_infinite;  // is set where a result is not finite; null: it is computed directly
  const float* zeros;              // as many as a pixel has channels
  int64_t tile_step, place_step;   // between transformed tiles, and numbers of one
  const ProductSpec& spec() const { return after.spec; }
};

// Where a tile's result begins; rows and columns of the result that it has.
struct Place {
  int64_t sample, row, column, rows, columns;

  Place(const Call& call, int64_t tile) {
    const Tiles& t = call.tiles;
    sample = tile / (t.down * t.across);
    row = tile / t.across % t.down * kSize, column = tile % t.across * kSize;
    const dims& output = call.spec().output;
    bound(output);
  }

  void advance(const Call& call) {  // to the next tile
    const dims& output = call.spec().output;
    column += kSize;
    if (column >= output[3]) column = 0, row += kSize;
    if (row >= output[2]) row = 0, sample++;
    bound(output);
  }

 private:
  void bound(const dims& output) {
    rows = std::min<int64_t>(kSize, output[2] - row), columns = std::min<int64_t>(kSize, output[3] - column);
  }
};

// The pixel of the input that is multiplied with the first tap for a pixel of the result; null beside the image.
inline const float* pixel_at(const Call& call, int64_t sample, int64_t row, int64_t column) {
  const ProductSpec& s = call.spec();
  row -= s.pad_low[0], column -= s.pad_low[1];
  if (row < 0 || row >= s.input[2] || column < 0 || column >= s.input[3]) return nullptr;
  return call.data + ((sample * s.input[2] + row) * s.input[3] + column) * s.input[1];
}

struct Kernels {
  int64_t most_rows;
  void (*transform_tiles)(const Call&, int64_t tile, int64_t count, int64_t begin, int64_t end, float* to);
  // Of i + 1 tiles, up to `most_rows`.
  void (*multiply[8])(const float* tiles, int64_t step, const float* weights, int64_t depth, const float* ahead, float* to);
  void (*write_tiles)(const Call&, int64_t tile, int64_t count, int64_t panel, const float* sums, int64_t step);
  // `direct`: whether the weights themselves follow.
  void (*pack_panels)(const ProductSpec&, const Weights&, float* packed, bool direct, int64_t begin, int64_t end);
  void (*transform_gradients)(const Call&, int64_t tile, int64_t count, float* to);
  // Of i + 1 columns, up to `most_rows`.
  void (*add_products[8])(const float* left, int64_t left_step, const float* right, int64_t right_step, int64_t rows,
                          bool is_first, float* to, int64_t to_step);
  bool (*write_weights)(const float* sums, int64_t place_step, int64_t inputs, int64_t input_step, int64_t tap_step, float* to);
};

#define KERNELS "winograd_kernels.h"
#include "each_isa.h"

const Kernels& kernels() { return for_this_cpu(avx2::kKernels, avx512::kKernels); }

void pack(const ProductSpec& s, const Weights& weights, float* packed, bool direct, int threads) {
  thread_pool::parallel_for(panels_of(s), threads,
                            [&](int64_t begin, int64_t end) { kernels().pack_panels(s, weights, packed, direct, begin, end); });
}

// How tiles and panels are shared by threads, and computed.
class Filtering {
 public:
  Filtering(const ProductSpec& s, int threads) : spec_(s), tiles_(s), threads_(threads) {
    // Threads share transformed tiles where these are few, or weights so many that all of them should not go through each cache.
    constexpr int64_t kLeast = 8, kMost = 64, kSharedMost = 96, kCache = 1 << 19, kFewWeights = 1 << 20;
    const int64_t depth = s.input[1], tile_bytes = kPlaces * depth * 4;
    is_shared_ = threads_ > 1 && (tiles_.count < 16 * threads_ || tile_bytes * s.channels > kFewWeights);
    const int64_t most = is_shared_ ? kSharedMost : std::clamp(kCache / tile_bytes / kLeast * kLeast, kLeast, kMost);
    const int64_t share = is_shared_ ? tiles_.count : (tiles_.count + threads_ - 1) / threads_;
    const int64_t blocks = (share + most - 1) / most;
    block_ = ((share + blocks - 1) / blocks + kLeast - 1) / kLeast * kLeast;
    tile_step_ = (depth + 15) / 16 * 16 + 16, place_step_ = block_ * tile_step_ + 16;
    zeros_bytes_ = static_cast<size_t>(tile_step_) * 4;
    tiles_bytes_ = aligned(static_cast<size_t>(kPlaces * place_step_) * 4);
    sums_bytes_ = aligned(static_cast<size_t>(kPlaces * (block_ * panel_width() + 16)) * 4);
  }

  size_t scratch_size() const {
    const size_t several = static_cast<size_t>(threads_);
    return aligned(zeros_bytes_) + (is_shared_ ? 1 : several) * tiles_bytes_ + several * sums_bytes_;
  }

  void run(const float* data, const float* weights, const Epilogue& after, std::atomic<bool>* is_infinite,
           Scratch& scratch) const {
    char* zeros = scratch.take(zeros_bytes_);
    std::fill_n(zeros, zeros_bytes_, 0);
    const Call call{tiles_, data, weights, after, is_infinite, reinterpret_cast<const float*>(zeros), tile_step_, place_step_};
    char* transformed = scratch.take((is_shared_ ? 1 : static_cast<size_t>(threads_)) * tiles_bytes_);
    char* sums = scratch.take(static_cast<size_t>(threads_) * sums_bytes_);
    compute(call, transformed, sums);
  }

 private:
  void compute(const Call& call, char* transformed, char* sums) const {
    const auto of_thread = [](char* all, int64_t thread, size_t bytes) {
      return reinterpret_cast<float*>(all + static_cast<size_t>(thread) * bytes);
    };
    const int64_t depth = spec_.input[1], panels = panels_of(spec_);
    if (!is_shared_) {
      return thread_pool::on_threads(threads_, [&](int64_t thread) {
        float *mine = of_thread(transformed, thread, tiles_bytes_), *my_sums = of_thread(sums, thread, sums_bytes_);
        const int64_t end = tiles_.count * (thread + 1) / threads_;
        for (int64_t begin = tiles_.count * thread / threads_; begin < end; begin += block_) {
          const int64_t count = std::min(block_, end - begin);
          kernels_.transform_tiles(call, begin, count, 0, depth, mine);
          for (int64_t panel = 0; panel < panels; panel++) multiply_panel(call, begin, count, panel, mine, my_sums);
        }
      });
    }
    auto* shared = reinterpret_cast<float*>(transformed);
    const int64_t vectors = (depth + 15) / 16;
    for (int64_t begin = 0; begin < tiles_.count; begin += block_) {
      const int64_t count = std::min(block_, tiles_.count - begin);
      thread_pool::on_threads(threads_, [&](int64_t thread) {
        const int64_t last = count * vectors * (thread + 1) / threads_;
        for (int64_t at = count * vectors * thread / threads_; at < last;) {
          const int64_t tile = at / vectors, first = at % vectors, next = std::min(vectors, first + last - at);
          kernels_.transform_tiles(call, begin + tile, 1, 16 * first, std::min(16 * next, depth), shared + tile * tile_step_);
          at += next - first;
        }
      });
      // panels, or parts of them where there are more threads
      const int64_t parts =
          std::clamp((threads_ + panels - 1) / panels, int64_t{1}, (count + kernels_.most_rows - 1) / kernels_.most_rows);
      thread_pool::on_threads(threads_, [&](int64_t thread) {
        const int64_t last = panels * parts * (thread + 1) / threads_;
        for (int64_t at = panels * parts * thread / threads_; at < last; at++) {
          const int64_t first = count * (at % parts) / parts, next = count * (at % parts + 1) / parts;
          multiply_panel(call, begin + first, next - first, at / parts, shared + first * tile_step_,
                         of_thread(sums, thread, sums_bytes_));
        }
      });
    }
  }

  // Of so many tiles from `begin` on.
  void multiply_panel(const Call& call, int64_t begin, int64_t count, int64_t panel, const float* transformed,
                      float* sums) const {
    const int64_t depth = spec_.input[1], width = panel_width(), sums_step = block_ * width + 16;
    const int64_t groups = (count + kernels_.most_rows - 1) / kernels_.most_rows;
    const float* weights = call.weights + panel * kPlaces * depth * width;
    for (int64_t place = 0; place < kPlaces; place++, weights += depth * width) {
      for (int64_t g = 0; g < groups; g++) {
        const int64_t first = count * g / groups, next = count * (g + 1) / groups;
        kernels_.multiply[next - first - 1](transformed + place * place_step_ + first * tile_step_, tile_step_, weights, depth,
                                            g == 0 ? weights + depth * width : nullptr, sums + place * sums_step + first * width);
      }
    }
    kernels_.write_tiles(call, begin, count, panel, sums, sums_step);
  }

  ProductSpec spec_;
  Tiles tiles_;
  int threads_;
  bool is_shared_;  // by threads, which take some of the panels each; else they take some of the tiles
  int64_t block_;   // tiles that are computed at a time
  int64_t tile_step_, place_step_;
  size_t zeros_bytes_, tiles_bytes_, sums_bytes_;
  const Kernels& kernels_ = kernels();
};

// With weights that were packed before.
class Winograd final : public Operation {
 public:
  Winograd(const ProductSpec& s, const thread_pool::Settings& settings)
      : spec_(s), filtering_(s, settings.threads_for(s.flops())) {
    threads_ = settings.threads_for(s.flops());
    scratch_size_ = filtering_.scratch_size();
    operand_bytes_ = s.operand_bytes(packed_bytes(s, kPlaces + kTaps));
  }

  std::string name() const override { return kName; }

  void run(void* const* operands, Scratch& scratch) const override {
    const auto array = [&](int i) { return static_cast<const float*>(operands[i]); };
    filtering_.run(array(0), array(1), {spec_, operands}, nullptr, scratch);
  }

 private:
  ProductSpec spec_;
  Filtering filtering_;
};

class WinogradPack final : public Operation {
 public:
  WinogradPack(const ProductSpec& s, const thread_pool::Settings& settings) : spec_(s) {
    threads_ = settings.threads_for(s.flops());
    operand_bytes_ = {element_count(s.weights) * sizeof(float), packed_bytes(s, kPlaces + kTaps)};
  }

  std::string name() const override { return std::to_string(operand_bytes_[1]); }

  void run(void* const* operands, Scratch&) const override {
    const int64_t depth = spec_.input[1];
    const Weights weights{static_cast<const float*>(operands[0]), kTaps * depth, 1, depth};
    pack(spec_, weights, static_cast<float*>(operands[1]), true, threads_);
  }

 private:
  ProductSpec spec_;
};

// The convolution that computes a call: the gradient to the data is one of the output's gradient, with the window turned round.
ConvGeometry computed(const ConvSpec& s) {
  ConvGeometry made = s;
  if (s.kind != ConvSpec::kBackwardData) return made;
  made.input = s.output, made.output = s.input, made.kernel = {s.kernel[1], s.kernel[0], s.kernel[2], s.kernel[3]};
  for (int i = 0; i < 2; i++) made.pad_low[i] = 2 - s.pad_low[i], made.pad_high[i] = 2 - s.pad_high[i];
  return made;
}

// What those of training steps have in common.
class InTiles : public ConvAlgorithm {
 public:
  InTiles(const ConvSpec& s, int threads, RunDirectly run_directly)
      : conv_(s), spec_(computed(s)), threads_(threads), run_directly_(std::move(run_directly)) {}

  std::string name() const override { return kName; }
  bool multiplies_padding() const override { return false; }

 protected:
  ConvSpec conv_;
  ProductSpec spec_;
  int threads_;
  RunDirectly run_directly_;
};

class WinogradConv final : public InTiles {
 public:
  WinogradConv(const ConvSpec& s, int threads, RunDirectly run_directly)
      : InTiles(s, threads, std::move(run_directly)), filtering_(spec_, threads) {}

  size_t scratch_size() const override { return aligned(packed_bytes(spec_, kPlaces)) + filtering_.scratch_size(); }

  void run(const void* first, const void* second, void* result, Scratch& scratch) const override {
    auto* packed = reinterpret_cast<float*>(scratch.take(packed_bytes(spec_, kPlaces)));
    pack(spec_, weights(static_cast<const float*>(second)), packed, false, threads_);
    void* const operands[] = {nullptr, nullptr, nullptr, result};
    std::atomic<bool> is_infinite{false};
    filtering_.run(static_cast<const float*>(first), packed, {spec_, operands}, &is_infinite, scratch);
    if (is_infinite) run_directly_(first, second, result);
  }

 private:
  Weights weights(const float* w) const {
    const int64_t inputs = conv_.kernel[1];
    const bool channels_last = conv_.weights_channels_last();
    const int64_t of_output = kTaps * inputs, of_input = channels_last ? 1 : kTaps, of_tap = channels_last ? inputs : 1;
    if (conv_.kind == ConvSpec::kForward) return {w, of_output, of_input, of_tap};
    return {w + (kTaps - 1) * of_tap, of_input, of_output, -of_tap};
  }

  Filtering filtering_;
};

// The gradient to the weights: that to transformed weights is, place by place, a product over all tiles of the transformed
// gradient and the transformed data.
class WinogradWeights final : public InTiles {
 public:
  WinogradWeights(const ConvSpec& s, int threads, RunDirectly run_directly)
      : InTiles(s, threads, std::move(run_directly)), tiles_(spec_), inputs_(s.kernel[1]), outputs_(s.kernel[0]) {
    constexpr int64_t kMost = 128;
    const int64_t blocks = (tiles_.count + kMost - 1) / kMost;
    block_ = (tiles_.count + blocks - 1) / blocks;
    width_ = (inputs_ + panel_width() - 1) / panel_width() * panel_width();
    data_step_ = width_ + 16, gradient_step_ = (outputs_ + 15) / 16 * 16 + 16;
    data_place_ = block_ * data_step_ + 16, gradient_place_ = block_ * gradient_step_ + 16;
  }

  size_t scratch_size() const override {
    size_t size = 0;
    for (const int64_t count : counts()) size += aligned(static_cast<size_t>(count) * sizeof(float));
    return size;
  }

  void run(const void* input, const void* gradient, void* result, Scratch& scratch) const override {
    const auto take = [&](int i) {
      return reinterpret_cast<float*>(scratch.take(static_cast<size_t>(counts()[i]) * sizeof(float)));
    };
    float *const data = take(0), *const gradients = take(1), *const sums = take(2), *const zeros = take(3);
    std::fill_n(zeros, counts()[3], 0.0f);
    if (width_ != inputs_) std::fill_n(data, counts()[0], 0.0f);  // columns beyond the channels
    void* const operands[] = {nullptr, nullptr, nullptr, nullptr};
    const Epilogue nothing{spec_, operands};
    const Call of_data{tiles_, static_cast<const float*>(input), nullptr, nothing, nullptr, zeros, data_step_, data_place_};
    const Call of_gradient{tiles_,         static_cast<const float*>(gradient), nullptr, nothing, nullptr, zeros, gradient_step_,
                           gradient_place_};
    for (int64_t begin = 0; begin < tiles_.count; begin += block_) {
      const int64_t count = std::min(block_, tiles_.count - begin);
      thread_pool::parallel_for(count, threads_, [&](int64_t first, int64_t end) {
        kernels_.transform_tiles(of_data, begin + first, end - first, 0, inputs_, data + first * data_step_);
        kernels_.transform_gradients(of_gradient, begin + first, end - first, gradients + first * gradient_step_);
      });
      add_block(data, gradients, count, begin == 0, sums);
    }
    if (!write(sums, static_cast<float*>(result))) run_directly_(input, gradient, result);
  }

 private:
  // Transformed data, transformed gradients, sums, zeros.
  std::array<int64_t, 4> counts() const {
    return {kPlaces * data_place_, kPlaces * gradient_place_, kPlaces * outputs_ * width_, std::max(data_step_, gradient_step_)};
  }

  void add_block(const float* data, const float* gradients, int64_t count, bool is_first, float* sums) const {
    const int64_t groups = (outputs_ + kernels_.most_rows - 1) / kernels_.most_rows;
    thread_pool::parallel_for(kPlaces * groups, threads_, [&](int64_t unit, int64_t end) {
      for (; unit < end; unit++) {
        const int64_t place = unit / groups, group = unit % groups;
        const int64_t first = outputs_ * group / groups, next = outputs_ * (group + 1) / groups;
        for (int64_t column = 0; column < width_; column += panel_width()) {
          kernels_.add_products[next - first - 1](gradients + place * gradient_place_ + first, gradient_step_,
                                                  data + place * data_place_ + column, data_step_, count, is_first,
                                                  sums + (place * outputs_ + first) * width_ + column, width_);
        }
      }
    });
  }

  bool write(const float* sums, float* result) const {
    const bool channels_last = conv_.weights_channels_last();
    std::atomic<bool> is_finite{true};
    thread_pool::parallel_for(outputs_, threads_, [&](int64_t output, int64_t end) {
      for (; output < end; output++) {
        if (!kernels_.write_weights(sums + output * width_, outputs_ * width_, inputs_, channels_last ? 1 : kTaps,
                                    channels_last ? inputs_ : 1, result + output * kTaps * inputs_)) {
          is_finite.store(false, std::memory_order_relaxed);
        }
      }
    });
    return is_finite;
  }

  Tiles tiles_;
  int64_t inputs_, outputs_;
  int64_t block_;  // tiles that are computed at a time
  int64_t width_;  // inputs, padded to whole panels
  int64_t data_step_, gradient_step_, data_place_, gradient_place_;
  const Kernels& kernels_ = kernels();
};

}  // namespace

bool is_for_winograd(const ProductSpec& s) {
  constexpr int64_t kLeastChannels = 16, kMostChannels = 1 << 14, kLeastTiles = 4;
  if (!runs_kernels(false) || s.input_type != dt::f32 || s.output_type != dt::f32 || !s.is_conv || s.groups != 1) return false;
  if (s.input.size() != 4 || s.weights[2] != 3 || s.weights[3] != 3) return false;
  for (int i = 0; i < 2; i++) {
    if (s.strides[i] != 1 || s.dilations[i] != 0) return false;
    if (s.input[2 + i] == 1) return false;  // most taps lie beside the image, and oneDNN leaves them out
  }
  const auto [least, most] = std::minmax(s.input[1], s.channels);
  return least >= kLeastChannels && most <= kMostChannels && Tiles(s).count >= kLeastTiles;
}

bool is_for_winograd(const ConvSpec& s) {
  if (s.flags & (ConvSpec::kAlwaysDirect | ConvSpec::kAlwaysIm2col | ConvSpec::kAlwaysRows)) return false;
  if (s.dtypes.compute != dt::f32 || s.n != 2 || s.kernel[2] != 3 || s.kernel[3] != 3 || s.groups != 1) return false;
  for (int i = 0; i < 2; i++) {
    if (std::max(s.pad_low[i], s.pad_high[i]) > 2) return false;
  }
  // Measured without AVX-512. Weights, or their gradients, are transformed once for all tiles, and gradients to many filters are
  // fast as products of matrices; of few pixels, oneDNN leaves out many taps beside the image.
  constexpr int64_t kManyFilters = 256, kFewPixels = 16, kMostWeights = 1 << 20;  // of each tap; 64 MB when they are transformed
  const bool is_avx2 = isa() == Isa::kAvx2, is_of_weights = s.kind == ConvSpec::kBackwardWeights;
  if ((is_of_weights && !is_avx2) || s.kernel[0] * s.kernel[1] > kMostWeights) return false;
  const int64_t least_channels = is_avx2 ? 32 : 64;
  const int64_t least_tiles = !is_avx2 ? 256 : is_of_weights && s.kernel[0] >= kManyFilters ? 96 : 24;
  const ProductSpec spec(computed(s));
  return is_for_winograd(spec) && Tiles(spec).count >= least_tiles && std::min(s.kernel[0], s.kernel[1]) >= least_channels &&
         spec.output[2] * spec.output[3] > kFewPixels;
}

std::unique_ptr<Operation> make_winograd(const ProductSpec& spec, const thread_pool::Settings& settings) {
  return std::make_unique<Winograd>(spec, settings);
}

std::unique_ptr<ConvAlgorithm> make_winograd(const ConvSpec& spec, int threads, RunDirectly run_directly) {
  if (spec.kind == ConvSpec::kBackwardWeights) return std::make_unique<WinogradWeights>(spec, threads, std::move(run_directly));
  return std::make_unique<WinogradConv>(spec, threads, std::move(run_directly));
}

std::unique_ptr<Operation> make_winograd_pack(const ProductSpec& spec, const thread_pool::Settings& settings) {
  return std::make_unique<WinogradPack>(spec, settings);
}

}  // namespace native
