// Matrix products: C = A B, each as it lies in memory or transposed, one or a batch of them.
#pragma once

#include <string>

#include "common.h"

namespace native {

class Product {
 public:
  struct Sizes {
    dt type = dt::f32;
    int64_t batch = 1, m = 0, n = 0, k = 0;
    bool a_transposed = false, b_transposed = false;  // A lies as (k, m), B as (n, k)
    double work() const { return 2.0 * batch * m * n * k; }
  };

  Product() = default;
  // `only_described`: decides what computes it, and makes no code.
  Product(const Sizes& sizes, int threads, bool only_described = false);

  size_t scratch() const { return rounded(scratch_); }
  std::string name() const { return name_; }
  bool is_slow() const { return name_.find("ref") != std::string::npos; }

  // On a thread that uses the team already.
  void run(const void* a, const void* b, void* c, Scratch& scratch) const;

 private:
  Sizes sizes_;
  bool by_gemm_ = false;
  size_t scratch_ = 0;
  std::string name_;
  dnnl::matmul primitive_;
  dnnl::memory::desc a_, b_, c_;
};

}  // namespace native
