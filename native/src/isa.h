// The instruction sets that this project's own kernels are compiled for, and the one that this CPU takes.
#pragma once

#include <cpuid.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "dnnl.hpp"

namespace native {

enum class Isa { kNone, kAvx2, kAvx512 };

inline bool has(dnnl::cpu_isa needed) {
  const auto bits = static_cast<unsigned>(needed);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

// AVX2 means FMA, too. As oneDNN's, it can be bounded from outside: by ONEDNN_MAX_CPU_ISA.
inline Isa isa() {
  static const Isa found = [] {
    if (has(dnnl::cpu_isa::avx512_core)) return Isa::kAvx512;
    unsigned a, b, c, d;
    const bool has_fma = __get_cpuid(1, &a, &b, &c, &d) && c & bit_FMA;
    return has(dnnl::cpu_isa::avx2) && has_fma ? Isa::kAvx2 : Isa::kNone;
  }();
  return found;
}

// Whether this CPU runs the kernels. Those for AVX-512 that read or write bfloat16 need instructions of their own.
inline bool runs_kernels(bool with_bf16) {
  return isa() == Isa::kAvx2 || (isa() == Isa::kAvx512 && (!with_bf16 || has(dnnl::cpu_isa::avx512_core_bf16)));
}

inline void check_isa(bool with_bf16) {
  if (!runs_kernels(with_bf16)) throw std::runtime_error(isa() == Isa::kNone ? "this CPU has no AVX2" : "this CPU has no AVX-512 BF16");
}

// For the names of implementations.
inline std::string isa_name(bool with_bf16) {
  return isa() == Isa::kAvx2 ? "avx2" : with_bf16 ? "avx512_core_bf16" : "avx512_core";
}

// The float32 numbers in a vector.
inline int64_t lanes() { return isa() == Isa::kAvx512 ? 16 : 8; }

// Whether Intel made it. Two CPUs with the same instructions do not find the same kernels fast.
inline bool is_intel() {
  static const bool found = [] {
    unsigned a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_INTEL_ebx && c == signature_INTEL_ecx && d == signature_INTEL_edx;
  }();
  return found;
}

// What each_isa.h has compiled twice, for this CPU.
template <class Kernels>
const Kernels& for_this_cpu(const Kernels& avx2, const Kernels& avx512) {
  return isa() == Isa::kAvx512 ? avx512 : avx2;
}

}  // namespace native
