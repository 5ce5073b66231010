// Sums are computed of 8 rows and a panel of 32 columns at a time, in registers, over words: a word is a float32 number, or two
// of bfloat16. A row is a sample, or an output channel in the gradient to the weights; the other channels are the columns.
//
// Forward and to the data, words are of channels. They are taken in blocks of 16: a panel's weights of a block are packed so that
// they stay in the fastest cache, and all that they are needed for is computed before the next ones are. To the weights, words
// are of samples. Data is packed before, because pixels of several samples may lie a power of two apart.

#include "few_pixels.h"

#include <algorithm>

#include "bf16_speed.h"
#include "vectors.h"

namespace native {

namespace {

constexpr int64_t kTaps = 9, kBlock = 16, kPanel = 32, kMostRows = 8;
constexpr int64_t kLine = 64;         // bytes of a vector, and of a block of a pixel
constexpr int64_t kRow = 4 * kPanel;  // bytes of sums, and of packed columns at one word
constexpr int64_t kAllTaps = kTaps * kRow;
constexpr int64_t kFewRows = 4 * kMostRows;  // bytes of packed rows of the gradient to the weights at one word

// Distances in bytes between words and rows of the left operand, words of the right one, and rows of the sums.
struct Products {
  static constexpr int64_t kLeftWord = 4, kLeftRow = kLine, kRightWord = kAllTaps, kSumsRow = kRow;
};
struct WeightProducts {
  static constexpr int64_t kLeftWord = kFewRows, kLeftRow = 4, kRightWord = kRow, kSumsRow = kAllTaps;
};

using simd::avx512::Elements;

#include "avx512_begin.h"

// Words of adjacent elements: those at `from`, and those `next` elements further on where a word is two.
template <bool kBf16, bool kFromBf16>
inline __m512i words_at(const void* data, int64_t at, int64_t next, __mmask16 mask) {
  if constexpr (!kBf16) {
    return _mm512_maskz_loadu_epi32(mask, static_cast<const float*>(data) + at);
  } else if constexpr (kFromBf16) {
    const auto* from = static_cast<const uint16_t*>(data) + at;
    const __m512i first = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from));
    const __m512i second = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from + next));
    return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
  } else {
    const auto* from = static_cast<const float*>(data) + at;
    const __m512 first = _mm512_maskz_loadu_ps(mask, from), second = _mm512_maskz_loadu_ps(mask, from + next);
    const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20,
                                           4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(pairs, (__m512i)_mm512_cvtne2ps_pbh(second, first));
  }
}

// Transposes blocks of four by four within four rows: `to[j]` holds, in 128-bit lane k, column 4k + j.
inline void transpose_blocks(const __m512i* rows, __m512i* to) {
  const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpacklo_epi32(rows[2], rows[3]);
  const __m512i c = _mm512_unpackhi_epi32(rows[0], rows[1]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
  to[0] = _mm512_unpacklo_epi64(a, b), to[1] = _mm512_unpackhi_epi64(a, b);
  to[2] = _mm512_unpacklo_epi64(c, d), to[3] = _mm512_unpackhi_epi64(c, d);
}

// Of 16 rows of nine words: stores the columns.
inline void store_columns(const __m512i (&rows)[16], char* to) {
  __m512i blocks[4][4];
  for (int i = 0; i < 4; i++) transpose_blocks(rows + 4 * i, blocks[i]);
  for (int j = 0; j < 4; j++) {
    const __m512i low = _mm512_shuffle_i32x4(blocks[0][j], blocks[1][j], 0x44);
    const __m512i high = _mm512_shuffle_i32x4(blocks[2][j], blocks[3][j], 0x44);
    _mm512_store_si512(to + j * kRow, _mm512_shuffle_i32x4(low, high, 0x88));
    _mm512_store_si512(to + (4 + j) * kRow, _mm512_shuffle_i32x4(low, high, 0xdd));
  }
  const __m512i low = _mm512_shuffle_i32x4(blocks[0][0], blocks[1][0], 0x22);
  const __m512i high = _mm512_shuffle_i32x4(blocks[2][0], blocks[3][0], 0x22);
  _mm512_store_si512(to + 8 * kRow, _mm512_shuffle_i32x4(low, high, 0x88));
}

// A block of a panel, [word][tap][column]. `ahead`: elements to the block that is packed next, which comes from memory.
template <bool kBf16, bool kFromBf16>
void pack_weights(const void* weights, int64_t first, int64_t depth_step, int64_t column_step, int64_t ahead, char* to) {
  const auto prefetch = [&](int64_t at) {
    _mm_prefetch(static_cast<const char*>(weights) + at * (kFromBf16 ? 2 : 4), _MM_HINT_T1);
  };
  for (int64_t word = 0; word < kBlock; word++, to += kAllTaps) {
    const int64_t begin = first + word * depth_step * (kBf16 ? 2 : 1);
    for (int64_t half = 0; half < 2; half++) {
      __m512i rows[16];
      for (int64_t i = 0; i < 16; i++) {
        const int64_t at = begin + (16 * half + i) * column_step;
        rows[i] = words_at<kBf16, kFromBf16>(weights, at, depth_step, (1 << kTaps) - 1);
        prefetch(at + ahead);
        if (kBf16) prefetch(at + ahead + depth_step);
      }
      store_columns(rows, to + kLine * half);
    }
  }
}

// A block of a pixel.
template <bool kBf16, bool kFromBf16>
void pack_block(const void* data, int64_t at, char* to) {
  if constexpr (kBf16 && !kFromBf16) {
    const float* from = static_cast<const float*>(data) + at;
    _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(from + 16), _mm512_loadu_ps(from)));
  } else {
    _mm512_store_si512(to, _mm512_loadu_si512(static_cast<const char*>(data) + at * (kBf16 ? 2 : 4)));
  }
}

// 16 channels of a pixel of one or two samples.
template <bool kBf16, bool kFromBf16>
void pack_samples(const void* data, int64_t at, int64_t next, char* to, char* second_half) {
  const __m512i words = words_at<kBf16, kFromBf16>(data, at, next, 0xffff);
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(words));
  _mm256_store_si256(reinterpret_cast<__m256i*>(second_half), _mm512_extracti64x4_epi64(words, 1));
}

// Adds the products of so many rows with a panel, for each of the pairs, to their sums. A block is summed up by itself, which
// rounds less than one long sum.
template <bool kBf16, int kRows, class P>
void add_products(const PixelPair* pair, const PixelPair* end, const char* left, const char* right, int64_t words, bool is_first,
                  char* sums) {
  __m512 made[kRows][2];
  for (int i = 0; i < kRows; i++) {
    for (int j = 0; j < 2; j++) made[i][j] = _mm512_setzero_ps();
  }
  for (; pair != end; pair++) {
    const char *a = left + pair->left, *b = right + pair->right;
    for (int64_t word = 0; word < words; word++, a += P::kLeftWord, b += P::kRightWord) {
      const __m512 columns[] = {_mm512_load_ps(b), _mm512_load_ps(b + kLine)};
      for (int i = 0; i < kRows; i++) {
        const __m512 row = _mm512_set1_ps(*reinterpret_cast<const float*>(a + i * P::kLeftRow));
        for (int j = 0; j < 2; j++) {
          if constexpr (kBf16) {
            made[i][j] = _mm512_dpbf16_ps(made[i][j], (__m512bh)row, (__m512bh)columns[j]);
          } else {
            made[i][j] = _mm512_fmadd_ps(row, columns[j], made[i][j]);
          }
        }
      }
    }
  }
  for (int i = 0; i < kRows; i++) {
    for (int j = 0; j < 2; j++) {
      char* to = sums + i * P::kSumsRow + j * kLine;
      _mm512_store_ps(to, is_first ? made[i][j] : _mm512_add_ps(_mm512_load_ps(to), made[i][j]));
    }
  }
}

// Writes the sums of a panel: `rows` of them, which lie `step` elements apart in the result.
template <bool kToBf16>
void write_sums(const char* sums, int64_t rows, int64_t step, int64_t at, void* result) {
  using To = Elements<kToBf16>;
  auto* to = static_cast<typename To::Number*>(result) + at;
  for (; rows > 0; rows--, sums += kRow, to += step) {
    for (int j = 0; j < 2; j++) To::store(to + 16 * j, 0xffff, _mm512_load_ps(sums + j * kLine));
  }
}

// Writes the sums of all taps and 16 columns, so that taps vary fastest.
template <bool kToBf16>
void write_taps(const char* sums, int64_t at, void* result) {
  for (int line = 0; line < 9; line++) {
    __builtin_prefetch(static_cast<char*>(result) + (at + kPanel * kTaps + 16 * line) * (kToBf16 ? 2 : 4), 1);
  }
  __m512i rows[kTaps], blocks[2][4];
  for (int tap = 0; tap < kTaps; tap++) rows[tap] = _mm512_load_si512(sums + tap * kRow);
  alignas(kLine) float four[2][4][16];
  for (int i = 0; i < 2; i++) {
    transpose_blocks(rows + 4 * i, blocks[i]);
    for (int j = 0; j < 4; j++) _mm512_store_si512(four[i][j], blocks[i][j]);
  }
  const auto* last = reinterpret_cast<const float*>(sums + 8 * kRow);
  auto* to = static_cast<typename Elements<kToBf16>::Number*>(result) + at;
  for (int column = 0; column < 16; column++, to += kTaps) {
    const int j = column % 4, lane = column / 4 * 4;
    const __m128 taps[] = {_mm_load_ps(four[0][j] + lane), _mm_load_ps(four[1][j] + lane), _mm_load_ss(last + column)};
    if constexpr (kToBf16) {
      const __m512 first = _mm512_insertf32x4(_mm512_castps128_ps512(taps[0]), taps[1], 1);
      Elements<true>::store(to, (1 << kTaps) - 1, _mm512_insertf32x4(first, taps[2], 2));
    } else {
      _mm_storeu_ps(to, taps[0]), _mm_storeu_ps(to + 4, taps[1]), _mm_store_ss(to + 8, taps[2]);
    }
  }
}

#include "isa_end.h"

// --- for any CPU again

template <bool kBf16, class P>
constexpr decltype(&add_products<kBf16, 1, P>) kAddProducts[kMostRows] = {
    add_products<kBf16, 1, P>, add_products<kBf16, 2, P>, add_products<kBf16, 3, P>, add_products<kBf16, 4, P>,
    add_products<kBf16, 5, P>, add_products<kBf16, 6, P>, add_products<kBf16, 7, P>, add_products<kBf16, 8, P>};

// One of a function's variants, by what is multiplied and the dtype of an operand.
#define VARIANT(function, is_bf16, type) \
  (!(is_bf16) ? function<false, false> : (type) == dt::bf16 ? function<true, true> : function<true, false>)

constexpr int64_t kMostInputPixels = 1024, kFewPixels = 4;

// Up to which size this is the fastest way was measured with one thread (docs/performance-kernels.md). `units`: of work, which threads share.
bool is_few_pixels(const ConvSpec& s, int64_t most_pixels, int64_t most_rows, int64_t units, int threads) {
  if (s.groups != 1 || s.taps() != kTaps || s.weights_channels_last() ||
      s.flags & (ConvSpec::kAlwaysDirect | ConvSpec::kAlwaysIm2col)) {
    return false;
  }
  if (s.kernel[0] % kPanel != 0 || s.kernel[1] % kPanel != 0) return false;
  if (2 * units < threads) return false;  // most of them would have nothing to do
  if (Windows::product(s.windows().input) > kMostInputPixels) return false;  // all of it is packed, also what no tap touches
  const bool is_bf16 = s.dtypes.compute == dt::bf16;
  if (is_bf16 && !has_fast_words()) most_pixels = std::min(most_pixels, kFewPixels);  // AMX is faster where weights are not all
  return s.rows() <= most_rows && s.rows() <= most_pixels * s.output[0] && isa() == Isa::kAvx512 && runs_kernels(is_bf16);
}

}  // namespace

bool FewPixels::takes(const ConvSpec& s, int threads) {
  constexpr int64_t kMostPixels = 64, kMostResults = 1024, kSomeSamples = 4;
  if (s.kind == ConvSpec::kBackwardWeights) return false;
  const int64_t panels = s.kernel[s.kind == ConvSpec::kForward ? 0 : 1] / kPanel;
  if (!is_few_pixels(s, s.input[0] >= kSomeSamples ? kMostPixels : kFewPixels, kMostResults, panels, threads)) return false;
  const auto is_one = [](int64_t size) { return size == 1; };
  return s.kind == ConvSpec::kForward || std::all_of(s.dilations.begin(), s.dilations.end(), is_one);
}

FewPixels::FewPixels(const ConvSpec& s, int threads)
    : threads_(threads), is_forward_(s.kind == ConvSpec::kForward), is_bf16_(s.dtypes.compute == dt::bf16), samples_(s.input[0]) {
  std::copy_n(s.dtypes.operands, 3, types_);
  Windows windows = s.windows();
  windows.samples = 1;
  const auto& images = is_forward_ ? windows.output : windows.input;
  pixels_ = Windows::product(images), data_pixels_ = Windows::product(is_forward_ ? windows.input : windows.output);
  depth_ = s.kernel[is_forward_ ? 1 : 0], columns_ = s.kernel[is_forward_ ? 0 : 1];
  depth_step_ = kTaps * (is_forward_ ? 1 : s.kernel[1]), column_step_ = kTaps * (is_forward_ ? s.kernel[1] : 1);
  blocks_ = depth_ / (is_bf16_ ? 2 * kBlock : kBlock), panels_ = columns_ / kPanel;
  for_pixels(windows, is_forward_, 0, images[0] * images[1], [&](int64_t, const int64_t* pixels, const int* taps, int count) {
    first_.push_back(pairs_.size());
    for (int i = 0; i < count; i++) pairs_.push_back({pixels[i] * samples_ * kLine, taps[i] * kRow});
  });
  first_.push_back(pairs_.size());
  data_bytes_ = static_cast<size_t>(blocks_ * data_pixels_ * samples_ * kLine);
  sums_bytes_ = static_cast<size_t>(panels_ * pixels_ * samples_ * kRow);
}

void FewPixels::run(const void* data, const void* weights, void* result, Scratch& scratch) const {
  char *packed = scratch.take(data_bytes_), *sums = scratch.take(sums_bytes_);
  const auto pack = VARIANT(pack_block, is_bf16_, types_[0]);
  const auto write = types_[2] == dt::bf16 ? write_sums<true> : write_sums<false>;
  const int64_t width = depth_ / blocks_;
  thread_pool::parallel_for(blocks_, threads_, [&](int64_t begin, int64_t end) {
    char* to = packed + begin * data_pixels_ * samples_ * kLine;
    for (int64_t block = begin; block < end; block++) {
      for (int64_t pixel = 0; pixel < data_pixels_; pixel++) {
        for (int64_t sample = 0; sample < samples_; sample++, to += kLine) {
          pack(data, (sample * data_pixels_ + pixel) * depth_ + block * width, to);
        }
      }
    }
  });
  const size_t of_panel = static_cast<size_t>(pixels_ * samples_ * kRow);
  thread_pool::parallel_for(panels_, threads_, [&](int64_t begin, int64_t end) {
    // weights are read in the order that they have in memory
    const int64_t panels = end - begin;
    for (int64_t i = 0; i < panels * blocks_; i++) {
      const int64_t panel = begin + (is_forward_ ? i / blocks_ : i % panels), block = is_forward_ ? i % blocks_ : i / panels;
      add_block(packed, weights, panel, block, sums + static_cast<size_t>(panel) * of_panel);
    }
    for (int64_t panel = begin; panel < end; panel++) {
      for (int64_t pixel = 0; pixel < pixels_; pixel++) {
        write(sums + static_cast<size_t>(panel) * of_panel + pixel * samples_ * kRow, samples_, pixels_ * columns_,
              pixel * columns_ + panel * kPanel, result);
      }
    }
  });
}

// Adds a block of the depth to the sums of a panel, [pixel][sample][column].
void FewPixels::add_block(const char* data, const void* weights, int64_t panel, int64_t block, char* sums) const {
  alignas(kLine) char packed[kBlock * kAllTaps];
  const auto pack = VARIANT(pack_weights, is_bf16_, types_[1]);
  const auto* add = is_bf16_ ? kAddProducts<true, Products> : kAddProducts<false, Products>;
  const int64_t width = depth_ / blocks_, parts = (samples_ + kMostRows - 1) / kMostRows;
  const int64_t ahead = is_forward_ ? width * depth_step_ : kPanel * column_step_;
  pack(weights, panel * kPanel * column_step_ + block * width * depth_step_, depth_step_, column_step_, ahead, packed);
  data += block * data_pixels_ * samples_ * kLine;
  for (int64_t pixel = 0; pixel < pixels_; pixel++) {
    const PixelPair* begin = pairs_.data() + first_[static_cast<size_t>(pixel)];
    const PixelPair* end = pairs_.data() + first_[static_cast<size_t>(pixel) + 1];
    for (int64_t part = 0; part < parts; part++) {
      const int64_t row = samples_ * part / parts, next = samples_ * (part + 1) / parts;
      add[next - row - 1](begin, end, data + row * kLine, packed, kBlock, block == 0, sums + (pixel * samples_ + row) * kRow);
    }
  }
}

bool FewPixelsWeights::takes(const ConvSpec& s, int threads) {
  constexpr int64_t kMostPixels = 256, kMostProducts = 2048;
  if (s.kind != ConvSpec::kBackwardWeights) return false;
  if (!is_few_pixels(s, kMostPixels, kMostProducts, s.kernel[0] / kMostRows, threads)) return false;
  return s.dtypes.compute == dt::f32 || s.input[0] % 2 == 0;  // two samples make a word
}

FewPixelsWeights::FewPixelsWeights(const ConvSpec& s, int threads)
    : threads_(threads), is_bf16_(s.dtypes.compute == dt::bf16), inputs_(s.kernel[1]), outputs_(s.kernel[0]) {
  std::copy_n(s.dtypes.operands, 3, types_);
  Windows windows = s.windows();
  windows.samples = 1;
  words_ = is_bf16_ ? s.input[0] / 2 : s.input[0];
  input_pixels_ = Windows::product(windows.input), output_pixels_ = Windows::product(windows.output);
  std::vector<PixelPair> of_tap[kTaps];
  for_pixels(windows, true, 0, windows.output[0] * windows.output[1],
             [&](int64_t pixel, const int64_t* pixels, const int* taps, int count) {
               for (int i = 0; i < count; i++) of_tap[taps[i]].push_back({pixel * words_ * kFewRows, pixels[i] * words_ * kRow});
             });
  for (const auto& pairs : of_tap) {
    first_.push_back(pairs_.size());
    pairs_.insert(pairs_.end(), pairs.begin(), pairs.end());
  }
  first_.push_back(pairs_.size());
  input_bytes_ = static_cast<size_t>(inputs_ / kPanel * input_pixels_ * words_ * kRow);
  gradient_bytes_ = static_cast<size_t>(outputs_ / kMostRows * output_pixels_ * words_ * kFewRows);
}

void FewPixelsWeights::run(const void* input, const void* gradient, void* result, Scratch& scratch) const {
  char *columns = scratch.take(input_bytes_), *rows = scratch.take(gradient_bytes_);
  const int64_t of_input = input_pixels_ * words_ * kRow,
                of_gradient = output_pixels_ * words_ * kFewRows;  // bytes of a panel each
  const int64_t samples = is_bf16_ ? 2 : 1;
  const auto pack_input = VARIANT(pack_samples, is_bf16_, types_[0]), pack_gradient = VARIANT(pack_samples, is_bf16_, types_[1]);
  thread_pool::parallel_for(input_pixels_ * words_, threads_, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t next = input_pixels_ * inputs_, at = (i % words_ * samples * input_pixels_ + i / words_) * inputs_;
      for (int64_t c = 0; c < inputs_; c += 16) {
        char* to = columns + c / kPanel * of_input + i * kRow + c % kPanel * 4;
        pack_input(input, at + c, next, to, to + kLine / 2);
      }
    }
  });
  thread_pool::parallel_for(output_pixels_ * words_, threads_, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t next = output_pixels_ * outputs_, at = (i % words_ * samples * output_pixels_ + i / words_) * outputs_;
      for (int64_t c = 0; c < outputs_; c += 16) {
        char* to = rows + c / kMostRows * of_gradient + i * kFewRows;
        pack_gradient(gradient, at + c, next, to, to + of_gradient);
      }
    }
  });
  const auto add = (is_bf16_ ? kAddProducts<true, WeightProducts> : kAddProducts<false, WeightProducts>)[kMostRows - 1];
  const auto write = types_[2] == dt::bf16 ? write_taps<true> : write_taps<false>;
  thread_pool::parallel_for(outputs_ / kMostRows, threads_, [&](int64_t begin, int64_t end) {
    alignas(kLine) char sums[kMostRows * kAllTaps];
    for (int64_t block = begin; block < end; block++) {
      for (int64_t panel = 0; panel < inputs_ / kPanel; panel++) {
        for (int64_t tap = 0; tap < kTaps; tap++) {
          const size_t i = static_cast<size_t>(tap);
          add(pairs_.data() + first_[i], pairs_.data() + first_[i + 1], rows + block * of_gradient, columns + panel * of_input,
              words_, true, sums + tap * kRow);
        }
        for (int64_t row = 0; row < kMostRows; row++) {
          for (int64_t half = 0; half < 2; half++) {
            const int64_t channel = panel * kPanel + 16 * half;
            write(sums + row * kAllTaps + kLine * half, ((block * kMostRows + row) * inputs_ + channel) * kTaps, result);
          }
        }
      }
    }
  });
}

#undef VARIANT

}  // namespace native
