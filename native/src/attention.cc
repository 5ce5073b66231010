// Attention, softmax(factor Q K^T + mask) V, and its gradients, block by block: at no time does an array of queries times keys
// exist. The forward pass keeps two numbers per query, the maximum of its scores and the reciprocal of the sum of their
// exponentials, from which the backward pass computes the weights again. (Their logarithm in one number, as is often kept,
// would lose the sum where a mask of -1e9 is all that a query sees.)
//
// Products are computed by the kernel below, not by oneDNN: their second factors are packed once per head and used by
// every block of queries, and blocks are too small for a call of oneDNN each. AVX-512 only.
//
//   attention       q, k, v, mask -> result, statistics
//   attention_grad  q, k, v, mask, result, statistics, gradient to the result -> gradients to q, k, v
// The spec is written by oneflow/ops/_native_attention.py.
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "operation.h"
#include "vector_math.h"

namespace native {

namespace {

constexpr int64_t kForwardQueries = 96, kForwardKeys = 128, kBackwardQueries = 128, kBackwardKeys = 96;  // of a block
constexpr int64_t kPanel = 64;      // columns of a packed factor that lie side by side
constexpr int64_t kTileRows = 6;  // of up to 64 columns: 24 sums in registers
constexpr int64_t kMaxHeadSize = 256;
constexpr int64_t kFewQueries = 4;  // up to so many are taken one by one, and nothing is packed for them
constexpr float kInfinity = std::numeric_limits<float>::infinity();

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Where the rows of (batch, head, position) lie in memory; a row's elements lie side by side.
struct Layout {
  int64_t batch, head, row;
};

struct AttentionSpec {
  explicit AttentionSpec(SpecReader reader) {
    constexpr int64_t kMax = int64_t{1} << 24;
    type = reader.next_dtype();
    batch = reader.next(1, kMax), heads = reader.next(1, kMax);
    queries = reader.next(1, kMax), keys = reader.next(1, kMax), size = reader.next(16, kMaxHeadSize);
    if (size % 16) throw std::invalid_argument("the size of a head is not a multiple of 16");
    for (auto* layout : {&q, &k, &v, &o}) {
      const int64_t rows = layout == &q || layout == &o ? queries : keys;
      for (auto* stride : {&layout->batch, &layout->head, &layout->row}) *stride = reader.next(16, int64_t{1} << 40);
      if (layout->batch % 16 || layout->head % 16 || layout->row % 16) throw std::invalid_argument("a stride is not one of rows");
      const double last = double(batch - 1) * layout->batch + double(heads - 1) * layout->head + double(rows - 1) * layout->row;
      if (last + size > double(batch) * heads * rows * size) throw std::invalid_argument("a stride leads out of an array");
    }
    has_mask = reader.next_bool();
    const int64_t mask_shape[] = {batch, heads, queries, keys};
    mask_size = 1;
    for (int i = 3; i >= 0; i--) {
      const bool varies = reader.next_bool();  // along the keys, the queries, the heads, the batch
      mask_strides[i] = has_mask && varies ? mask_size : 0;
      if (mask_strides[i]) mask_size *= mask_shape[i];
      if (mask_size > int64_t{1} << 40) throw std::invalid_argument("the mask is too large");
    }
    factor = reader.next_float();
    is_causal = reader.next_bool();
    diagonal = reader.next(-kMax, kMax);
    fill = reader.next_float();
    reader.finish();
  }

  size_t bytes_of_rows(int64_t rows) const { return static_cast<size_t>(batch * heads * rows * size) * bytes_of(type); }
  double flops(int products) const { return 2.0 * products * batch * heads * queries * keys * size; }
  int64_t words() const { return type == dt::f32 ? size : size / 2; }  // of a row

  // Whether no query of the first `end` sees a key from `first_key` on.
  bool hides(int64_t end, int64_t first_key) const { return is_causal && first_key > end - 1 + diagonal; }
  bool hides_some(int64_t first_query, int64_t key_end) const { return is_causal && key_end - 1 > first_query + diagonal; }

  dt type;
  int64_t batch, heads, queries, keys, size;
  Layout q, k, v, o;
  bool has_mask;
  int64_t mask_strides[4], mask_size;
  float factor;
  bool is_causal;  // the score of a key beyond the query's position plus `diagonal` is `fill`
  int64_t diagonal;
  float fill;
};

bool has_isa(dnnl::cpu_isa needed) {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (isa & static_cast<unsigned>(needed)) == static_cast<unsigned>(needed);
}

// A matrix of 32-bit words: float32 numbers, or pairs of bfloat16 numbers that are neighbours along the axis that is summed over.
struct Words {
  const float* data;
  int64_t row, column;  // steps between rows and between columns
};

// --- what follows is compiled for AVX-512; it is called only where the CPU has that

#include "avx512_begin.h"

template <bool kBf16>
inline __m512 multiply_add(__m512 a, __m512 b, __m512 sum) {
  if constexpr (kBf16) return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  return _mm512_fmadd_ps(a, b, sum);
}

// kRows x kVectors * 16 elements of C (+)= A B; the rows of B are vectors of words.
template <bool kBf16, int kRows, int kVectors>
void multiply_tile(Words a, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t depth, bool adds) {
  __m512 sums[kRows][kVectors];
  for (int r = 0; r < kRows; r++) {
    for (int v = 0; v < kVectors; v++) sums[r][v] = adds ? _mm512_loadu_ps(c + r * c_row + 16 * v) : _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < depth; i++) {
    __m512 row[kVectors];
    for (int v = 0; v < kVectors; v++) row[v] = _mm512_loadu_ps(b + i * b_row + 16 * v);
    for (int r = 0; r < kRows; r++) {
      const __m512 one = _mm512_broadcastss_ps(_mm_load_ss(a.data + r * a.row + i * a.column));
      for (int v = 0; v < kVectors; v++) sums[r][v] = multiply_add<kBf16>(one, row[v], sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; r++) {
    for (int v = 0; v < kVectors; v++) _mm512_storeu_ps(c + r * c_row + 16 * v, sums[r][v]);
  }
}

template <bool kBf16, int kVectors>
void multiply_rows(int64_t rows, Words a, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t depth, bool adds) {
  for (; rows >= kTileRows; rows -= kTileRows, a.data += kTileRows * a.row, c += kTileRows * c_row) {
    multiply_tile<kBf16, kTileRows, kVectors>(a, b, b_row, c, c_row, depth, adds);
  }
  switch (rows) {
    case 5: return multiply_tile<kBf16, 5, kVectors>(a, b, b_row, c, c_row, depth, adds);
    case 4: return multiply_tile<kBf16, 4, kVectors>(a, b, b_row, c, c_row, depth, adds);
    case 3: return multiply_tile<kBf16, 3, kVectors>(a, b, b_row, c, c_row, depth, adds);
    case 2: return multiply_tile<kBf16, 2, kVectors>(a, b, b_row, c, c_row, depth, adds);
    case 1: return multiply_tile<kBf16, 1, kVectors>(a, b, b_row, c, c_row, depth, adds);
    default: return;
  }
}

// C (+)= A B, `columns` being a multiple of 16 and `depth` counted in words.
template <bool kBf16>
void multiply(int64_t rows, int64_t columns, Words a, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t depth,
              bool adds) {
  for (; columns >= 64; columns -= 64, b += 64, c += 64) multiply_rows<kBf16, 4>(rows, a, b, b_row, c, c_row, depth, adds);
  switch (columns / 16) {
    case 3: return multiply_rows<kBf16, 3>(rows, a, b, b_row, c, c_row, depth, adds);
    case 2: return multiply_rows<kBf16, 2>(rows, a, b, b_row, c, c_row, depth, adds);
    case 1: return multiply_rows<kBf16, 1>(rows, a, b, b_row, c, c_row, depth, adds);
    default: return;
  }
}

// The same with B in panels, whose first column is `first`.
template <bool kBf16>
void multiply_panels(int64_t rows, int64_t first, int64_t columns, Words a, const float* panels, float* c, int64_t c_row,
                     int64_t depth) {
  for (int64_t i = 0; i < columns; i += kPanel) {
    const float* b = panels + (first + i) * depth;
    multiply<kBf16>(rows, std::min(kPanel, columns - i), a, b, kPanel, c + i, c_row, depth, false);
  }
}

inline __m512 load_row(const float* data, int64_t index, bool is_bf16) {
  if (!is_bf16) return _mm512_loadu_ps(data + index);
  const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(reinterpret_cast<const uint16_t*>(data) + index));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
}

inline void store_row(float* data, int64_t index, __m512 value, bool is_bf16) {
  if (!is_bf16) return _mm512_storeu_ps(data + index, value);
  auto* narrow = reinterpret_cast<__m256i*>(reinterpret_cast<uint16_t*>(data) + index);
  _mm256_storeu_si256(narrow, (__m256i)_mm512_cvtneps_pbh(value));
}

// Panels of the transposed matrix: word d of row r goes to row d of panel r / kPanel. Missing rows of the last panel are zeros.
void pack_transposed(const float* data, int64_t row_words, int64_t rows, int64_t words, float* panels) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i low = _mm512_mullo_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(lanes)), _mm512_set1_epi64(row_words));
  const __m512i high = _mm512_mullo_epi64(_mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(lanes, 1)), _mm512_set1_epi64(row_words));
  for (int64_t first = 0; first < round_up(rows, kPanel); first += 16) {
    float* to = panels + first / kPanel * kPanel * words + first % kPanel;
    const int64_t count = std::min<int64_t>(16, rows - first);
    const auto present = static_cast<__mmask16>(count <= 0 ? 0 : (1u << count) - 1);
    const float* from = data + (count <= 0 ? 0 : first * row_words);
    for (int64_t d = 0; d < words; d++, to += kPanel) {
      const __m256 a = _mm512_mask_i64gather_ps(_mm256_setzero_ps(), static_cast<__mmask8>(present), low, from + d, 4);
      const __m256 b = _mm512_mask_i64gather_ps(_mm256_setzero_ps(), static_cast<__mmask8>(present >> 8), high, from + d, 4);
      _mm256_storeu_ps(to, a);
      _mm256_storeu_ps(to + 8, b);
    }
  }
}

inline __m512i pair_up(__m256i even, __m256i odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

// Words of two bfloat16 rows each: word d of row i holds elements d of rows 2 i and 2 i + 1. A missing last row is zero.
void pack_pairs(const uint16_t* data, int64_t row, int64_t rows, int64_t size, float* to) {
  for (int64_t r = 0; r < rows; r += 2) {
    const uint16_t *even = data + r * row, *odd = r + 1 < rows ? even + row : nullptr;
    for (int64_t d = 0; d < size; d += 16, to += 16) {
      const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(even + d));
      const __m256i high = odd ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd + d)) : _mm256_setzero_si256();
      _mm512_storeu_si512(to, pair_up(low, high));
    }
  }
}

void copy_rows(const float* data, int64_t row, int64_t rows, int64_t size, float* to) {
  for (int64_t r = 0; r < rows; r++) std::memcpy(to + r * size, data + r * row, static_cast<size_t>(size) * sizeof(float));
}

// One array of a call, of one head.
struct Head {
  float* data;  // of bfloat16 numbers where that is the call's type
  int64_t row;  // elements between rows

  template <bool kBf16>
  Words words() const {
    return {data, kBf16 ? row / 2 : row, 1};
  }

  template <bool kBf16>
  float* at(int64_t position) const {
    return kBf16 ? data + position * row / 2 : data + position * row;
  }
};

// The rows of a head as the second factor of a product that sums over rows: words() of two rows each, or the rows themselves.
template <bool kBf16>
const float* pack_rows(const Head& head, int64_t rows, int64_t size, float* room) {
  if constexpr (kBf16) {
    pack_pairs(reinterpret_cast<const uint16_t*>(head.data), head.row, rows, size, room);
  } else {
    if (head.row == size) return head.data;
    copy_rows(head.data, head.row, rows, size, room);
  }
  return room;
}

template <bool kBf16>
constexpr int64_t words_of(int64_t rows) {
  return kBf16 ? (rows + 1) / 2 : rows;
}

// The numbers of one head of the mask.
struct Mask {
  const float* data;
  int64_t query, key;

  // Those of 16 keys as one query sees them, and of 16 queries as they see one key.
  __m512 of_keys(int64_t q, int64_t first, __mmask16 present) const {
    const float* from = data + q * query + first * key;
    return key ? _mm512_maskz_loadu_ps(present, from) : _mm512_set1_ps(*from);
  }
  __m512 of_queries(int64_t first, int64_t k, __mmask16 present) const {
    const float* from = data + first * query + k * key;
    if (!query) return _mm512_set1_ps(*from);
    if (query == 1) return _mm512_maskz_loadu_ps(present, from);
    alignas(64) float values[16] = {};
    for (int i = 0; i < 16; i++) {
      if (present >> i & 1) values[i] = from[i * query];
    }
    return _mm512_load_ps(values);
  }
};

inline __mmask16 lanes_below(int64_t count) { return static_cast<__mmask16>(count >= 16 ? 0xffff : (1u << std::max<int64_t>(count, 0)) - 1); }

// --- the forward pass over a block of queries

struct ForwardRoom {
  float *keys, *values, *scores, *sums, *narrow;  // `narrow`: weights in bfloat16
};

// Turns the scores of one query into weights. Updates its maximum and the sum of its weights; returns the factor of what was summed before.
template <bool kBf16, bool kMasked, bool kFilled>
float weigh(const AttentionSpec& s, const Mask& mask, int64_t q, int64_t first_key, int64_t keys, float* scores, float* narrow,
            float* maximum, float* sum) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  __m512 largest = _mm512_set1_ps(-kInfinity);
  for (int64_t i = 0; i < keys; i += 16) {
    const __mmask16 present = lanes_below(keys - i);
    __m512 x = _mm512_mul_ps(_mm512_loadu_ps(scores + i), _mm512_set1_ps(s.factor));
    if constexpr (kMasked) x = _mm512_add_ps(x, mask.of_keys(q, first_key + i, present));
    if constexpr (kFilled) {
      const auto last = static_cast<int>(q + s.diagonal - first_key - i);
      x = _mm512_mask_mov_ps(x, _mm512_cmpgt_epi32_mask(lanes, _mm512_set1_epi32(last)), _mm512_set1_ps(s.fill));
    }
    x = _mm512_mask_mov_ps(_mm512_set1_ps(-kInfinity), present, x);
    _mm512_storeu_ps(scores + i, x);
    largest = _mm512_max_ps(x, largest);  // NaN is passed over here, and found by the sum
  }
  const float found = std::max(*maximum, _mm512_reduce_max_ps(largest));
  const float base = found == -kInfinity ? 0 : found;
  const __m512 shift = _mm512_set1_ps(base);
  __m512 total = _mm512_setzero_ps();
  for (int64_t i = 0; i < keys; i += 16) {
    const __m512 weights = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + i), shift));
    total = _mm512_add_ps(total, weights);
    store_row(kBf16 ? narrow : scores, i, weights, kBf16);
  }
  const float before = _mm512_cvtss_f32(exponential(_mm512_set1_ps(*maximum - base)));
  *sum = *sum * before + _mm512_reduce_add_ps(total);
  *maximum = found;
  return before;
}

template <bool kBf16>
void weigh_block(const AttentionSpec& s, const Mask& mask, int64_t first, int64_t count, int64_t first_key, int64_t keys,
                 const ForwardRoom& room, float* maxima, float* sums) {
  const bool is_filled = s.hides_some(first, first_key + keys);
  const auto run = s.has_mask ? (is_filled ? weigh<kBf16, true, true> : weigh<kBf16, true, false>)
                              : (is_filled ? weigh<kBf16, false, true> : weigh<kBf16, false, false>);
  for (int64_t r = 0; r < count; r++) {
    const float before = run(s, mask, first + r, first_key, keys, room.scores + r * kForwardKeys, room.narrow + r * kForwardKeys / 2,
                             maxima + r, sums + r);
    if (before == 1) continue;
    float* row = room.sums + r * s.size;
    for (int64_t d = 0; d < s.size; d += 16) _mm512_storeu_ps(row + d, _mm512_mul_ps(_mm512_loadu_ps(row + d), _mm512_set1_ps(before)));
  }
}

// Whether keys whose score is `fill` have a weight of zero for each of these queries.
bool fill_is_nothing(const AttentionSpec& s, const float* maxima, const float* sums, int64_t count, int64_t step) {
  for (int64_t r = 0; r < count; r++) {
    if (!(maxima[r * step] - s.fill > -kLeastExponent) || !(sums[r * step] < kInfinity)) return false;
  }
  return true;
}

template <bool kBf16>
void forward_block(const AttentionSpec& s, const Head& q, const Mask& mask, int64_t first, int64_t count, const float* keys,
                   const float* values, const ForwardRoom& room, const Head& o, float* statistics) {
  float maxima[kForwardQueries], sums[kForwardQueries];
  std::fill_n(maxima, count, -kInfinity), std::fill_n(sums, count, 0.f);
  std::fill_n(room.sums, count * s.size, 0.f);
  const Words rows = {q.at<kBf16>(first), q.words<kBf16>().row, 1};
  for (int64_t key = 0; key < s.keys; key += kForwardKeys) {
    const int64_t present = std::min(kForwardKeys, s.keys - key);
    if (s.hides(first + count, key) && fill_is_nothing(s, maxima, sums, count, 1)) continue;
    multiply_panels<kBf16>(count, key, round_up(present, 16), rows, keys, room.scores, kForwardKeys, s.words());
    weigh_block<kBf16>(s, mask, first, count, key, present, room, maxima, sums);
    const Words weights = kBf16 ? Words{room.narrow, kForwardKeys / 2, 1} : Words{room.scores, kForwardKeys, 1};
    multiply<kBf16>(count, s.size, weights, values + words_of<kBf16>(key) * s.size, s.size, room.sums, s.size,
                    words_of<kBf16>(present), true);
  }
  for (int64_t r = 0; r < count; r++) {
    const __m512 scale = _mm512_set1_ps(1 / sums[r]);
    for (int64_t d = 0; d < s.size; d += 16) {
      store_row(o.data, (first + r) * o.row + d, _mm512_mul_ps(_mm512_loadu_ps(room.sums + r * s.size + d), scale), kBf16);
    }
    statistics[2 * (first + r)] = maxima[r] == -kInfinity ? 0 : maxima[r];
    statistics[2 * (first + r) + 1] = 1 / sums[r];
  }
}

// --- the forward pass of one query, as a model with a cache of keys and values decodes a token: every key is read once

// scores[j] = the product of the query and key first + j, for j < kKeys.
template <bool kBf16, int kKeys>
void multiply_keys(const AttentionSpec& s, const Head& q, int64_t query, const Head& k, int64_t first, float* scores) {
  __m512 sums[kKeys];
  for (int j = 0; j < kKeys; j++) sums[j] = _mm512_setzero_ps();
  for (int64_t d = 0; d < s.size; d += 16) {
    const __m512 one = load_row(q.data, query * q.row + d, kBf16);
    for (int j = 0; j < kKeys; j++) sums[j] = _mm512_fmadd_ps(one, load_row(k.data, (first + j) * k.row + d, kBf16), sums[j]);
  }
  for (int j = 0; j < kKeys; j++) scores[j] = _mm512_reduce_add_ps(sums[j]);
}

// row[d] = the sum of the weighted values of the visible keys, kVectors * 16 elements from d on. `visible`: a bit per key, 16 each.
template <bool kBf16, int kVectors>
void add_values(const AttentionSpec& s, const Head& v, const float* weights, const __mmask16* visible, int64_t d, float* row) {
  __m512 sums[kVectors];
  for (int i = 0; i < kVectors; i++) sums[i] = _mm512_setzero_ps();
  for (int64_t first = 0; first < s.keys; first += 16) {
    if (!visible[first / 16]) continue;
    const int64_t end = std::min(first + 16, s.keys);
    for (int64_t key = first; key < end; key++) {
      const __m512 weight = _mm512_set1_ps(weights[key]);
      for (int i = 0; i < kVectors; i++) {
        sums[i] = _mm512_fmadd_ps(weight, load_row(v.data, key * v.row + d + 16 * i, kBf16), sums[i]);
      }
    }
  }
  for (int i = 0; i < kVectors; i++) _mm512_storeu_ps(row + d + 16 * i, sums[i]);
}

// Keys that a mask of minus infinity hides, 16 at a time, are not read: an infinite or NaN value there has no effect.
template <bool kBf16>
void forward_query(const AttentionSpec& s, const Head& q, const Head& k, const Head& v, const Mask& mask, int64_t query,
                   float* scores, float* row, __mmask16* visible, const Head& o, float* statistics) {
  const bool may_hide = s.has_mask && mask.key && !s.is_causal;
  for (int64_t first = 0; first < s.keys; first += 16) {
    const int64_t count = std::min<int64_t>(16, s.keys - first);
    const __mmask16 present = lanes_below(count);
    __mmask16 seen = present;
    if (may_hide) {
      seen = _mm512_mask_cmp_ps_mask(present, mask.of_keys(query, first, present), _mm512_set1_ps(-kInfinity), _CMP_NEQ_UQ);
    }
    visible[first / 16] = seen;
    int64_t j = 0;
    if (!seen) {
      _mm512_storeu_ps(scores + first, _mm512_setzero_ps());
      continue;
    }
    for (; j + 4 <= count; j += 4) multiply_keys<kBf16, 4>(s, q, query, k, first + j, scores + first + j);
    for (; j < count; j++) multiply_keys<kBf16, 1>(s, q, query, k, first + j, scores + first + j);
  }
  const bool is_filled = s.hides_some(query, s.keys);
  const auto run = s.has_mask ? (is_filled ? weigh<false, true, true> : weigh<false, true, false>)
                              : (is_filled ? weigh<false, false, true> : weigh<false, false, false>);
  float maximum = -kInfinity, sum = 0;
  run(s, mask, query, 0, s.keys, scores, nullptr, &maximum, &sum);
  int64_t d = 0;
  for (; d + 64 <= s.size; d += 64) add_values<kBf16, 4>(s, v, scores, visible, d, row);
  for (; d < s.size; d += 16) add_values<kBf16, 1>(s, v, scores, visible, d, row);
  const __m512 scale = _mm512_set1_ps(1 / sum);
  for (d = 0; d < s.size; d += 16) store_row(o.data, query * o.row + d, _mm512_mul_ps(_mm512_loadu_ps(row + d), scale), kBf16);
  statistics[2 * query] = maximum == -kInfinity ? 0 : maximum;
  statistics[2 * query + 1] = 1 / sum;
}

// --- the backward pass over one head; blocks of scores and weights have a row per key here

struct BackwardRoom {
  float *queries, *outputs;                        // packed columns: Q^T, dO^T
  float *query_rows, *output_rows, *key_rows;      // packed rows
  float *weights, *gradients;                      // of a block: weights, gradients to scores
  float *narrow_weights, *narrow_gradients, *pairs;  // in bfloat16; `pairs`: words of two keys
  float *dq, *dk, *dv;
  float *maxima, *scales, *delta;  // per query, up to a multiple of the block's size
};

struct BackwardBlock {
  int64_t query, queries, key, keys;
};

// Weights and gradients to scores of one key.
template <bool kMasked, bool kFilled>
void weigh_again(const AttentionSpec& s, const Mask& mask, const BackwardRoom& room, const BackwardBlock& b, int64_t r) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  float *weights = room.weights + r * kBackwardQueries, *gradients = room.gradients + r * kBackwardQueries;
  for (int64_t i = 0; i < b.queries; i += 16) {
    const int64_t q = b.query + i;
    const __mmask16 present = lanes_below(b.queries - i);
    __m512 x = _mm512_mul_ps(_mm512_loadu_ps(weights + i), _mm512_set1_ps(s.factor));
    if constexpr (kMasked) x = _mm512_add_ps(x, mask.of_queries(q, b.key + r, present));
    __mmask16 kept = present;
    if constexpr (kFilled) {
      const auto least = static_cast<int>(b.key + r - s.diagonal - q);  // key <= query + diagonal
      kept = _mm512_cmpge_epi32_mask(lanes, _mm512_set1_epi32(least));
      x = _mm512_mask_mov_ps(_mm512_set1_ps(s.fill), kept, x);
      kept &= present;
    }
    const __m512 e = exponential(_mm512_sub_ps(x, _mm512_loadu_ps(room.maxima + q)));
    const __m512 p = _mm512_maskz_mul_ps(present, e, _mm512_loadu_ps(room.scales + q));
    const __m512 centred = _mm512_sub_ps(_mm512_loadu_ps(gradients + i), _mm512_loadu_ps(room.delta + q));
    _mm512_storeu_ps(weights + i, p);
    _mm512_storeu_ps(gradients + i, _mm512_maskz_mul_ps(kept, p, centred));
  }
}

// Rounds a block to bfloat16: rows of weights and gradients, and words of the gradients of two keys.
void narrow_block(const BackwardRoom& room, const BackwardBlock& b) {
  const int64_t columns = round_up(b.queries, 16);
  for (int64_t r = 0; r < b.keys; r += 2) {
    for (int64_t i = 0; i < columns; i += 16) {
      __m256i pair[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
      for (int64_t j = 0; j < 2 && r + j < b.keys; j++) {
        const int64_t at = (r + j) * kBackwardQueries + i;
        store_row(room.narrow_weights, at, _mm512_loadu_ps(room.weights + at), true);
        pair[j] = (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(room.gradients + at));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(reinterpret_cast<uint16_t*>(room.narrow_gradients) + at), pair[j]);
      }
      _mm512_storeu_si512(room.pairs + r / 2 * kBackwardQueries + i, pair_up(pair[0], pair[1]));
    }
  }
}

template <bool kBf16>
void backward_block(const AttentionSpec& s, const Head& k, const Head& v, const Mask& mask, const BackwardRoom& room,
                    const float* query_rows, const float* output_rows, const float* key_rows, const BackwardBlock& b) {
  const int64_t columns = round_up(b.queries, 16);
  multiply_panels<kBf16>(b.keys, b.query, columns, {k.at<kBf16>(b.key), k.words<kBf16>().row, 1}, room.queries, room.weights,
                         kBackwardQueries, s.words());
  multiply_panels<kBf16>(b.keys, b.query, columns, {v.at<kBf16>(b.key), v.words<kBf16>().row, 1}, room.outputs, room.gradients,
                         kBackwardQueries, s.words());
  const bool is_filled = s.hides_some(b.query, b.key + b.keys);
  const auto run = s.has_mask ? (is_filled ? weigh_again<true, true> : weigh_again<true, false>)
                              : (is_filled ? weigh_again<false, true> : weigh_again<false, false>);
  for (int64_t r = 0; r < b.keys; r++) run(s, mask, room, b, r);
  if constexpr (kBf16) narrow_block(room, b);
  const int64_t row = kBf16 ? kBackwardQueries / 2 : kBackwardQueries, depth = words_of<kBf16>(b.queries);
  const Words weights{kBf16 ? room.narrow_weights : room.weights, row, 1};
  const Words gradients{kBf16 ? room.narrow_gradients : room.gradients, row, 1};
  const Words transposed{kBf16 ? room.pairs : room.gradients, 1, kBackwardQueries};
  const int64_t first = words_of<kBf16>(b.query) * s.size;
  multiply<kBf16>(b.keys, s.size, weights, output_rows + first, s.size, room.dv, s.size, depth, true);
  multiply<kBf16>(b.keys, s.size, gradients, query_rows + first, s.size, room.dk, s.size, depth, true);
  multiply<kBf16>(b.queries, s.size, transposed, key_rows + words_of<kBf16>(b.key) * s.size, s.size, room.dq + b.query * s.size,
                  s.size, words_of<kBf16>(b.keys), true);
}

template <bool kBf16>
void store_scaled(const float* from, int64_t count, int64_t size, float factor, const Head& to, int64_t first) {
  for (int64_t r = 0; r < count; r++) {
    for (int64_t d = 0; d < size; d += 16) {
      store_row(to.data, (first + r) * to.row + d, _mm512_mul_ps(_mm512_loadu_ps(from + r * size + d), _mm512_set1_ps(factor)), kBf16);
    }
  }
}

template <bool kBf16>
void read_statistics(const AttentionSpec& s, const Head& o, const Head& gradient, const float* statistics, const BackwardRoom& room) {
  for (int64_t q = 0; q < s.queries; q++) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t d = 0; d < s.size; d += 16) {
      sum = _mm512_fmadd_ps(load_row(o.data, q * o.row + d, kBf16), load_row(gradient.data, q * gradient.row + d, kBf16), sum);
    }
    room.delta[q] = _mm512_reduce_add_ps(sum);
    room.maxima[q] = statistics[2 * q], room.scales[q] = statistics[2 * q + 1];
  }
}

template <bool kBf16>
void backward_head(const AttentionSpec& s, const Head (&in)[5], const Mask& mask, const float* statistics, const BackwardRoom& room,
                   const Head (&out)[3]) {
  const auto& [q, k, v, o, gradient] = in;
  read_statistics<kBf16>(s, o, gradient, statistics, room);
  pack_transposed(q.data, q.words<kBf16>().row, s.queries, s.words(), room.queries);
  pack_transposed(gradient.data, gradient.words<kBf16>().row, s.queries, s.words(), room.outputs);
  const float* query_rows = pack_rows<kBf16>(q, s.queries, s.size, room.query_rows);
  const float* output_rows = pack_rows<kBf16>(gradient, s.queries, s.size, room.output_rows);
  const float* key_rows = pack_rows<kBf16>(k, s.keys, s.size, room.key_rows);
  std::fill_n(room.dq, s.queries * s.size, 0.f);
  for (int64_t key = 0; key < s.keys; key += kBackwardKeys) {
    const int64_t keys = std::min(kBackwardKeys, s.keys - key);
    std::fill_n(room.dk, keys * s.size, 0.f), std::fill_n(room.dv, keys * s.size, 0.f);
    for (int64_t query = 0; query < s.queries; query += kBackwardQueries) {
      const int64_t queries = std::min(kBackwardQueries, s.queries - query);
      if (s.hides(query + queries, key) && fill_is_nothing(s, room.maxima + query, room.scales + query, queries, 1)) continue;
      backward_block<kBf16>(s, k, v, mask, room, query_rows, output_rows, key_rows, {query, queries, key, keys});
    }
    store_scaled<kBf16>(room.dk, keys, s.size, s.factor, out[1], key);
    store_scaled<kBf16>(room.dv, keys, s.size, 1, out[2], key);
  }
  store_scaled<kBf16>(room.dq, s.queries, s.size, s.factor, out[0], 0);
}

#include "avx512_end.h"

// --- the operations

// Hands out pieces of a thread's working memory; without memory it adds up their sizes.
class Pieces {
 public:
  explicit Pieces(char* data) : data_(data) {}

  float* take(int64_t words) {
    const size_t at = size_;
    size_ += aligned(static_cast<size_t>(words) * sizeof(float));
    return data_ ? reinterpret_cast<float*>(data_ + at) : nullptr;
  }
  size_t size() const { return size_; }

 private:
  char* data_;
  size_t size_ = 0;
};

class AttentionBase : public Operation {
 public:
  AttentionBase(const AttentionSpec& spec, const thread_pool::Settings& settings, int products) : s_(spec) {
    if (!has_isa(s_.type == dt::f32 ? dnnl::cpu_isa::avx512_core : dnnl::cpu_isa::avx512_core_bf16)) {
      throw std::runtime_error(s_.type == dt::f32 ? "this CPU has no AVX-512" : "this CPU has no AVX-512 BF16");
    }
    threads_ = settings.threads_for(s_.flops(products));
    const size_t outer = s_.bytes_of_rows(s_.queries), inner = s_.bytes_of_rows(s_.keys);
    const auto mask = static_cast<size_t>(s_.mask_size) * sizeof(float);
    const auto statistics = static_cast<size_t>(s_.batch * s_.heads * s_.queries * 2) * sizeof(float);
    operand_bytes_ = {outer, inner, inner, mask, outer, statistics};
  }

  std::string name() const override { return s_.type == dt::f32 ? "blocked:avx512_core" : "blocked:avx512_core_bf16"; }

 protected:
  bool is_bf16() const { return s_.type == dt::bf16; }

  Head head(void* array, const Layout& layout, int64_t number) const {
    const int64_t at = number / s_.heads * layout.batch + number % s_.heads * layout.head;
    return {reinterpret_cast<float*>(static_cast<char*>(array) + static_cast<size_t>(at) * bytes_of(s_.type)), layout.row};
  }

  Mask mask(const void* array, int64_t number) const {
    const int64_t at = number / s_.heads * s_.mask_strides[0] + number % s_.heads * s_.mask_strides[1];
    return {static_cast<const float*>(array) + at, s_.mask_strides[2], s_.mask_strides[3]};
  }

  // Sizes the working memory: take(pieces) takes what one thread needs.
  template <class Take>
  void set_room(const Take& take) {
    Pieces pieces(nullptr);
    take(pieces);
    room_ = pieces.size();
    scratch_size_ = aligned(room_ * static_cast<size_t>(threads_));
  }

  // For pack_rows: nothing where the rows are used in place.
  float* take_rows(Pieces& pieces, const Layout& layout, int64_t count) const {
    if (is_bf16()) return pieces.take(words_of<true>(count) * s_.size);
    return pieces.take(layout.row == s_.size ? 0 : words_of<false>(count) * s_.size);
  }

  // Calls body(unit, working memory) for each unit; threads take the next one when they have finished one.
  template <class Body>
  void for_each(int64_t units, Scratch& scratch, const Body& body) const {
    std::atomic<int64_t> next{0};
    char* memory = scratch.take(room_ * static_cast<size_t>(threads_));
    thread_pool::parallel_for(threads_, threads_, [&](int64_t thread, int64_t) {
      for (int64_t unit; (unit = next.fetch_add(1)) < units;) body(unit, memory + room_ * static_cast<size_t>(thread));
    });
  }

  AttentionSpec s_;

 private:
  size_t room_ = 0;  // bytes per thread
};

class Attention final : public AttentionBase {
 public:
  Attention(const AttentionSpec& spec, const thread_pool::Settings& settings) : AttentionBase(spec, settings, 2) {
    const int64_t heads = s_.batch * s_.heads, blocks = (s_.queries + kForwardQueries - 1) / kForwardQueries;
    parts_ = std::min(blocks, heads >= 4 * threads_ ? 1 : (4 * threads_ + heads - 1) / heads);
    set_room([this](Pieces& pieces) { take(pieces); });
  }

  void run(void* const* operands, Scratch& scratch) const override {
    for_each(s_.batch * s_.heads * parts_, scratch, [&](int64_t unit, char* memory) {
      is_bf16() ? run_part<true>(operands, unit, memory) : run_part<false>(operands, unit, memory);
    });
  }

 private:
  ForwardRoom take(Pieces& pieces) const {
    ForwardRoom room{};
    if (s_.queries <= kFewQueries) {
      room.scores = pieces.take(round_up(s_.keys, 16));
      room.sums = pieces.take(s_.size);
      room.narrow = pieces.take(s_.keys / 32 + 1);  // 16 bits for 16 keys
      return room;
    }
    room.keys = pieces.take(round_up(s_.keys, kPanel) * s_.words());
    room.values = take_rows(pieces, s_.v, s_.keys);
    room.scores = pieces.take(kForwardQueries * kForwardKeys);
    room.narrow = pieces.take(is_bf16() ? kForwardQueries * kForwardKeys / 2 : 0);
    room.sums = pieces.take(kForwardQueries * s_.size);
    return room;
  }

  template <bool kBf16>
  void run_part(void* const* operands, int64_t unit, char* memory) const {
    Pieces pieces(memory);
    const ForwardRoom room = take(pieces);
    const int64_t number = unit / parts_, part = unit % parts_, blocks = (s_.queries + kForwardQueries - 1) / kForwardQueries;
    const Head q = head(operands[0], s_.q, number), k = head(operands[1], s_.k, number), v = head(operands[2], s_.v, number);
    float* statistics = static_cast<float*>(operands[5]) + number * s_.queries * 2;
    if (s_.queries <= kFewQueries) {
      for (int64_t query = 0; query < s_.queries; query++) {
        forward_query<kBf16>(s_, q, k, v, mask(operands[3], number), query, room.scores, room.sums,
                             reinterpret_cast<__mmask16*>(room.narrow), head(operands[4], s_.o, number), statistics);
      }
      return;
    }
    pack_transposed(k.data, k.words<kBf16>().row, s_.keys, s_.words(), room.keys);
    const float* values = pack_rows<kBf16>(v, s_.keys, s_.size, room.values);
    for (int64_t block = blocks * part / parts_; block < blocks * (part + 1) / parts_; block++) {
      const int64_t first = block * kForwardQueries, count = std::min(kForwardQueries, s_.queries - first);
      forward_block<kBf16>(s_, q, mask(operands[3], number), first, count, room.keys, values, room, head(operands[4], s_.o, number),
                           statistics);
    }
  }

  int64_t parts_;
};

class AttentionGrad final : public AttentionBase {
 public:
  AttentionGrad(const AttentionSpec& spec, const thread_pool::Settings& settings) : AttentionBase(spec, settings, 5) {
    set_room([this](Pieces& pieces) { take(pieces); });
    const size_t outer = s_.bytes_of_rows(s_.queries), inner = s_.bytes_of_rows(s_.keys);
    operand_bytes_.insert(operand_bytes_.end(), {outer, outer, inner, inner});
  }

  void run(void* const* operands, Scratch& scratch) const override {
    for_each(s_.batch * s_.heads, scratch, [&](int64_t number, char* memory) {
      is_bf16() ? run_head<true>(operands, number, memory) : run_head<false>(operands, number, memory);
    });
  }

 private:
  BackwardRoom take(Pieces& pieces) const {
    const int64_t queries = round_up(s_.queries, kBackwardQueries), block = kBackwardKeys * kBackwardQueries;
    BackwardRoom room;
    room.queries = pieces.take(round_up(s_.queries, kPanel) * s_.words());
    room.outputs = pieces.take(round_up(s_.queries, kPanel) * s_.words());
    room.query_rows = take_rows(pieces, s_.q, s_.queries), room.output_rows = take_rows(pieces, s_.o, s_.queries);
    room.key_rows = take_rows(pieces, s_.k, s_.keys);
    room.weights = pieces.take(block), room.gradients = pieces.take(block);
    room.narrow_weights = pieces.take(is_bf16() ? block / 2 : 0), room.narrow_gradients = pieces.take(is_bf16() ? block / 2 : 0);
    room.pairs = pieces.take(is_bf16() ? block / 2 : 0);
    room.dq = pieces.take(s_.queries * s_.size);
    room.dk = pieces.take(kBackwardKeys * s_.size), room.dv = pieces.take(kBackwardKeys * s_.size);
    room.maxima = pieces.take(queries), room.scales = pieces.take(queries), room.delta = pieces.take(queries);
    return room;
  }

  template <bool kBf16>
  void run_head(void* const* operands, int64_t number, char* memory) const {
    Pieces pieces(memory);
    const BackwardRoom room = take(pieces);
    const Head in[] = {head(operands[0], s_.q, number), head(operands[1], s_.k, number), head(operands[2], s_.v, number),
                       head(operands[4], s_.o, number), head(operands[6], s_.o, number)};
    const Head out[] = {head(operands[7], s_.q, number), head(operands[8], s_.k, number), head(operands[9], s_.v, number)};
    for (float* padded : {room.maxima, room.scales, room.delta}) {
      std::fill(padded + s_.queries, padded + round_up(s_.queries, kBackwardQueries), 0.f);
    }
    const float* statistics = static_cast<const float*>(operands[5]) + number * s_.queries * 2;
    backward_head<kBf16>(s_, in, mask(operands[3], number), statistics, room, out);
  }
};

}  // namespace

std::unique_ptr<Operation> make_attention(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<Attention>(AttentionSpec(reader), settings);
}

std::unique_ptr<Operation> make_attention_grad(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<AttentionGrad>(AttentionSpec(reader), settings);
}

}  // namespace native
