// C = A B for row-major matrices, one pair or a batch of pairs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "packed_gemm.h"

namespace native {

class Gemm {
 public:
  // `describe_only`: generates no code.
  Gemm(const GemmShape& shape, int threads, bool describe_only);

  std::string name() const { return name_; }
  bool is_slow() const { return name_.find("ref") != std::string::npos; }
  size_t scratch_size() const { return scratch_size_; }
  void run(const void* a, const void* b, void* c, Scratch& scratch) const;

 private:
  // The product of A's columns from `begin` on with the same rows of B. All but the first add to C.
  struct Part {
    int64_t begin;
    dnnl::memory::desc a, b, c;
    dnnl::matmul primitive;
  };

  void run_sgemm(const float* a, const float* b, float* c) const;

  GemmShape shape_;
  bool is_sgemm_;
  std::optional<PackedGemm> packed_;  // where that is the way
  std::string name_;
  std::vector<Part> parts_;
  size_t scratch_size_ = 0, scratchpad_ = 0;
  size_t sums_bytes_ = 0;  // of sums that are rounded only once they are complete
  Conversion a_conversion_, b_conversion_, rounding_;
};

}  // namespace native
