#include "depthwise.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "elements.h"

namespace native {

namespace {

#include "avx512_begin.h"

// Adds the products of one pixel of the output's gradient with pixels of the input to the sums at their positions, rows of `width`.
template <bool kXBf16, bool kYBf16>
void add_products(const void* input, const void* gradient, int64_t channels, int64_t width, int64_t begin, int64_t end,
                  const int64_t* pixels, const int* positions, int count, float* sums) {
  using X = Elements<kXBf16>;
  using Y = Elements<kYBf16>;
  const auto* x = static_cast<const typename X::Number*>(input);
  const auto* dy = static_cast<const typename Y::Number*>(gradient);
  for (int64_t c = begin; c < end; c += 16) {
    const __mmask16 mask = mask_at(c, channels);
    const __m512 g = Y::load(dy + c, mask);
    for (int i = 0; i < count; i++) {
      float* sum = sums + positions[i] * width + c;
      _mm512_storeu_ps(sum, _mm512_fmadd_ps(X::load(x + pixels[i] * channels + c, mask), g, _mm512_loadu_ps(sum)));
    }
  }
}

// From rows of `width` to columns, for some of the channels.
template <bool kBf16>
void turn(const float* sums, int64_t width, int64_t taps, int64_t begin, int64_t end, void* result) {
  using To = Elements<kBf16>;
  auto* to = static_cast<typename To::Number*>(result);
  for (int64_t c = begin; c < end; c++) {
    for (int64_t tap = 0; tap < taps; tap++) To::store(to + c * taps + tap, 1, _mm512_set1_ps(sums[tap * width + c]));
  }
}

#include "avx512_end.h"

}  // namespace

bool DepthwiseWeights::takes(const ConvSpec& s) {
  constexpr int64_t kFewest = 8;  // channels, of the 16 in a vector
  if (s.kind != ConvSpec::kBackwardWeights || !s.window_exceeds_image() || s.taps() > Windows::kMostPositions) return false;
  if (s.groups < kFewest || s.groups != s.input[1] || s.groups != s.output[1]) return false;
  return has_avx512(std::any_of(s.dtypes.operands, s.dtypes.operands + 3, [](dt type) { return type == dt::bf16; }));
}

DepthwiseWeights::DepthwiseWeights(const ConvSpec& s, int threads)
    : threads_(threads), windows_(s.windows()), channels_(s.groups), width_((s.groups + 15) / 16 * 16), taps_(s.taps()) {
  std::copy_n(s.dtypes.operands, 3, types_);
}

void DepthwiseWeights::run(const void* input, const void* gradient, void* result, Scratch& scratch) const {
  auto* sums = reinterpret_cast<float*>(scratch.take(matrix()));
  const bool x_bf16 = types_[0] == dt::bf16, y_bf16 = types_[1] == dt::bf16;
  const auto add = x_bf16 ? (y_bf16 ? add_products<true, true> : add_products<true, false>)
                          : (y_bf16 ? add_products<false, true> : add_products<false, false>);
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
    const auto write = types_[2] == dt::bf16 ? turn<true> : turn<false>;
    write(sums, width_, taps_, begin, std::min(end, channels_), result);
  });
}

}  // namespace native
