// Vectors of float32 numbers, for kernels that each_isa.h compiles for several instruction sets. Functions of the same names are
// in simd::avx2 and simd::avx512:
//
//   kLanes                    numbers in a vector
//   Floats                    a vector; + - * / are defined
//   Lanes                     some of its lanes
//   all(x), zero()
//   load(p), store(p, x)      from and to any address; with Lanes only those are read, others being zeros, or written
//   first(count)              the first lanes, none if count < 1
//   fma(a, b, c)              a b + c, rounded once; fnma: c - a b; fms: a b - c
//   max(a, b), min(a, b)      b where one of them is NaN
//   less(a, b) ...            false where one of them is NaN, but not_less and differs are true
//   select(lanes, a, b)       a in these lanes, b in others; where(lanes, a): zeros in others
//   nearest(x)                whole numbers
//   exponential(x) ...        see vector_math.h
//   sum(x), largest(x)        of all lanes
//   Integers                  a vector of whole numbers; integers(x), select as above
//   store_bytes(p, lanes, x)  writes numbers from 0 to 255 as bytes; bytes_equal(p, lanes, x): which are. For the first lanes
//   Elements<is bfloat16>     loads and stores of arrays of float32 or bfloat16; of the first lanes
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "isa.h"

namespace native::simd {

constexpr float kLeastExponent = -87;  // exponentials of less are zero

}  // namespace native::simd

#include "vectors_avx2.h"
#include "vectors_avx512.h"
