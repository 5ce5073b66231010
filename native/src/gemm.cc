#include "gemm.h"

#include <algorithm>
#include <stdexcept>

#include "thread_pool.h"

namespace native {

namespace {

// oneDNN has two ways. Its sgemm packs panels of both operands, or takes a matrix and a vector; it is the faster one, except
// where B is transposed and A has some rows (measured with two threads, AVX-512: docs/performance-kernels.md). Without AVX-512 they are one.
bool is_for_sgemm(const GemmShape& s) {
  constexpr int64_t kFewRows = 6;
  constexpr int64_t kManyRows = 1024, kMostColumns = 512, kLeastColumns = 64, kLongSum = 640;
  if (s.dtypes.compute != dt::f32 || s.batch != 1) return false;
  if (s.way != GemmShape::kChosen) return s.way == GemmShape::kSgemm;
  if (s.a_transposed && isa() == Isa::kAvx512 && is_intel()) {  // where sgemm turns A again for every few columns
    if (s.m >= kManyRows && s.k >= kLongSum && s.n >= kLeastColumns && s.n <= kMostColumns) return false;
  }
  return !s.b_transposed || s.m <= kFewRows || isa() != Isa::kAvx512;
}

// In how many parts a sum is computed. oneDNN's products of bfloat16 matrices slow down where sums are long, so that parts of
// them, added up in float32, take less time, unless the result is small (measured: docs/performance-kernels.md).
int64_t parts_of_sum(const GemmShape& s) {
  constexpr int64_t kLongest = 3072, kSmallResult = 1 << 15;
  if (s.dtypes.compute != dt::bf16 || s.batch != 1 || s.a_transposed || s.m * s.n < kSmallResult) return 1;
  return (s.k + kLongest - 1) / kLongest;
}

// All parts except the last are whole cache lines.
int64_t begin_of(int64_t part, int64_t count, int64_t k) {
  constexpr int64_t kLine = 32;
  return part == count ? k : k / kLine * part / count * kLine;
}

}  // namespace

Gemm::Gemm(const GemmShape& shape, int threads, bool describe_only) : shape_(shape), is_sgemm_(is_for_sgemm(shape)) {
  if (shape.way == GemmShape::kPacked ? PackedGemm::can(shape) : shape.way == GemmShape::kChosen && PackedGemm::is_fast(shape)) {
    packed_.emplace(shape, threads);
    name_ = packed_->name();
    scratch_size_ = packed_->scratch_size();
    return;
  }
  if (is_sgemm_) {
    name_ = "gemm";
    return;
  }
  const thread_pool::ScopedMaxThreads scope(threads);
  const auto& [dtypes, batch, m, n, k, a_transposed, b_transposed, way] = shape;
  const dims a_strides = a_transposed ? dims{m * k, 1, m} : dims{m * k, k, 1};
  const dims b_strides = b_transposed ? dims{k * n, 1, k} : dims{k * n, n, 1};
  const int64_t count = parts_of_sum(shape);
  const dt sums = count > 1 ? dt::f32 : dtypes.operands[2];
  for (int64_t i = 0; i < count; i++) {
    Part part;
    part.begin = begin_of(i, count, k);
    const int64_t size = begin_of(i + 1, count, k) - part.begin;
    part.a = dnnl::memory::desc({batch, m, size}, dtypes.compute, a_strides);
    part.b = dnnl::memory::desc({batch, size, n}, dtypes.compute, b_strides);
    part.c = dnnl::memory::desc({batch, m, n}, sums, dims{m * n, n, 1});
    auto attributes = user_scratchpad();
    if (i > 0) {
      dnnl::post_ops after;
      after.append_sum();
      attributes.set_post_ops(after);
    }
    const dnnl::matmul::primitive_desc made(engine(), part.a, part.b, part.c, attributes);
    if (i == 0) name_ = made.impl_info_str();
    if (describe_only && i > 0) return;
    scratchpad_ = std::max(scratchpad_, made.scratchpad_desc().get_size());
    part.primitive = dnnl::matmul(made);
    parts_.push_back(part);
  }
  a_conversion_ = Conversion(static_cast<size_t>(batch * m * k), dtypes.operands[0], dtypes.compute);
  b_conversion_ = Conversion(static_cast<size_t>(batch * k * n), dtypes.operands[1], dtypes.compute);
  rounding_ = Conversion(static_cast<size_t>(batch * m * n), sums, dtypes.operands[2]);
  if (rounding_.is_needed()) sums_bytes_ = static_cast<size_t>(batch * m * n) * bytes_of(sums);
  scratch_size_ = aligned(scratchpad_) + aligned(sums_bytes_);
  for (const Conversion* each : {&a_conversion_, &b_conversion_, &rounding_}) scratch_size_ += each->scratch_size();
}

void Gemm::run(const void* a, const void* b, void* c, Scratch& scratch) const {
  if (packed_) return packed_->run(static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(c), scratch);
  if (is_sgemm_) return run_sgemm(static_cast<const float*>(a), static_cast<const float*>(b), static_cast<float*>(c));
  const auto memory = [](const dnnl::memory::desc& desc, const void* data) {
    return dnnl::memory(desc, engine(), const_cast<void*>(data));  // oneDNN does not write its inputs
  };
  const auto* left = static_cast<const char*>(a_conversion_.run(a, scratch));
  const auto* right = static_cast<const char*>(b_conversion_.run(b, scratch));
  void* sums = rounding_.is_needed() ? scratch.take(sums_bytes_) : c;
  const auto scratchpad = take_scratchpad(scratch, scratchpad_);
  const auto element = static_cast<int64_t>(bytes_of(shape_.dtypes.compute));
  const int64_t a_step = (shape_.a_transposed ? shape_.m : 1) * element, b_step = (shape_.b_transposed ? 1 : shape_.n) * element;
  for (const Part& part : parts_) {
    part.primitive.execute(stream(), {{DNNL_ARG_SRC, memory(part.a, left + part.begin * a_step)},
                                      {DNNL_ARG_WEIGHTS, memory(part.b, right + part.begin * b_step)},
                                      {DNNL_ARG_DST, memory(part.c, sums)},
                                      {DNNL_ARG_SCRATCHPAD, scratchpad}});
  }
  if (rounding_.is_needed()) rounding_.run(sums, c, scratch);
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
