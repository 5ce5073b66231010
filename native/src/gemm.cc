#include "gemm.h"

#include <stdexcept>

#include "thread_pool.h"

namespace native {

namespace {

// oneDNN has two ways. Its sgemm packs panels of both operands, or takes a matrix and a vector; it is the faster one, except
// where B is transposed and A has some rows (measured with two threads, AVX-512: docs/performance.md).
bool is_for_sgemm(const GemmShape& s) {
  constexpr int64_t kFewRows = 6;
  if (s.dtypes.compute != dt::f32 || s.batch != 1) return false;
  return s.way == GemmShape::kChosen ? !s.b_transposed || s.m <= kFewRows : s.way == GemmShape::kSgemm;
}

}  // namespace

Gemm::Gemm(const GemmShape& shape, int threads, bool describe_only) : shape_(shape), is_sgemm_(is_for_sgemm(shape)) {
  if (is_sgemm_) {
    name_ = "gemm";
    return;
  }
  const thread_pool::ScopedMaxThreads scope(threads);
  const auto& [dtypes, batch, m, n, k, a_transposed, b_transposed, way] = shape;
  a_ = dnnl::memory::desc({batch, m, k}, dtypes.compute, a_transposed ? dims{m * k, 1, m} : dims{m * k, k, 1});
  b_ = dnnl::memory::desc({batch, k, n}, dtypes.compute, b_transposed ? dims{k * n, 1, k} : dims{k * n, n, 1});
  c_ = dnnl::memory::desc({batch, m, n}, dtypes.operands[2], dims{m * n, n, 1});
  const dnnl::matmul::primitive_desc made(engine(), a_, b_, c_, user_scratchpad());
  name_ = made.impl_info_str();
  scratchpad_ = made.scratchpad_desc().get_size();
  if (describe_only) return;
  primitive_ = dnnl::matmul(made);
  a_conversion_ = Conversion(static_cast<size_t>(batch * m * k), dtypes.operands[0], dtypes.compute);
  b_conversion_ = Conversion(static_cast<size_t>(batch * k * n), dtypes.operands[1], dtypes.compute);
}

void Gemm::run(const void* a, const void* b, void* c, Scratch& scratch) const {
  if (is_sgemm_) return run_sgemm(static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(c));
  const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, engine(), const_cast<void*>(data));  // oneDNN does not write its inputs
  };
  primitive_.execute(stream(), {{DNNL_ARG_SRC, memory(a_, a_conversion_.run(a, scratch))},
                                {DNNL_ARG_WEIGHTS, memory(b_, b_conversion_.run(b, scratch))},
                                {DNNL_ARG_DST, memory(c_, c)},
                                {DNNL_ARG_SCRATCHPAD, take_scratchpad(scratch, scratchpad_)}});
}

void Gemm::run_sgemm(const float* a, const float* b, float* c) const {
  const auto& s = shape_;
  const int64_t lda = s.a_transposed ? s.m : s.k, ldb = s.b_transposed ? s.k : s.n;
  const char a_op = s.a_transposed ? 'T' : 'N', b_op = s.b_transposed ? 'T' : 'N';
  if (dnnl_sgemm(a_op, b_op, s.m, s.n, s.k, 1.f, a, lda, b, ldb, 0.f, c, s.n) != dnnl_success) {
    throw std::runtime_error("sgemm failed");
  }
}

}  // namespace native
