// C = A B for row-major matrices of float32 numbers, block by block, with a kernel of this project's own. oneDNN's products reach a third to
// all of the speed of a CPU without AVX-512, depending on the sizes and on which matrix is transposed.
#pragma once

#include "gemm_shape.h"
#include "product_spec.h"
#include "scratch.h"

namespace native {

class PackedGemm {
 public:
  // Whether this CPU has the kernel, and whether it is the one to take here.
  static bool can(const GemmShape& shape);
  static bool is_fast(const GemmShape& shape);

  // `has_packed_b`: B is packed once, before the calls.
  PackedGemm(const GemmShape& shape, int threads, bool has_packed_b = false);

  std::string name() const { return "packed:" + isa_name(false); }
  size_t scratch_size() const;
  // `adds`: to what C is.
  void run(const float* a, const float* b, float* c, Scratch& scratch, bool adds = false) const;

  // Where B is packed before: the size of all of it in bytes, and a call, which has no batch.
  size_t packed_size() const;
  void pack(const float* b, float* packed) const;
  void run(const float* a, const float* packed, const Epilogue& after, Scratch& scratch) const;
  // The same for some columns of B, which begin and end with panels, and for some rows of C, the first of which is written to `c`;
  // `mine` is working memory of a thread.
  int64_t panel_columns() const;
  void pack(const float* b, int64_t column, int64_t last_column, float* packed) const;
  void run_rows(const float* a, const float* packed, int64_t row, int64_t last_row, float* c, float* mine) const;
  size_t row_scratch_size() const { return packed_a() * sizeof(float); }

 private:
  struct Operands {
    const float *a, *b;
    float* c;
    const Epilogue* after;  // what follows the sums; null: nothing
    bool adds;
  };

  void run(const Operands& first, Scratch& scratch) const;
  // A part of one product: some rows and columns of C.
  void multiply(const Operands& operands, int64_t row, int64_t last_row, int64_t column, int64_t last_column, float* packed) const;
  size_t packed_a() const;  // numbers
  size_t packed_b() const;

  GemmShape shape_;
  int threads_;
  bool has_packed_b_;
  int64_t down_ = 1, across_ = 1;  // parts of a product
};

}  // namespace native
