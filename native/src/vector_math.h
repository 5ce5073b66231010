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

// 1 / x for normal numbers whose reciprocals are, too.
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))) inline __m512 reciprocal(__m512 x) {
  const __m512 r = _mm512_rcp14_ps(x);
  return _mm512_mul_ps(r, _mm512_fnmadd_ps(x, r, _mm512_set1_ps(2)));
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))) inline __m512 sigmoid(__m512 x) {
  const __m512 one = _mm512_set1_ps(1), power = exponential(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
  const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  return _mm512_mul_ps(_mm512_mask_mov_ps(one, negative, power), reciprocal(_mm512_add_ps(one, power)));
}

// A quotient of polynomials, which Eigen and XLA take, too. NaN stays NaN.
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))) inline __m512 hyperbolic_tangent(__m512 x) {
  const __mmask16 tiny = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(0.0004f), _CMP_LT_OQ);
  const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-7.99881172180175781f), _mm512_min_ps(_mm512_set1_ps(7.99881172180175781f), x));
  const __m512 square = _mm512_mul_ps(bounded, bounded);
  __m512 above = _mm512_fmadd_ps(square, _mm512_set1_ps(-2.76076847742355e-16f), _mm512_set1_ps(2.00018790482477e-13f));
  for (const float next : {-8.60467152213735e-11f, 5.12229709037114e-08f, 1.48572235717979e-05f, 6.37261928875436e-04f,
                           4.89352455891786e-03f}) {
    above = _mm512_fmadd_ps(above, square, _mm512_set1_ps(next));
  }
  __m512 below = _mm512_fmadd_ps(square, _mm512_set1_ps(1.19825839466702e-06f), _mm512_set1_ps(1.18534705686654e-04f));
  for (const float next : {2.26843463243900e-03f, 4.89352518554385e-03f}) below = _mm512_fmadd_ps(below, square, _mm512_set1_ps(next));
  return _mm512_mask_mov_ps(_mm512_mul_ps(_mm512_mul_ps(bounded, above), reciprocal(below)), tiny, x);
}

}  // namespace native
