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
//   less(a, b) ...            false where one of them is NaN, but not_less, not_less_or_equal and differs are true
//   bits_of(lanes)            bit i for lane i
//   select(lanes, a, b)       a in these lanes, b in others; where(lanes, a): zeros in others
//   nearest(x)                whole numbers
//   exponential(x) ...        see vector_math.h
//   sum(x), largest(x)        of all lanes
//   Integers                  a vector of whole numbers of 32 bits; integers(x), store_integers, select as above, sum_of(a, b)
//   floats(i)                 as floating-point numbers; nearest_integers(x): back, halves to even
//   integers_of(p)            bytes with a sign
//   words_of(p)               twice as many bytes, with or without a sign, as numbers of 16 bits; store_words(p, i)
//   products_of_pairs(a, b)   of numbers of 16 bits: a0 b0 + a1 b1 in 32
//   load_bytes(p)             numbers from 0 to 255; store_bytes(p, i): back; with Lanes, which are the first ones, only those
//   bytes_equal(p, lanes, x)  which of the first lanes' bytes are
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
