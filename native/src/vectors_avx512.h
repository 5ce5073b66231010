// Included by vectors.h, which says what this is.
#pragma once

namespace native::simd::avx512 {

#include "avx512_begin.h"

using Floats = __m512;
using Lanes = __mmask16;

constexpr int kLanes = 16;

inline Floats all(float x) { return _mm512_set1_ps(x); }
inline Floats zero() { return _mm512_setzero_ps(); }

inline Lanes first(int64_t count) {
  return static_cast<Lanes>(count >= kLanes ? 0xffff : (1u << std::max<int64_t>(count, 0)) - 1);
}
inline Lanes both(Lanes a, Lanes b) { return a & b; }
inline Lanes either(Lanes a, Lanes b) { return a | b; }
inline bool any(Lanes lanes) { return lanes != 0; }
inline bool is_all(Lanes lanes) { return lanes == 0xffff; }
inline unsigned bits_of(Lanes lanes) { return lanes; }

inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline Floats load(const float* from, Lanes lanes) { return _mm512_maskz_loadu_ps(lanes, from); }
inline Floats load(const float* from, Lanes lanes, Floats other) { return _mm512_mask_loadu_ps(other, lanes, from); }
inline void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
inline void store(float* to, Lanes lanes, Floats x) { _mm512_mask_storeu_ps(to, lanes, x); }
inline void stream(float* to, Floats x) {
  _mm512_stream_ps(to, x);
}  // past the caches, to an address that is a multiple of its size

inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
inline Floats fms(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats abs(Floats x) { return _mm512_abs_ps(x); }
inline Floats sqrt(Floats x) { return _mm512_sqrt_ps(x); }
inline Floats nearest(Floats x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Floats scaled(Floats x, Floats exponent) {
  return _mm512_scalef_ps(x, exponent);
}                                     // x 2^exponent, which is a normal number
inline Floats reciprocal(Floats x) {  // of a normal number whose reciprocal is one, too
  const Floats r = _mm512_rcp14_ps(x);
  return r * fnma(x, r, all(2));
}

inline Lanes less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline Lanes less_or_equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
inline Lanes greater(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
inline Lanes greater_or_equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
inline Lanes equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Lanes not_less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ); }
inline Lanes not_less_or_equal(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
inline Lanes differs(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ); }
inline Lanes is_nan(Floats x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }

inline Floats select(Lanes lanes, Floats a, Floats b) { return _mm512_mask_mov_ps(b, lanes, a); }
inline Floats where(Lanes lanes, Floats a) { return _mm512_maskz_mov_ps(lanes, a); }

inline float first_of(Floats x) { return _mm512_cvtss_f32(x); }
inline float sum(Floats x) { return _mm512_reduce_add_ps(x); }
inline float largest(Floats x) { return _mm512_reduce_max_ps(x); }

using Integers = __m512i;
inline Integers integers(int x) { return _mm512_set1_epi32(x); }
inline Integers sum_of(Integers a, Integers b) { return _mm512_add_epi32(a, b); }
inline Integers products_of_pairs(Integers a, Integers b) { return _mm512_madd_epi16(a, b); }
inline Integers words_of(const int8_t* from) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }
inline Integers words_of(const uint8_t* from) { return _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))); }
inline Integers integers_of(const int8_t* from) { return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
inline void store_integers(int32_t* to, Integers x) { _mm512_storeu_si512(to, x); }
inline void store_words(int16_t* to, Integers x) { _mm512_storeu_si512(to, x); }
inline Floats floats(Integers x) { return _mm512_cvtepi32_ps(x); }
inline Integers nearest_integers(Floats x) { return _mm512_cvtps_epi32(x); }
inline Integers load_bytes(const uint8_t* from) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Integers load_bytes(const uint8_t* from, Lanes lanes) { return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, from)); }
inline Integers select(Lanes lanes, Integers a, Integers b) { return _mm512_mask_mov_epi32(b, lanes, a); }
inline void store_bytes(uint8_t* to, Integers x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x));
}
inline void store_bytes(uint8_t* to, Lanes lanes, Integers x) { _mm_mask_storeu_epi8(to, lanes, _mm512_cvtepi32_epi8(x)); }
inline Lanes bytes_equal(const uint8_t* from, Lanes lanes, int x) {
  return both(lanes, _mm_cmpeq_epi8_mask(_mm_maskz_loadu_epi8(lanes, from), _mm_set1_epi8(static_cast<char>(x))));
}

// Columns of up to 16 rows that lie `step` apart: number d of row r goes to to[d * to_step + r]. Missing rows are zeros.
// `columns` is a multiple of 8.
inline void turn(const float* from, int64_t step, int64_t rows, int64_t columns, float* to, int64_t to_step) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i low = _mm512_mullo_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(lanes)), _mm512_set1_epi64(step));
  const __m512i high = _mm512_mullo_epi64(_mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(lanes, 1)), _mm512_set1_epi64(step));
  const Lanes present = first(rows);
  for (int64_t d = 0; d < columns; d++, to += to_step) {
    _mm256_storeu_ps(to, _mm512_mask_i64gather_ps(_mm256_setzero_ps(), static_cast<__mmask8>(present), low, from + d, 4));
    _mm256_storeu_ps(to + 8,
                     _mm512_mask_i64gather_ps(_mm256_setzero_ps(), static_cast<__mmask8>(present >> 8), high, from + d, 4));
  }
}

// Elements of an array of float32 or bfloat16.
template <bool kBf16>
struct Elements {
  using Number = float;

  static Floats load(const float* data) { return avx512::load(data); }
  static Floats load(const float* data, Lanes lanes) { return avx512::load(data, lanes); }
  static Floats load(const float* data, Lanes lanes, Floats other) { return avx512::load(data, lanes, other); }
  static Floats rounded(Floats x) { return x; }  // as it is read again where it was stored
  static Floats fma_words(Floats a, Floats b, Floats c) { return fma(a, b, c); }
  static void store(float* data, Floats x) { avx512::store(data, x); }
  static void store(float* data, Lanes lanes, Floats x) {
    if (is_all(lanes)) return avx512::store(data, x);
    avx512::store(data, lanes, x);
  }
};

template <>
struct Elements<true> {
  using Number = uint16_t;

  using Narrow = __m256i;  // a vector of them

  static Narrow load_narrow(const uint16_t* data) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)); }
  static Narrow no_narrow() { return _mm256_setzero_si256(); }
  static Floats widened(Narrow x) { return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16); }
  static Narrow narrowed(Floats x) { return (__m256i)_mm512_cvtneps_pbh(x); }

  static Floats load(const uint16_t* data) { return widened(load_narrow(data)); }
  static Floats load(const uint16_t* data, Lanes lanes) { return widened(_mm256_maskz_loadu_epi16(lanes, data)); }
  static Floats load(const uint16_t* data, Lanes lanes, Floats other) { return select(lanes, load(data, lanes), other); }
  static Floats rounded(Floats x) { return widened(narrowed(x)); }
  // Of words: two numbers each, whose products are added.
  static Floats fma_words(Floats a, Floats b, Floats c) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }
  static Floats lower(Floats words) { return (__m512)_mm512_slli_epi32((__m512i)words, 16); }
  static Floats upper(Floats words) { return (__m512)_mm512_and_si512((__m512i)words, integers(static_cast<int>(0xffff0000u))); }
  static Floats paired(Narrow low, Narrow high) {
    return (__m512)_mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
  }
  static void store(uint16_t* data, Floats x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(data), narrowed(x)); }
  static void store(uint16_t* data, Lanes lanes, Floats x) {
    if (is_all(lanes)) return store(data, x);
    _mm256_mask_storeu_epi16(data, lanes, narrowed(x));
  }
};

#include "vector_math.h"

#include "isa_end.h"

}  // namespace native::simd::avx512
