// Compiles the kernels of the header that KERNELS names for each instruction set: in a namespace avx2, for AVX2 with FMA, and in a
// namespace avx512. Vectors are those of vectors_avx2.h or vectors_avx512.h there.
namespace avx2 {
using namespace simd::avx2;
#include "avx2_begin.h"
#include KERNELS
#include "isa_end.h"
}  // namespace avx2

#ifdef WITHOUT_AVX512  // for this machine alone, which has none
namespace avx512 = avx2;
#else
namespace avx512 {
using namespace simd::avx512;
#include "avx512_begin.h"
#include KERNELS
#include "isa_end.h"
}  // namespace avx512
#endif

#undef KERNELS
