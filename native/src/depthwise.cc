#include "depthwise.h"

#include <algorithm>
#include <cstring>

#include "vectors.h"

namespace native {

namespace {

using Add = void(const void* input, const void* gradient, int64_t channels, int64_t width, int64_t begin, int64_t end,
                 const int64_t* pixels, const int* positions, int count, float* sums);
using Write = void(const float* sums, int64_t width, int64_t taps, int64_t begin, int64_t end, void* result);

#define KERNELS "depthwise_kernels.h"
#include "each_isa.h"

}  // namespace

bool DepthwiseWeights::takes(const ConvSpec& s) {
  constexpr int64_t kFewest = 8;  // channels, of the 16 in a vector
  if (s.kind != ConvSpec::kBackwardWeights || !s.window_exceeds_image() || s.taps() > Windows::kMostPositions) return false;
  if (s.groups < kFewest || s.groups != s.input[1] || s.groups != s.output[1]) return false;
  return runs_kernels(std::any_of(s.dtypes.operands, s.dtypes.operands + 3, [](dt type) { return type == dt::bf16; }));
}

DepthwiseWeights::DepthwiseWeights(const ConvSpec& s, int threads)
    : threads_(threads), windows_(s.windows()), channels_(s.groups), width_((s.groups + 15) / 16 * 16), taps_(s.taps()) {
  std::copy_n(s.dtypes.operands, 3, types_);
}

void DepthwiseWeights::run(const void* input, const void* gradient, void* result, Scratch& scratch) const {
  auto* sums = reinterpret_cast<float*>(scratch.take(matrix()));
  const auto add = for_this_cpu(avx2::choose_add, avx512::choose_add)(types_[0] == dt::bf16, types_[1] == dt::bf16);
  const auto write = for_this_cpu(avx2::choose_write, avx512::choose_write)(types_[2] == dt::bf16);
  const int64_t rows = windows_.samples * windows_.output[0] * windows_.output[1];
  const size_t pixel_bytes = static_cast<size_t>(channels_) * bytes_of(types_[1]);
  thread_pool::parallel_for(width_ / 16, threads_, [&](int64_t first, int64_t last) {  // of the channels
    const int64_t begin = 16 * first, end = 16 * last;
    for (int64_t tap = 0; tap < taps_; tap++) {
      std::memset(sums + tap * width_ + begin, 0, static_cast<size_t>(end - begin) * sizeof(float));
    }
    for_pixels(windows_, true, 0, rows, [&](int64_t pixel, const int64_t* pixels, const int* positions, int count) {
      const auto* dy = static_cast<const char*>(gradient) + static_cast<size_t>(pixel) * pixel_bytes;
      add(input, dy, channels_, width_, begin, end, pixels, positions, count, sums);
    });
    write(sums, width_, taps_, begin, std::min(end, channels_), result);
  });
}

}  // namespace native
