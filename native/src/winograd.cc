// Tiles of the input are transformed, multiplied with transformed weights, one matrix product for each of the 16 places of a
// tile, and the sums are transformed into 2 x 2 pixels of the result. All is done for so few tiles at a time that they stay in a cache.
//
// Tiles of 4 x 4 pixels would need less arithmetic, but are off by three to six times as much, and round where direct sums are exact:
// sums of small whole numbers, and zeros.
//
// Weights are packed into panels of two vectors of output channels, missing ones zeros: first all transformed ones, [panel][place][input
// channel][output channel], then the weights themselves, [panel][tap][input channel][output channel]. With these, a tile is computed directly where a
// result is not finite: a tile mixes its values, so that an infinity makes NaNs of results that it has no part in.

#include "winograd.h"

#include <algorithm>
#include <utility>

#include "vectors.h"

namespace native {

namespace {

constexpr int64_t kTaps = 9, kVectors = 2;  // of a panel
constexpr int kSize = 2, kSide = 4, kPlaces = 16;  // pixels of a tile's result and of what it reads, in a row; and numbers

int64_t panel_width() { return kVectors * lanes(); }
int64_t panels_of(const ProductSpec& s) { return (s.channels + panel_width() - 1) / panel_width(); }

// The tiles of all images.
struct Tiles {
  int64_t down, across, count;

  explicit Tiles(const ProductSpec& s)
      : down((s.output[2] + kSize - 1) / kSize), across((s.output[3] + kSize - 1) / kSize), count(s.output[0] * down * across) {}
};

size_t packed_bytes(const ProductSpec& s) {
  return static_cast<size_t>(panels_of(s) * panel_width() * s.input[1] * (kPlaces + kTaps)) * sizeof(float);
}

struct Call {
  const Tiles& tiles;
  const float *data, *weights;
  Epilogue after;
  const float* zeros;  // as many as a pixel has channels
  int64_t place_step;  // between numbers of a transformed tile
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
  void (*transform_tile)(const Call&, int64_t tile, int64_t begin, int64_t end, float* to);
  // Of i + 1 tiles, up to `most_rows`.
  void (*multiply[8])(const float* tiles, int64_t step, const float* weights, int64_t depth, const float* ahead, float* to);
  void (*write_tile)(const Call&, int64_t tile, int64_t panel, const float* sums, int64_t step);
  void (*pack_panels)(const ProductSpec&, const float* weights, float* packed, int64_t begin, int64_t end);
};

#define KERNELS "winograd_kernels.h"
#include "each_isa.h"

class Winograd final : public Operation {
 public:
  Winograd(const ProductSpec& s, const thread_pool::Settings& settings) : spec_(s), tiles_(s) {
    threads_ = settings.threads_for(s.flops());
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
    const size_t threads = static_cast<size_t>(threads_);
    scratch_size_ = aligned(zeros_bytes_) + (is_shared_ ? 1 : threads) * tiles_bytes_ + threads * sums_bytes_;
    operand_bytes_ = s.operand_bytes(packed_bytes(s));
  }

  std::string name() const override { return "winograd"; }

  void run(void* const* operands, Scratch& scratch) const override {
    const auto array = [&](int i) { return static_cast<const float*>(operands[i]); };
    char* zeros = scratch.take(zeros_bytes_);
    std::fill_n(zeros, zeros_bytes_, 0);
    const Call call{tiles_, array(0), array(1), {spec_, operands}, reinterpret_cast<const float*>(zeros), place_step_};
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
          for (int64_t i = 0; i < count; i++) kernels_.transform_tile(call, begin + i, 0, depth, mine + i * tile_step_);
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
          kernels_.transform_tile(call, begin + tile, 16 * first, std::min(16 * next, depth), shared + tile * tile_step_);
          at += next - first;
        }
      });
      // panels, or parts of them where there are more threads
      const int64_t parts = std::clamp((threads_ + panels - 1) / panels, int64_t{1}, (count + kernels_.most_rows - 1) / kernels_.most_rows);
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
  void multiply_panel(const Call& call, int64_t begin, int64_t count, int64_t panel, const float* transformed, float* sums) const {
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
    for (int64_t i = 0; i < count; i++) kernels_.write_tile(call, begin + i, panel, sums + i * width, sums_step);
  }

  ProductSpec spec_;
  Tiles tiles_;
  bool is_shared_;  // by threads, which take some of the panels each; else they take some of the tiles
  int64_t block_;   // tiles that are computed at a time
  int64_t tile_step_, place_step_;
  size_t zeros_bytes_, tiles_bytes_, sums_bytes_;
  const Kernels& kernels_ = for_this_cpu(avx2::kKernels, avx512::kKernels);
};

class WinogradPack final : public Operation {
 public:
  WinogradPack(const ProductSpec& s, const thread_pool::Settings& settings) : spec_(s) {
    threads_ = settings.threads_for(s.flops());
    operand_bytes_ = {element_count(s.weights) * sizeof(float), packed_bytes(s)};
  }

  std::string name() const override { return std::to_string(packed_bytes(spec_)); }

  void run(void* const* operands, Scratch&) const override {
    const auto* weights = static_cast<const float*>(operands[0]);
    auto* packed = static_cast<float*>(operands[1]);
    const auto pack_panels = for_this_cpu(avx2::kKernels, avx512::kKernels).pack_panels;
    const auto pack = [&](int64_t begin, int64_t end) { pack_panels(spec_, weights, packed, begin, end); };
    if (threads_ == 1) return pack(0, panels_of(spec_));
    thread_pool::parallel_for(panels_of(spec_), threads_, pack);
  }

 private:
  ProductSpec spec_;
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

std::unique_ptr<Operation> make_winograd(const ProductSpec& spec, const thread_pool::Settings& settings) {
  return std::make_unique<Winograd>(spec, settings);
}

std::unique_ptr<Operation> make_winograd_pack(const ProductSpec& spec, const thread_pool::Settings& settings) {
  return std::make_unique<WinogradPack>(spec, settings);
}

}  // namespace native
