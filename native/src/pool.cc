// Max pooling of training steps, channels last. The specs are written by oneflow/ops/_native_pool.py.
//
//   max_pool       x -> y, places
//   max_pool_grad  places, gradient to y -> gradient to x
//
// A place is the number of a window's first maximum among its positions, row by row, or of its first element where one is NaN; kNone in
// a window that has padding alone. AVX-512 only. Threads share the rows of y, or of the gradient to x.
#include <immintrin.h>

#include <algorithm>
#include <limits>

#include "elements.h"
#include "operation.h"
#include "windows.h"

namespace native {

namespace {

constexpr uint8_t kNone = 255;

struct PoolSpec : Windows {
  explicit PoolSpec(SpecReader reader) {
    constexpr int64_t kMost = int64_t{1} << 24;
    type = reader.next_dtype();
    samples = reader.next(1, kMost), channels = reader.next(1, kMost);
    const auto read = [&](Sizes& sizes, int64_t least) {
      for (auto& size : sizes) size = reader.next(least, kMost);
    };
    read(input, 1), read(output, 1), read(kernel, 1), read(strides, 1), read(pads, 0);
    dilations = {1, 1, 1};
    reader.finish();
    double positions = 1, inputs = static_cast<double>(samples) * static_cast<double>(channels), outputs = inputs;
    for (int i = 0; i < kAxes; i++) {
      positions *= static_cast<double>(kernel[i]);
      inputs *= static_cast<double>(input[i]), outputs *= static_cast<double>(output[i]);
    }
    if (positions > static_cast<double>(kMostPositions)) throw std::invalid_argument("the window is too large");
    if (std::max(inputs, outputs) > static_cast<double>(int64_t{1} << 40)) throw std::invalid_argument("the array is too large");
  }

  size_t elements(const Sizes& image) const { return static_cast<size_t>(samples * product(image) * channels); }

  dt type;
  int64_t channels;
};

#include "avx512_begin.h"

template <bool kBf16>
void pool_pixel(const PoolSpec& s, const void* data, const int64_t* pixels, const int* positions, int count, void* result,
                uint8_t* places) {
  using X = Elements<kBf16>;
  const auto* x = static_cast<const typename X::Number*>(data);
  auto* y = static_cast<typename X::Number*>(result);
  for (int64_t c = 0; c < s.channels; c += 16) {
    const __mmask16 mask = mask_at(c, s.channels);
    if (count == 0) {
      const float least = kBf16 ? -3.3895314e38f : std::numeric_limits<float>::lowest();
      X::store(y + c, mask, _mm512_set1_ps(least));
      _mm_mask_storeu_epi8(places + c, mask, _mm_set1_epi8(static_cast<char>(kNone)));
      continue;
    }
    const __m512i first = _mm512_set1_epi32(positions[0]);
    __m512 most = X::load(x + pixels[0] * s.channels + c, mask);
    __m512i place = first;
    for (int i = 1; i < count; i++) {
      const __m512 value = X::load(x + pixels[i] * s.channels + c, mask);
      const __mmask16 larger = _mm512_cmp_ps_mask(value, most, _CMP_GT_OQ), nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
      most = _mm512_mask_mov_ps(most, larger | nan, value);
      place = _mm512_mask_mov_epi32(place, larger, _mm512_set1_epi32(positions[i]));
      place = _mm512_mask_mov_epi32(place, nan, first);
    }
    X::store(y + c, mask, most);
    _mm_mask_storeu_epi8(places + c, mask, _mm512_cvtepi32_epi8(place));
  }
}

template <bool kBf16>
void gradient_of_pixel(const PoolSpec& s, const uint8_t* places, const void* data, const int64_t* pixels, const int* positions,
                       int count, void* result) {
  using Y = Elements<kBf16>;
  const auto* dy = static_cast<const typename Y::Number*>(data);
  auto* dx = static_cast<typename Y::Number*>(result);
  for (int64_t c = 0; c < s.channels; c += 16) {
    const __mmask16 mask = mask_at(c, s.channels);
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < count; i++) {
      const int64_t at = pixels[i] * s.channels + c;
      const __m128i place = _mm_maskz_loadu_epi8(mask, places + at);
      const __mmask16 here = mask & _mm_cmpeq_epi8_mask(place, _mm_set1_epi8(static_cast<char>(positions[i])));
      sum = _mm512_add_ps(sum, Y::load(dy + at, here));
    }
    Y::store(dx + c, mask, sum);
  }
}

#include "avx512_end.h"

class Pool : public Operation {
 public:
  Pool(const PoolSpec& spec, bool is_forward, const thread_pool::Settings& settings) : s_(spec), is_forward_(is_forward) {
    check_avx512(s_.type == dt::bf16);
    const size_t inputs = s_.elements(s_.input), outputs = s_.elements(s_.output), bytes = bytes_of(s_.type);
    constexpr double kFlopsPerElement = 16;  // floating point operations that take as long as reading or writing one
    threads_ = settings.threads_for(kFlopsPerElement * static_cast<double>(inputs));
    operand_bytes_ = {inputs * bytes, outputs * bytes, outputs};
    if (!is_forward) std::swap(operand_bytes_[0], operand_bytes_[2]);
  }

  std::string name() const override { return s_.type == dt::bf16 ? "rows:avx512_core_bf16" : "rows:avx512_core"; }

  void run(void* const* operands, Scratch&) const override {
    s_.type == dt::bf16 ? run_as<true>(operands) : run_as<false>(operands);
  }

 private:
  template <bool kBf16>
  void run_as(void* const* operands) const {
    using Number = typename Elements<kBf16>::Number;
    const auto& mine = is_forward_ ? s_.output : s_.input;
    thread_pool::parallel_for(s_.samples * mine[0] * mine[1], threads_, [&](int64_t begin, int64_t end) {
      for_pixels(s_, is_forward_, begin, end, [&](int64_t pixel, const int64_t* pixels, const int* positions, int count) {
        const int64_t at = pixel * s_.channels;
        if (is_forward_) {
          pool_pixel<kBf16>(s_, operands[0], pixels, positions, count, static_cast<Number*>(operands[1]) + at,
                            static_cast<uint8_t*>(operands[2]) + at);
        } else {
          gradient_of_pixel<kBf16>(s_, static_cast<const uint8_t*>(operands[0]), operands[1], pixels, positions, count,
                                   static_cast<Number*>(operands[2]) + at);
        }
      });
    });
  }

  PoolSpec s_;
  bool is_forward_;
};

}  // namespace

std::unique_ptr<Operation> make_max_pool(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<Pool>(PoolSpec(reader), true, settings);
}

std::unique_ptr<Operation> make_max_pool_grad(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<Pool>(PoolSpec(reader), false, settings);
}

}  // namespace native
