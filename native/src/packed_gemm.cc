// As Goto and van de Geijn (2008, ACM TOMS 34, 12) arrange a product: a block of B is packed into panels of some columns, and blocks of A into
// panels of some rows, one after the other. A panel of B stays in the first cache while it meets all of a block of A, which stays in the
// second. Threads compute parts of C, and pack for themselves: they never wait for each other.

#include "packed_gemm.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "operation.h"
#include "vectors.h"

namespace native {

namespace {

constexpr int64_t kDepth = 256, kRows = 144, kColumns = 1024;  // of blocks
constexpr int64_t kFewRows = 24, kNearColumns = 512;          // for which B is read where it is
constexpr int64_t kBeyond = 16;                               // numbers behind a packed panel

int64_t parts_of(int64_t size, int64_t most) { return (size + most - 1) / most; }

// Rows of A from the first one on, in panels of nearly the same size.
struct Panels {
  int64_t first, rows, count;

  int64_t begin(int64_t i) const { return rows * i / count; }
  int64_t size(int64_t i) const { return begin(i + 1) - begin(i); }
  // Where a packed one begins; behind it, a vector may be written over.
  int64_t packed(int64_t i, int64_t depth) const { return begin(i) * depth + i * kBeyond; }
};

// Where B was packed before: what is read soon, in steps of bytes; and what follows the sums of C from `row` and `column` on, once they
// are complete.
struct Next {
  const char* ahead;
  int64_t step;
  const Epilogue* after;
  int64_t row, column;
};

// of[i][j]: of i + 1 vectors of a panel of B, whose rows lie `b_step` apart, and j + 1 rows of one of A. `adds`: to what C is.
struct Products {
  void (*of[4][6])(const float* a, const float* b, int64_t b_step, int64_t depth, float* c, int64_t c_step, int64_t columns, bool adds,
                   const Next*);
};

struct Kernels {
  int64_t most_rows, tile;  // rows of a panel of A, columns of one of B
  void (*pack_rows)(const GemmShape&, const float* a, const Panels&, int64_t begin, int64_t depth, float* to);
  void (*pack_columns)(const GemmShape&, const float* b, int64_t column, int64_t columns, int64_t begin, int64_t depth, float* to);
  Products multiply[2];  // where B was packed before: the second ones
};

#define KERNELS "packed_gemm_kernels.h"
#include "each_isa.h"

const Kernels& kernels() { return for_this_cpu(avx2::kKernels, avx512::kKernels); }

}  // namespace

bool PackedGemm::can(const GemmShape& s) { return s.dtypes.compute == dt::f32 && runs_kernels(false); }

// Measured with two threads (docs/performance-avx2.md). oneDNN's sgemm is the faster one for few columns, for few rows where B would have to be
// turned for them, and for long sums with a small result.
bool PackedGemm::is_fast(const GemmShape& s) {
  constexpr int64_t kLeastColumns = 33, kLeastRows = 8, kLeastRowsToTurn = 48, kLongSum = 1024, kSmallResult = 1 << 14;
  if (!can(s) || isa() != Isa::kAvx2 || s.n < kLeastColumns) return false;
  return s.m >= (s.b_transposed ? kLeastRowsToTurn : kLeastRows) && (s.k <= kLongSum || s.m * s.n >= kSmallResult);
}

PackedGemm::PackedGemm(const GemmShape& shape, int threads, bool has_packed_b)
    : shape_(shape), threads_(threads), has_packed_b_(has_packed_b) {
  if (shape.batch >= threads) return;
  // What a thread has to do in each of the ways to divide C: products, and to pack a number takes as long as some of them.
  constexpr double kPacking = 8;
  const Kernels& k = kernels();
  const int64_t panels[] = {parts_of(shape.m, k.most_rows), parts_of(shape.n, k.tile)};
  double least = std::numeric_limits<double>::infinity();
  for (int64_t down = 1; down <= threads; down++) {
    const int64_t across = threads / down;
    const auto rows = static_cast<double>(parts_of(panels[0], down) * k.most_rows);
    const auto columns = static_cast<double>(parts_of(panels[1], across) * k.tile);
    const double work = rows * columns + kPacking * (rows + (has_packed_b ? 0 : columns));
    if (work < least) least = work, down_ = std::min(down, panels[0]), across_ = std::min(across, panels[1]);
  }
}

size_t PackedGemm::packed_a() const {
  const int64_t rows = std::min(kRows, shape_.m);
  return static_cast<size_t>(rows * std::min(kDepth, shape_.k) + (rows / kernels().most_rows + 2) * kBeyond);
}

size_t PackedGemm::packed_b() const {
  if (has_packed_b_) return 0;
  const int64_t tile = kernels().tile;
  return static_cast<size_t>(std::min(kColumns, parts_of(shape_.n, tile) * tile) * std::min(kDepth, shape_.k) + kBeyond);
}

size_t PackedGemm::scratch_size() const { return static_cast<size_t>(threads_) * aligned((packed_a() + packed_b()) * sizeof(float)); }

size_t PackedGemm::packed_size() const {
  const int64_t tile = kernels().tile;
  return static_cast<size_t>(parts_of(shape_.n, tile) * tile * shape_.k + kBeyond) * sizeof(float);
}

int64_t PackedGemm::panel_columns() const { return kernels().tile; }

// All panels of the first rows of B, then those of the next ones.
void PackedGemm::pack(const float* b, float* packed) const { pack(b, 0, shape_.n, packed); }

void PackedGemm::pack(const float* b, int64_t column, int64_t last_column, float* packed) const {
  const int64_t tile = kernels().tile, width = parts_of(shape_.n, tile) * tile, depths = parts_of(shape_.k, kDepth);
  for (int64_t part = 0; part < depths; part++) {
    const int64_t begin = shape_.k * part / depths, depth = shape_.k * (part + 1) / depths - begin;
    kernels().pack_columns(shape_, b, column, last_column - column, begin, depth, packed + begin * width + column * depth);
  }
}

void PackedGemm::run_rows(const float* a, const float* packed, int64_t row, int64_t last_row, float* c, float* mine) const {
  multiply({a, packed, c - row * shape_.n, nullptr, false}, row, last_row, 0, shape_.n, mine);
}

void PackedGemm::run(const float* a, const float* b, float* c, Scratch& scratch, bool adds) const {
  run({a, b, c, nullptr, adds}, scratch);
}

void PackedGemm::run(const float* a, const float* packed, const Epilogue& after, Scratch& scratch) const {
  run({a, packed, after.result, &after, false}, scratch);
}

void PackedGemm::run(const Operands& first, Scratch& scratch) const {
  const auto& s = shape_;
  char* packed = scratch.take(scratch_size());
  const int64_t parts = down_ * across_, panels[] = {parts_of(s.m, kernels().most_rows), parts_of(s.n, kernels().tile)};
  thread_pool::on_threads(threads_, [&](int64_t thread) {
    auto* mine = reinterpret_cast<float*>(packed + static_cast<size_t>(thread) * aligned((packed_a() + packed_b()) * sizeof(float)));
    for (int64_t unit = s.batch * parts * thread / threads_; unit < s.batch * parts * (thread + 1) / threads_; unit++) {
      const int64_t pair = unit / parts, i = unit % parts / across_, j = unit % parts % across_;
      const Operands operands{first.a + pair * s.m * s.k, first.b + pair * s.k * s.n, first.c + pair * s.m * s.n, first.after, first.adds};
      const auto row = [&](int64_t part) { return std::min(s.m, panels[0] * part / down_ * kernels().most_rows); };
      const auto column = [&](int64_t part) { return std::min(s.n, panels[1] * part / across_ * kernels().tile); };
      multiply(operands, row(i), row(i + 1), column(j), column(j + 1), mine);
    }
  });
}

void PackedGemm::multiply(const Operands& operands, int64_t row, int64_t last_row, int64_t column, int64_t last_column,
                          float* packed) const {
  const Kernels& k = kernels();
  const auto& [a, b, c, after, adds] = operands;
  float *left = packed, *right = packed + packed_a();
  const int64_t depths = parts_of(shape_.k, kDepth), blocks = parts_of(last_row - row, kRows), width = parts_of(shape_.n, k.tile) * k.tile;
  const int64_t most_columns = has_packed_b_ && blocks == 1 ? last_column - column : kColumns;
  for (; column < last_column; column += most_columns) {
    const int64_t columns = std::min(most_columns, last_column - column);
    for (int64_t part = 0; part < depths; part++) {
      const int64_t begin = shape_.k * part / depths, depth = shape_.k * (part + 1) / depths - begin;
      const bool is_in_place = !has_packed_b_ && !shape_.b_transposed && last_row - row <= kFewRows && shape_.n <= kNearColumns;
      const int64_t in_place = is_in_place ? columns / k.tile * k.tile : 0;
      if (!has_packed_b_) k.pack_columns(shape_, b, column + in_place, columns - in_place, begin, depth, right + in_place * depth);
      const float* panels_of_b = has_packed_b_ ? b + begin * width + column * depth : right;
      for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = row + (last_row - row) * block / blocks, rows = row + (last_row - row) * (block + 1) / blocks - first;
        const Panels panels{first, rows, parts_of(rows, k.most_rows)};
        k.pack_rows(shape_, a, panels, begin, depth, left);
        for (int64_t j = 0; j < columns; j += k.tile) {
          const auto& multiply = k.multiply[has_packed_b_].of[(std::min(k.tile, columns - j) - 1) / lanes()];
          const float* from = j < in_place ? b + begin * shape_.n + column + j : panels_of_b + j * depth;
          const int64_t step = j < in_place ? shape_.n : k.tile;
          for (int64_t i = 0; i < panels.count; i++) {
            const int64_t at = first + panels.begin(i);
            const auto product = multiply[panels.size(i) - 1];
            const float* rows_of_a = left + panels.packed(i, depth);
            float* sums = c + at * shape_.n + column + j;
            if (!has_packed_b_) {
              product(rows_of_a, from, step, depth, sums, shape_.n, columns - j, adds || part > 0, nullptr);
              continue;
            }
            // Each panel of A asks for its share of the next one of B.
            const auto* ahead = reinterpret_cast<const char*>(from + k.tile * depth) + i * depth * k.tile * 4 / panels.count;
            const int64_t ahead_step = (k.tile * 4 + panels.count - 1) / panels.count;
            const Next next{ahead, ahead_step, part == depths - 1 ? after : nullptr, at, column + j};
            product(rows_of_a, from, step, depth, sums, shape_.n, columns - j, part > 0, &next);
          }
        }
      }
    }
  }
}

}  // namespace native
