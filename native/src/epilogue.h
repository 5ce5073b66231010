// What follows the sums of a product with packed weights, in kernels that are compiled for AVX-512 and called only where the CPU has
// that.
#pragma once

#include <immintrin.h>

#include "product_spec.h"

namespace native {

#include "avx512_begin.h"

// The bounds come first: these instructions return their second operand where one is NaN.
inline __m512 at_most(float bound, __m512 x) { return _mm512_min_ps(_mm512_set1_ps(bound), x); }
inline __m512 at_least(float bound, __m512 x) { return _mm512_max_ps(_mm512_set1_ps(bound), x); }

// x / 2 (1 + erf(x / sqrt 2)). The error function is a quotient of polynomials in x up to the bound where it rounds to 1.
inline __m512 gelu(__m512 x) {
  constexpr float bound = 3.7439211627767994f;
  const __m512 v = at_most(bound, at_least(-bound, _mm512_mul_ps(x, _mm512_set1_ps(0.70710678f))));
  const __m512 square = _mm512_mul_ps(v, v);
  constexpr float over[] = {2.123732201653183e-06f, 2.861979592125863e-04f, 3.658048342913389e-03f,
                            5.243302136659622e-02f, 1.8741607666015625e-01f, 1.1283791542053223f};
  constexpr float under[] = {3.8918573409318924e-05f, 1.1432960163801908e-03f, 1.4752088114619255e-02f,
                             1.1294567584991455e-01f, 4.9942579865455627e-01f, 1.0f};
  __m512 p = _mm512_set1_ps(over[0]), q = _mm512_set1_ps(under[0]);
  for (int i = 1; i < 6; i++) {
    p = _mm512_fmadd_ps(p, square, _mm512_set1_ps(over[i]));
    q = _mm512_fmadd_ps(q, square, _mm512_set1_ps(under[i]));
  }
  __m512 erf = _mm512_div_ps(_mm512_mul_ps(v, p), q);  // 1 - 2^-23 at the bound, which a large x would magnify
  erf = _mm512_mask_mov_ps(erf, _mm512_cmp_ps_mask(v, _mm512_set1_ps(bound), _CMP_GE_OQ), _mm512_set1_ps(1));
  erf = _mm512_mask_mov_ps(erf, _mm512_cmp_ps_mask(v, _mm512_set1_ps(-bound), _CMP_LE_OQ), _mm512_set1_ps(-1));
  const __m512 half = _mm512_mul_ps(x, _mm512_set1_ps(0.5f));
  return _mm512_fmadd_ps(half, erf, half);
}

inline __m512 activated(const ProductSpec& s, __m512 x) {
  switch (s.activation) {
    case Activation::kRelu: x = at_least(0, x); break;
    case Activation::kClip: x = at_most(s.high, at_least(0, x)); break;
    case Activation::kGelu: x = gelu(x); break;
    case Activation::kNone: break;
  }
  return s.factor == 1 && s.shift == 0 ? x : _mm512_fmadd_ps(x, _mm512_set1_ps(s.factor), _mm512_set1_ps(s.shift));
}

#include "avx512_end.h"

}  // namespace native
