// Functions of vectors of float32 numbers, for kernels that are compiled for AVX-512 and called only where the CPU has that.
#pragma once

#include <immintrin.h>

namespace native {

constexpr float kLeastExponent = -87;  // exponentials of less are zero

// exp(x) for x <= 0, or little more; zero below kLeastExponent; NaN stays NaN.
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))) inline __m512 exponential(__m512 x) {
  const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kLeastExponent), _CMP_NLT_UQ);
  const __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693145752f), x);
  rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(1.42860677e-6f), rest);
  __m512 sum = _mm512_fmadd_ps(_mm512_set1_ps(1.0f / 720), rest, _mm512_set1_ps(1.0f / 120));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f / 24));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0f / 6));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.5f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1));
  return _mm512_maskz_scalef_ps(counts, sum, whole);
}

}  // namespace native
