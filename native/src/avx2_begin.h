// What stands between this header and isa_end.h is compiled for AVX2 with FMA, and called only where the CPU has that.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
