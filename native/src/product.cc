#include "product.h"

#include <stdexcept>

namespace native {

namespace {

// oneDNN has two ways. Its gemm packs panels of both operands, or is one of matrix and vector; it is the faster one, except
// where B is transposed and A has some rows (measured with two threads, AVX-512: docs/performance.md).
bool is_for_gemm(const Product::Sizes& s) {
  constexpr int64_t kFewRows = 6;
  return s.type == dt::f32 && s.batch == 1 && (!s.b_transposed || s.m <= kFewRows);
}

}  // namespace

Product::Product(const Sizes& s, int threads, bool only_described) : sizes_(s), by_gemm_(is_for_gemm(s)) {
  if (by_gemm_) {
    name_ = "gemm";
    return;
  }
  team::Pretend pretend(threads);
  const dims a{s.batch, s.m, s.k}, b{s.batch, s.k, s.n}, c{s.batch, s.m, s.n};
  a_ = dnnl::memory::desc(a, s.type, s.a_transposed ? dims{s.m * s.k, 1, s.m} : dims{s.m * s.k, s.k, 1});
  b_ = dnnl::memory::desc(b, s.type, s.b_transposed ? dims{s.k * s.n, 1, s.k} : dims{s.k * s.n, s.n, 1});
  c_ = dnnl::memory::desc(c, s.type, dims{s.m * s.n, s.n, 1});
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto pd = dnnl::matmul::primitive_desc(engine(), a_, b_, c_, attr);
  name_ = pd.impl_info_str();
  scratch_ = pd.scratchpad_desc().get_size();
  if (!only_described) primitive_ = dnnl::matmul(pd);
}

void Product::run(const void* a, const void* b, void* c, Scratch& scratch) const {
  const Sizes& s = sizes_;
  if (by_gemm_) {
    const auto done = dnnl_sgemm(
        s.a_transposed ? 'T' : 'N', s.b_transposed ? 'T' : 'N', s.m, s.n, s.k, 1.f, static_cast<const float*>(a),
        s.a_transposed ? s.m : s.k, static_cast<const float*>(b), s.b_transposed ? s.k : s.n, 0.f, static_cast<float*>(c), s.n);
    if (done != dnnl_success) throw std::runtime_error("a matrix product failed");
    return;
  }
  auto memory = [](const dnnl::memory::desc& d, const void* data) { return dnnl::memory(d, engine(), const_cast<void*>(data)); };
  primitive_.execute(stream(), {{DNNL_ARG_SRC, memory(a_, a)},
                                {DNNL_ARG_WEIGHTS, memory(b_, b)},
                                {DNNL_ARG_DST, memory(c_, c)},
                                {DNNL_ARG_SCRATCHPAD, scratch.pad(scratch_)}});
}

}  // namespace native
