// Vectors of an array's elements, for kernels that are compiled for AVX-512 and called only where the CPU has that.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

namespace native {

#include "avx512_begin.h"

// Elements of an array of float32 or bfloat16.
template <bool kBf16>
struct Elements {
  using Number = std::conditional_t<kBf16, uint16_t, float>;

  static __m512 load(const Number* data, __mmask16 mask) {
    if constexpr (kBf16) {
      return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, data)), 16);
    } else {
      return _mm512_maskz_loadu_ps(mask, data);
    }
  }

  // As it is read again where it was stored.
  static __m512 rounded(__m512 value) {
    if constexpr (!kBf16) return value;
    return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(value)), 16);
  }

  static void store(Number* data, __mmask16 mask, __m512 value) {
    if constexpr (kBf16) {
      const auto narrow = (__m256i)_mm512_cvtneps_pbh(value);
      if (mask == 0xffff) return _mm256_storeu_si256(reinterpret_cast<__m256i*>(data), narrow);
      _mm256_mask_storeu_epi16(data, mask, narrow);
    } else {
      if (mask == 0xffff) return _mm512_storeu_ps(data, value);
      _mm512_mask_storeu_ps(data, mask, value);
    }
  }
};

// Of the 16 channels from c on, those that exist.
inline __mmask16 mask_at(int64_t c, int64_t channels) {
  return static_cast<__mmask16>(channels - c >= 16 ? 0xffff : (1u << (channels - c)) - 1);
}

#include "avx512_end.h"

}  // namespace native
