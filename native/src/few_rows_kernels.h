// Of few_rows.cc, for each instruction set (each_isa.h).

#include "epilogue.h"

constexpr int kMostRows = kLanes == 16 ? 6 : 3;  // of a block, whose sums stay in registers
constexpr int64_t kPanel = kVectors * kLanes;

constexpr int blocks_of(int rows) { return (rows + kMostRows - 1) / kMostRows; }
constexpr int begin_of(int rows, int block) { return rows * block / blocks_of(rows); }

// Adds what a block of rows of data and some rows of a panel make to its sums.
template <int kAllRows, int kBlock>
void multiply_block(const float* data, int64_t step, const float* weights, int64_t depth, float (*sums_of_all)[kPanel]) {
  constexpr int kBlocks = blocks_of(kAllRows), kBegin = begin_of(kAllRows, kBlock), kRows = begin_of(kAllRows, kBlock + 1) - kBegin;
  // Each block asks for its share of the rows behind. A single one that takes less time than they take to come does better without.
  constexpr bool kAsks = kBlocks > 1 || kRows == kMostRows;
  constexpr int64_t kBytes = kPanel * 4, kShare = kBytes / kBlocks;
  const char* ahead = reinterpret_cast<const char*>(weights) + (kBlocks > 1 ? depth : kAhead) * kBytes + depth * kShare * kBlock;
  data += kBegin * step;
  Floats sums[kRows][kVectors];
  for (int r = 0; r < kRows; r++) {
    for (int v = 0; v < kVectors; v++) sums[r][v] = load(sums_of_all[kBegin + r] + kLanes * v);
  }
  for (int64_t i = 0; i < depth; i++, weights += kPanel, ahead += kShare) {
    Floats w[kVectors];
    for (int v = 0; v < kVectors; v++) w[v] = load(weights + kLanes * v);
    for (int64_t line = 0; kAsks && line < kShare; line += 64) _mm_prefetch(ahead + line, _MM_HINT_T1);
    for (int r = 0; r < kRows; r++) {
      const Floats x = all(data[r * step + i]);
      for (int v = 0; v < kVectors; v++) sums[r][v] = fma(x, w[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; r++) {
    for (int v = 0; v < kVectors; v++) store(sums_of_all[kBegin + r] + kLanes * v, sums[r][v]);
  }
}

template <int kRows, int... kBlock>
void multiply_blocks(const float* data, int64_t step, const float* weights, int64_t depth, float (*sums)[kPanel],
                     std::integer_sequence<int, kBlock...>) {
  (multiply_block<kRows, kBlock>(data, step, weights, depth, sums), ...);
}

// All rows of the result, in the columns of one panel.
template <int kRows>
void multiply_panel(const Call& call, int64_t panel) {
  constexpr std::make_integer_sequence<int, blocks_of(kRows)> kBlocks;
  const int64_t depth = call.depth, most = kBlocks.size() > 1 ? kSharedDepth : depth;
  const float* weights = call.weights + panel * kPanel * depth;
  alignas(64) float sums[kRows][kPanel] = {};
  for (int64_t i = 0; i < depth; i += most) {
    multiply_blocks<kRows>(call.data + i, depth, weights + i * kPanel, std::min(most, depth - i), sums, kBlocks);
  }
  finish(call.after, sums[0], kPanel, 0, kRows, panel * kPanel, std::min((panel + 1) * kPanel, call.after.spec.channels));
}

template <int... kRows>
constexpr Kernels table_of(std::integer_sequence<int, kRows...>) {
  return {{multiply_panel<kRows + 1>...}};
}
constexpr Kernels kKernels = table_of(std::make_integer_sequence<int, kMaxRows>());
