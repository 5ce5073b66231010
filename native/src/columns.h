// A convolution as matrix products: every window written out as a row, times the weights as they lie in memory.
#pragma once

#include <string>

#include "product.h"
#include "spec.h"

namespace native {

class Columns {
 public:
  Columns(const Spec& spec, int threads, bool only_described);

  std::string name() const { return (plain_ ? "product " : "columns, product ") + product_.name(); }
  bool is_slow() const { return product_.is_slow(); }
  size_t scratch() const { return rounded(matrix_) + product_.scratch(); }

  // As Direct::run.
  void run(void* first, void* second, void* made, Scratch& scratch) const;

 private:
  void gather(const float* x, float* matrix) const;
  void scatter(const float* matrix, float* x) const;

  Spec spec_;
  int threads_;
  bool plain_;  // the source is the matrix of its windows
  Product product_;
  size_t matrix_ = 0;                                 // bytes
  int64_t in_[3], out_[3], window_[3], stride_[3], step_[3], low_[3];  // three spatial axes, whatever there are
};

}  // namespace native
