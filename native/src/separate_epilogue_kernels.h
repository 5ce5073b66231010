// Of product.cc, for each instruction set (each_isa.h): what follows sums that are in the result already.

#include "epilogue.h"

inline void finish_rows(const Epilogue& after, int64_t row, int64_t rows) {
  constexpr int64_t kRows = 16;  // stay in the first cache while their columns are taken one vector after the other
  const int64_t columns = after.spec.channels;
  for (const int64_t end = row + rows; row < end; row += kRows) {
    finish(after, after.result + row * columns, columns, row, std::min(kRows, end - row), 0, columns);
  }
}

constexpr Kernels kKernels{finish_rows};
