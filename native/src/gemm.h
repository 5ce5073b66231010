// C = A B for row-major matrices, one pair or a batch of pairs.
#pragma once

#include <string>

#include "onednn.h"

namespace native {

struct GemmShape {
  enum Way { kChosen, kMatmul, kSgemm };

  Dtypes dtypes;
  int64_t batch, m, n, k;
  bool a_transposed, b_transposed;  // A is stored as (k, m), B as (n, k)
  Way way = kChosen;                // of oneDNN's; kSgemm where it can

  double flops() const { return 2.0 * static_cast<double>(batch) * m * n * k; }
};

class Gemm {
 public:
  // `describe_only`: generates no code.
  Gemm(const GemmShape& shape, int threads, bool describe_only);

  std::string name() const { return name_; }
  bool is_slow() const { return name_.find("ref") != std::string::npos; }
  size_t scratch_size() const { return aligned(scratchpad_) + a_conversion_.scratch_size() + b_conversion_.scratch_size(); }
  void run(const void* a, const void* b, void* c, Scratch& scratch) const;

 private:
  void run_sgemm(const float* a, const float* b, float* c) const;

  GemmShape shape_;
  bool is_sgemm_;
  std::string name_;
  size_t scratchpad_ = 0;
  dnnl::matmul primitive_;
  dnnl::memory::desc a_, b_, c_;
  Conversion a_conversion_, b_conversion_;
};

}  // namespace native
