// The rate of one instruction, measured: what a CPU has says nothing of it, and CPUs without AMX are not only those whose makers left it
// out, but also virtual machines that hide it.
#include "bf16_speed.h"

#include <immintrin.h>
#include <x86intrin.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "isa.h"

namespace native {
namespace {

#include "avx512_begin.h"

// The least time stamps of some hundred instructions that do not wait for each other.
template <bool kWords>
uint64_t least_time(float value, float* kept) {
  constexpr int kSums = 12, kSteps = 32;
  const __m512 x = _mm512_set1_ps(value);
  __m512 sums[kSums];
  for (auto& sum : sums) sum = x;
  const uint64_t begin = __rdtsc();
  for (int i = 0; i < kSteps; i++) {
    for (auto& sum : sums) {
      sum = kWords ? _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)x) : _mm512_fmadd_ps(x, x, sum);
    }
  }
  for (auto& sum : sums) *kept += _mm512_cvtss_f32(sum);
  return __rdtsc() - begin;
}

bool measure_words() {
  // Also in a process that is interrupted; the first times are those of a core that wakes its wider units.
  constexpr int kTimes = 200;
  volatile float number = 0;
  float kept = 0;
  uint64_t words = std::numeric_limits<uint64_t>::max(), floats = words;
  for (int i = 0; i < kTimes; i++) {
    floats = std::min(floats, least_time<false>(number, &kept));
    words = std::min(words, least_time<true>(number, &kept));
  }
  number = kept;
  return words < 2 * floats;
}

#include "isa_end.h"

}  // namespace

bool has_fast_words() {
  static const bool found = has(dnnl::cpu_isa::avx512_core_bf16) && measure_words();
  return found;
}

Bf16 bf16_speed() {
  if (has(dnnl::cpu_isa::avx512_core_amx)) return Bf16::kFast;
  if (!has(dnnl::cpu_isa::avx512_core_bf16)) return Bf16::kNone;
  return has_fast_words() ? Bf16::kFast : Bf16::kSlow;
}

}  // namespace native
