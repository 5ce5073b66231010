// Of packed_gemm.cc, for each instruction set (each_isa.h).

#include "epilogue.h"

constexpr int kMostRows = 6, kVectors = kLanes == 16 ? 4 : 2;  // of sums in registers
constexpr int64_t kTile = kVectors * kLanes;

// Turns `rows` rows that lie `step` apart into columns: number d of row r goes to to[d * to_step + r]. Up to a vector is written behind the
// last number, and zeros stand for missing rows there.
void turn_rows(const float* from, int64_t step, int64_t rows, int64_t depth, float* to, int64_t to_step) {
  const int64_t whole = depth / 8 * 8;
  turn(from, step, rows, whole, to, to_step);
  for (int64_t d = whole; d < depth; d++) {
    for (int64_t r = 0; r < kLanes; r++) to[d * to_step + r] = r < rows ? from[r * step + d] : 0;
  }
}

// Panels of rows of A, each with number r of a column beside number r + 1, and the next column behind.
void pack_rows(const GemmShape& s, const float* a, const Panels& panels, int64_t begin, int64_t depth, float* to) {
  if (!s.a_transposed) {
    for (int64_t i = 0; i < panels.count; i++) {
      const float* from = a + (panels.first + panels.begin(i)) * s.k + begin;
      turn_rows(from, s.k, panels.size(i), depth, to + panels.packed(i, depth), panels.size(i));
    }
    return;
  }
  constexpr int64_t kGroup = 16;  // columns of A whose parts for all panels stay in the first cache
  for (int64_t d = 0; d < depth; d += kGroup) {
    const int64_t end = std::min(d + kGroup, depth);
    for (int64_t i = 0; i < panels.count; i++) {
      const int64_t rows = panels.size(i);
      const Lanes present = first(rows);
      const float* from = a + (begin + d) * s.m + panels.first + panels.begin(i);
      float* column = to + panels.packed(i, depth) + d * rows;
      for (int64_t j = d; j < end; j++, from += s.m, column += rows) store(column, load(from, present));
    }
  }
}

// Panels of kTile columns of B, of which missing ones are zeros.
void pack_columns(const GemmShape& s, const float* b, int64_t column, int64_t columns, int64_t begin, int64_t depth, float* to) {
  if (s.b_transposed) {
    for (int64_t j = 0; j < columns; j += kLanes) {
      turn_rows(b + (column + j) * s.k + begin, s.k, columns - j, depth, to + j / kTile * kTile * depth + j % kTile, kTile);
    }
    if (columns % kTile == 0) return;
    float* last = to + columns / kTile * kTile * depth;
    for (int64_t j = (columns % kTile + kLanes - 1) / kLanes * kLanes; j < kTile; j += kLanes) {
      for (int64_t d = 0; d < depth; d++) store(last + d * kTile + j, zero());
    }
    return;
  }
  // So many panels at a time as rows of B have numbers that come along with each other.
  constexpr int64_t kGroup = 8 * kTile;
  for (int64_t j = 0; j < columns; j += kGroup, to += kGroup * depth) {
    const int64_t count = std::min(kGroup, columns - j), whole = count / kTile * kTile;
    const float* from = b + begin * s.n + column + j;
    for (int64_t d = 0; d < depth; d++, from += s.n) {
      for (int64_t i = 0; i < whole; i += kLanes) store(to + i / kTile * kTile * depth + d * kTile + i % kTile, load(from + i));
      for (int64_t i = whole; i < count; i += kTile) {
        for (int v = 0; v < kVectors; v++) {
          store(to + i * depth + d * kTile + kLanes * v, load(from + i + kLanes * v, first(count - i - kLanes * v)));
        }
      }
    }
  }
}

// `kHasNext`: B was packed before, and comes from memory.
template <int kRows, int kColumns, bool kHasNext>
void multiply(const float* a, const float* b, int64_t b_step, int64_t depth, float* c, int64_t c_step, int64_t columns, bool adds,
              const Next* next) {
  for (int r = 0; r < kRows; r++) {
    _mm_prefetch(reinterpret_cast<const char*>(c + r * c_step), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(c + r * c_step + kColumns * kLanes - 1), _MM_HINT_T0);
  }
  const char* ahead = kHasNext ? next->ahead : nullptr;
  const int64_t ahead_step = kHasNext ? next->step : 0;
  Floats sums[kRows][kColumns];
  for (auto& of_row : sums) {
    for (auto& sum : of_row) sum = zero();
  }
  for (int64_t i = 0; i < depth; i++, a += kRows, b += b_step) {
    Floats of_b[kColumns];
    for (int v = 0; v < kColumns; v++) of_b[v] = load(b + kLanes * v);
    if (kHasNext) _mm_prefetch(ahead, _MM_HINT_T0), ahead += ahead_step;
    for (int r = 0; r < kRows; r++) {
      const Floats one = all(a[r]);
      for (int v = 0; v < kColumns; v++) sums[r][v] = fma(one, of_b[v], sums[r][v]);
    }
  }
  const Lanes last = first(columns - (kColumns - 1) * kLanes);
  if (kHasNext && next->after) {
    alignas(64) float all_sums[kRows][kColumns * kLanes];
    for (int r = 0; r < kRows; r++, c += c_step) {
      for (int v = 0; v < kColumns; v++) {
        const Floats before = !adds ? zero() : v < kColumns - 1 ? load(c + kLanes * v) : load(c + kLanes * v, last);
        store(all_sums[r] + kLanes * v, before + sums[r][v]);
      }
    }
    const int64_t end = next->column + std::min<int64_t>(columns, kColumns * kLanes);
    return finish(*next->after, all_sums[0], kColumns * kLanes, next->row, kRows, next->column, end);
  }
  for (int r = 0; r < kRows; r++, c += c_step) {
    for (int v = 0; v < kColumns - 1; v++) store(c + kLanes * v, adds ? load(c + kLanes * v) + sums[r][v] : sums[r][v]);
    float* to = c + (kColumns - 1) * kLanes;
    const Floats sum = sums[r][kColumns - 1];
    store(to, last, adds ? load(to, last) + sum : sum);
  }
}

template <bool kHasNext, int... kRows>
constexpr Products products_of(std::integer_sequence<int, kRows...>) {
  if constexpr (kVectors == 2) {
    return {{{multiply<kRows + 1, 1, kHasNext>...}, {multiply<kRows + 1, 2, kHasNext>...}}};
  } else {
    return {{{multiply<kRows + 1, 1, kHasNext>...},
            {multiply<kRows + 1, 2, kHasNext>...},
            {multiply<kRows + 1, 3, kHasNext>...},
            {multiply<kRows + 1, 4, kHasNext>...}}};
  }
}
constexpr std::make_integer_sequence<int, kMostRows> kRowCounts;
constexpr Kernels kKernels{kMostRows, kTile, pack_rows, pack_columns, {products_of<false>(kRowCounts), products_of<true>(kRowCounts)}};
