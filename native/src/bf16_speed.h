// How fast this CPU multiplies bfloat16 numbers.
#pragma once

namespace native {

// Whether the instruction of AVX-512 BF16 multiplies more numbers in a time than float32's does. It does twice the work. AMD's CPUs take
// it as often as the other, Intel's a fourth as often (those with AMX, whose tiles are for bfloat16).
bool has_fast_words();

// By products of oneDNN's kernels, which take AMX where there is one.
enum class Bf16 { kNone, kSlow, kFast };
Bf16 bf16_speed();

}  // namespace native
