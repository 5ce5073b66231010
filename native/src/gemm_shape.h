// What is multiplied, row by row in memory: one pair of matrices, or a batch of pairs.
#pragma once

#include "onednn.h"

namespace native {

struct GemmShape {
  enum Way { kChosen, kMatmul, kSgemm, kPacked };

  Dtypes dtypes;
  int64_t batch, m, n, k;
  bool a_transposed, b_transposed;  // A is stored as (k, m), B as (n, k)
  Way way = kChosen;                // kMatmul and kSgemm are oneDNN's; they are taken where they can

  double flops() const { return 2.0 * static_cast<double>(batch) * m * n * k; }
};

}  // namespace native
