// Of few_rows.cc, for each instruction set (each_isa.h).

#include "epilogue.h"

constexpr int kMostRows = kLanes == 16 ? 6 : 3;  // of a block, whose sums stay in registers
constexpr int64_t kPanel = kVectors * kLanes;

// A block of rows of the result, in the columns of one panel.
template <int kRows>
void multiply_block(const Call& call, int64_t row, int64_t panel) {
  const int64_t depth = call.spec.input[1], columns = call.spec.channels;
  const float *data = call.data + row * depth, *weights = call.weights + panel * kPanel * depth;
  Floats sums[kRows][kVectors];
  for (auto& of_row : sums) {
    for (auto& sum : of_row) sum = zero();
  }
  for (int64_t i = 0; i < depth; i++, weights += kPanel) {
    Floats w[kVectors];
    for (int v = 0; v < kVectors; v++) w[v] = load(weights + kLanes * v);
    for (int r = 0; r < kRows; r++) {
      const Floats x = all(data[r * depth + i]);
      for (int v = 0; v < kVectors; v++) sums[r][v] = fma(x, w[v], sums[r][v]);
    }
  }
  for (int v = 0; v < kVectors; v++) {
    const int64_t column = panel * kPanel + kLanes * v;
    if (column >= columns) return;
    const Lanes present = first(columns - column);
    const Floats offset = load(call.offset + column, present);
    for (int r = 0; r < kRows; r++) {
      const int64_t at = (row + r) * columns + column;
      Floats x = sums[r][v] + offset;
      if (call.residual) x = x + load(call.residual + at, present);
      store(call.result + at, present, activated(call.spec, x));
    }
  }
}

template <int... kRows>
constexpr Kernels table_of(std::integer_sequence<int, kRows...>) {
  return {kMostRows, {multiply_block<kRows + 1>...}};
}
constexpr Kernels kKernels = table_of(std::make_integer_sequence<int, kMostRows>());
