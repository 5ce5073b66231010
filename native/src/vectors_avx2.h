// Included by vectors.h, which says what this is.
#pragma once

namespace native::simd::avx2 {

#include "avx2_begin.h"

using Floats = __m256;
struct Lanes {
  __m256i bits;  // all of a lane, or none
};

constexpr int kLanes = 8;

inline Floats all(float x) { return _mm256_set1_ps(x); }
inline Floats zero() { return _mm256_setzero_ps(); }

inline Lanes lanes_of(Floats compared) { return {_mm256_castps_si256(compared)}; }
inline Floats floats_of(Lanes lanes) { return _mm256_castsi256_ps(lanes.bits); }

inline Lanes first(int64_t count) {
  const auto bounded = static_cast<int>(std::clamp<int64_t>(count, 0, kLanes));
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(bounded), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))};
}
inline Lanes both(Lanes a, Lanes b) { return {_mm256_and_si256(a.bits, b.bits)}; }
inline Lanes either(Lanes a, Lanes b) { return {_mm256_or_si256(a.bits, b.bits)}; }
inline bool any(Lanes lanes) { return _mm256_movemask_ps(floats_of(lanes)) != 0; }
inline bool is_all(Lanes lanes) { return _mm256_movemask_ps(floats_of(lanes)) == 0xff; }

inline unsigned bits_of(Lanes lanes) { return static_cast<unsigned>(_mm256_movemask_ps(floats_of(lanes))); }
inline int count_of(Lanes lanes) { return __builtin_popcount(bits_of(lanes)); }

inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
inline Floats load(const float* from, Lanes lanes) { return _mm256_maskload_ps(from, lanes.bits); }
inline Floats load(const float* from, Lanes lanes, Floats other) {
  return _mm256_blendv_ps(other, load(from, lanes), floats_of(lanes));
}
inline void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }
inline void store(float* to, Lanes lanes, Floats x) {  // some processors take long for a part of a vector
  if (is_all(lanes)) return store(to, x);
  _mm256_maskstore_ps(to, lanes.bits, x);
}
inline void stream(float* to, Floats x) { _mm256_stream_ps(to, x); }

inline Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
inline Floats fms(Floats a, Floats b, Floats c) { return _mm256_fmsub_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats abs(Floats x) { return _mm256_andnot_ps(all(-0.0f), x); }
inline Floats sqrt(Floats x) { return _mm256_sqrt_ps(x); }
inline Floats nearest(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats scaled(Floats x, Floats exponent) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127));
  return x * _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline Floats reciprocal(Floats x) { return all(1) / x; }

inline Lanes less(Floats a, Floats b) { return lanes_of(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
inline Lanes less_or_equal(Floats a, Floats b) { return lanes_of(_mm256_cmp_ps(a, b, _CMP_LE_OQ)); }
inline Lanes greater(Floats a, Floats b) { return lanes_of(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
inline Lanes greater_or_equal(Floats a, Floats b) { return lanes_of(_mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
inline Lanes equal(Floats a, Floats b) { return lanes_of(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
inline Lanes not_less(Floats a, Floats b) { return lanes_of(_mm256_cmp_ps(a, b, _CMP_NLT_UQ)); }
inline Lanes not_less_or_equal(Floats a, Floats b) { return lanes_of(_mm256_cmp_ps(a, b, _CMP_NLE_UQ)); }
inline Lanes differs(Floats a, Floats b) { return lanes_of(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ)); }
inline Lanes is_nan(Floats x) { return lanes_of(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }

inline Floats select(Lanes lanes, Floats a, Floats b) { return _mm256_blendv_ps(b, a, floats_of(lanes)); }
inline Floats where(Lanes lanes, Floats a) { return _mm256_and_ps(floats_of(lanes), a); }

inline float first_of(Floats x) { return _mm256_cvtss_f32(x); }
inline float sum(Floats x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(Floats x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

using Integers = __m256i;
inline Integers integers(int x) { return _mm256_set1_epi32(x); }
inline Integers sum_of(Integers a, Integers b) { return _mm256_add_epi32(a, b); }
inline Integers products_of_pairs(Integers a, Integers b) { return _mm256_madd_epi16(a, b); }
inline Integers words_of(const int8_t* from) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
inline Integers words_of(const uint8_t* from) { return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
inline Integers integers_of(const int8_t* from) { return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))); }
inline void store_integers(int32_t* to, Integers x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
inline void store_words(int16_t* to, Integers x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
inline Floats floats(Integers x) { return _mm256_cvtepi32_ps(x); }
inline Integers nearest_integers(Floats x) { return _mm256_cvtps_epi32(x); }
inline Integers select(Lanes lanes, Integers a, Integers b) { return _mm256_blendv_epi8(b, a, lanes.bits); }
inline __m128i bytes_of(Integers x) {
  const __m256i words = _mm256_packs_epi32(x, x), halves = _mm256_packus_epi16(words, words);
  return _mm_unpacklo_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
}
inline void store_bytes(uint8_t* to, Integers x) { _mm_storel_epi64(reinterpret_cast<__m128i*>(to), bytes_of(x)); }
inline void store_bytes(uint8_t* to, Lanes lanes, Integers x) {
  const auto eight = static_cast<uint64_t>(_mm_cvtsi128_si64(bytes_of(x)));
  std::memcpy(to, &eight, static_cast<size_t>(count_of(lanes)));
}
inline Integers load_bytes(const uint8_t* from) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
}
inline Integers load_bytes(const uint8_t* from, Lanes lanes) {
  uint64_t eight = 0;
  std::memcpy(&eight, from, static_cast<size_t>(count_of(lanes)));
  return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(eight)));
}
inline Lanes bytes_equal(const uint8_t* from, Lanes lanes, int x) {
  return both(lanes, {_mm256_cmpeq_epi32(load_bytes(from, lanes), integers(x))});
}

// Rows of a block of 8 x 8 become columns.
inline void transpose(Floats (&x)[8]) {
  Floats pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) pairs[i] = _mm256_unpacklo_ps(x[i], x[i + 1]), pairs[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  for (int i = 0; i < 8; i += 4) {
    for (int j = 0; j < 2; j++) {
      fours[i + 2 * j] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0x44);
      fours[i + 2 * j + 1] = _mm256_shuffle_ps(pairs[i + j], pairs[i + j + 2], 0xee);
    }
  }
  for (int i = 0; i < 4; i++) {
    x[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20), x[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

// Columns of up to 8 rows that lie `step` apart: number d of row r goes to to[d * to_step + r]. Missing rows are zeros. `columns`
// is a multiple of 8.
inline void turn(const float* from, int64_t step, int64_t rows, int64_t columns, float* to, int64_t to_step) {
  for (int64_t d = 0; d < columns; d += 8, to += 8 * to_step) {
    Floats block[8];
    for (int64_t r = 0; r < 8; r++) block[r] = r < rows ? load(from + r * step + d) : zero();
    transpose(block);
    for (int64_t i = 0; i < 8; i++) store(to + i * to_step, block[i]);
  }
}

// Elements of an array of float32 or bfloat16.
template <bool kBf16>
struct Elements {
  using Number = float;

  static Floats load(const float* data) { return avx2::load(data); }
  static Floats load(const float* data, Lanes lanes) { return avx2::load(data, lanes); }
  static Floats load(const float* data, Lanes lanes, Floats other) { return avx2::load(data, lanes, other); }
  static Floats rounded(Floats x) { return x; }  // as it is read again where it was stored
  static Floats fma_words(Floats a, Floats b, Floats c) { return fma(a, b, c); }
  static void store(float* data, Floats x) { avx2::store(data, x); }
  static void store(float* data, Lanes lanes, Floats x) { avx2::store(data, lanes, x); }
};

template <>
struct Elements<true> {
  using Number = uint16_t;
  using Narrow = __m128i;  // a vector of them

  static Narrow load_narrow(const uint16_t* data) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data)); }
  static Narrow no_narrow() { return _mm_setzero_si128(); }
  static Floats widened(Narrow x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
  static Narrow narrowed(Floats x) {  // to the nearest, halves to even
    const __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), integers(1));
    const __m256i nearest = _mm256_add_epi32(bits, _mm256_add_epi32(odd, integers(0x7fff)));
    const __m256i kept = select(is_nan(x), _mm256_or_si256(bits, integers(0x400000)), nearest);  // a NaN's bits might overflow
    const __m256i high = _mm256_srli_epi32(kept, 16);
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 8));
  }

  static Floats load(const uint16_t* data) { return widened(load_narrow(data)); }
  static Floats load(const uint16_t* data, Lanes lanes) {
    if (is_all(lanes)) return load(data);
    uint16_t numbers[kLanes] = {};
    std::memcpy(numbers, data, static_cast<size_t>(count_of(lanes)) * sizeof *data);
    return load(numbers);
  }
  static Floats load(const uint16_t* data, Lanes lanes, Floats other) { return select(lanes, load(data, lanes), other); }
  static Floats rounded(Floats x) { return widened(narrowed(x)); }
  // Of words: two numbers each.
  static Floats lower(Floats words) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(words), 16)); }
  static Floats upper(Floats words) { return _mm256_and_ps(words, _mm256_castsi256_ps(integers(static_cast<int>(0xffff0000u)))); }
  static Floats paired(Narrow low, Narrow high) {
    return _mm256_castsi256_ps(_mm256_or_si256(_mm256_cvtepu16_epi32(low), _mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16)));
  }
  static void store(uint16_t* data, Floats x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(data), narrowed(x)); }
  static void store(uint16_t* data, Lanes lanes, Floats x) {
    if (is_all(lanes)) return store(data, x);
    uint16_t numbers[kLanes];
    store(numbers, x);
    std::memcpy(data, numbers, static_cast<size_t>(count_of(lanes)) * sizeof *data);
  }
};

#include "vector_math.h"

#include "isa_end.h"

}  // namespace native::simd::avx2
