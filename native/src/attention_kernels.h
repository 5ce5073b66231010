// Of attention.cc, for each instruction set (each_isa.h).

constexpr int kTileRows = 6, kTileVectors = kLanes == 16 ? 4 : 2;  // of sums in registers
constexpr int64_t kTile = kTileVectors * kLanes, kPanel = kTile;   // columns; those of a packed factor that lie side by side

// What a product reads: numbers, or words of two bfloat16 numbers, which an instruction multiplies, or which are multiplied half by half.
enum class Factors { kFloats, kWords, kHalves };

template <Factors kFactors>
inline Floats half(Floats words, int upper) {
  if constexpr (kFactors != Factors::kHalves) return words;
  return upper ? Elements<true>::upper(words) : Elements<true>::lower(words);
}

// kRows x kVectors vectors of C (+)= A B.
template <Factors kFactors, int kRows, int kVectors>
void multiply_tile(Words a, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t depth, bool adds) {
  Floats sums[kRows][kVectors];
  for (int r = 0; r < kRows; r++) {
    for (int v = 0; v < kVectors; v++) sums[r][v] = adds ? load(c + r * c_row + kLanes * v) : zero();
  }
  for (int64_t i = 0; i < depth; i++) {
    for (int upper = 0; upper < (kFactors == Factors::kHalves ? 2 : 1); upper++) {  // one after the other, for registers
      Floats row[kVectors];
      for (int v = 0; v < kVectors; v++) row[v] = half<kFactors>(load(b + i * b_row + kLanes * v), upper);
      for (int r = 0; r < kRows; r++) {
        const Floats one = half<kFactors>(all(a.data[r * a.row + i * a.column]), upper);
        for (int v = 0; v < kVectors; v++) sums[r][v] = Elements<kFactors == Factors::kWords>::fma_words(one, row[v], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; r++) {
    for (int v = 0; v < kVectors; v++) store(c + r * c_row + kLanes * v, sums[r][v]);
  }
}

template <Factors kFactors, int kVectors>
void multiply_rows(int64_t rows, Words a, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t depth, bool adds) {
  for (; rows >= kTileRows; rows -= kTileRows, a.data += kTileRows * a.row, c += kTileRows * c_row) {
    multiply_tile<kFactors, kTileRows, kVectors>(a, b, b_row, c, c_row, depth, adds);
  }
  switch (rows) {
    case 5:
      return multiply_tile<kFactors, 5, kVectors>(a, b, b_row, c, c_row, depth, adds);
    case 4:
      return multiply_tile<kFactors, 4, kVectors>(a, b, b_row, c, c_row, depth, adds);
    case 3:
      return multiply_tile<kFactors, 3, kVectors>(a, b, b_row, c, c_row, depth, adds);
    case 2:
      return multiply_tile<kFactors, 2, kVectors>(a, b, b_row, c, c_row, depth, adds);
    case 1:
      return multiply_tile<kFactors, 1, kVectors>(a, b, b_row, c, c_row, depth, adds);
    default:
      return;
  }
}

// C (+)= A B, `columns` being a multiple of 16 and `depth` counted in words.
template <Factors kFactors>
void multiply_words(int64_t rows, int64_t columns, Words a, const float* b, int64_t b_row, float* c, int64_t c_row,
                    int64_t depth, bool adds) {
  for (; columns >= kTile; columns -= kTile, b += kTile, c += kTile) {
    multiply_rows<kFactors, kTileVectors>(rows, a, b, b_row, c, c_row, depth, adds);
  }
  if constexpr (kTile == 16) return;
  switch (columns / kLanes) {
    case 3:
      return multiply_rows<kFactors, 3>(rows, a, b, b_row, c, c_row, depth, adds);
    case 2:
      return multiply_rows<kFactors, 2>(rows, a, b, b_row, c, c_row, depth, adds);
    case 1:
      return multiply_rows<kFactors, 1>(rows, a, b, b_row, c, c_row, depth, adds);
    default:
      return;
  }
}

template <bool kBf16>
void multiply(int64_t rows, int64_t columns, Words a, const float* b, int64_t b_row, float* c, int64_t c_row, int64_t depth,
              bool adds) {
  constexpr Factors kWords = kLanes == 16 ? Factors::kWords : Factors::kHalves;
  const auto run = !kBf16 ? multiply_words<Factors::kFloats> : has_fast_words() ? multiply_words<kWords> : multiply_words<Factors::kHalves>;
  run(rows, columns, a, b, b_row, c, c_row, depth, adds);
}

// The same with B in panels, from column `begin` on.
template <bool kBf16>
void multiply_panels(int64_t rows, int64_t begin, int64_t columns, Words a, const float* panels, float* c, int64_t c_row,
                     int64_t depth) {
  for (int64_t i = 0; i < columns; i += kPanel) {
    const float* b = panels + (begin + i) * depth;
    multiply<kBf16>(rows, std::min(kPanel, columns - i), a, b, kPanel, c + i, c_row, depth, false);
  }
}

template <bool kBf16>
inline Floats load_row(const float* data, int64_t index) {
  return Elements<kBf16>::load(reinterpret_cast<const typename Elements<kBf16>::Number*>(data) + index);
}

template <bool kBf16>
inline void store_row(float* data, int64_t index, Floats value) {
  Elements<kBf16>::store(reinterpret_cast<typename Elements<kBf16>::Number*>(data) + index, value);
}

// Panels of the transposed matrix: word d of row r goes to row d of panel r / kPanel. Missing rows are zeros, up to a multiple of
// 16: products read no more of the last panel.
void pack_transposed(const float* data, int64_t row_words, int64_t rows, int64_t words, float* panels) {
  for (int64_t row = 0; row < round_up(rows, 16); row += kLanes) {
    float* to = panels + row / kPanel * kPanel * words + row % kPanel;
    turn(data + std::min(row, rows) * row_words, row_words, rows - row, words, to, kPanel);
  }
}

// Words of two bfloat16 rows each: word d of row i holds elements d of rows 2 i and 2 i + 1. A missing last row is zero.
template <bool kBf16>
void pack_pairs(const uint16_t* data, int64_t row, int64_t rows, int64_t size, float* to) {
  using X = Elements<kBf16>;
  for (int64_t r = 0; r < rows; r += 2) {
    const uint16_t *even = data + r * row, *odd = r + 1 < rows ? even + row : nullptr;
    for (int64_t d = 0; d < size; d += kLanes, to += kLanes) {
      store(to, X::paired(X::load_narrow(even + d), odd ? X::load_narrow(odd + d) : X::no_narrow()));
    }
  }
}

void copy_rows(const float* data, int64_t row, int64_t rows, int64_t size, float* to) {
  for (int64_t r = 0; r < rows; r++) std::memcpy(to + r * size, data + r * row, static_cast<size_t>(size) * sizeof(float));
}

// The rows of a head as the second factor of a product that sums over rows: words() of two rows each, or the rows themselves.
template <bool kBf16>
const float* pack_rows(const Head& head, int64_t rows, int64_t size, float* room) {
  if constexpr (kBf16) {
    pack_pairs<kBf16>(reinterpret_cast<const uint16_t*>(head.data), head.row, rows, size, room);
  } else {
    if (head.row == size) return head.data;
    copy_rows(head.data, head.row, rows, size, room);
  }
  return room;
}

// The mask's numbers of a vector of keys as one query sees them, of which the first `count` exist.
inline Floats of_keys(const Mask& mask, int64_t query, int64_t key, int64_t count) {
  const float* from = mask.data + query * mask.query + key * mask.key;
  return mask.key ? load(from, first(count)) : all(*from);
}

// Those of a vector of queries as they see one key.
inline Floats of_queries(const Mask& mask, int64_t query, int64_t key, int64_t count) {
  const float* from = mask.data + query * mask.query + key * mask.key;
  if (!mask.query) return all(*from);
  if (mask.query == 1) return load(from, first(count));
  float values[kLanes] = {};
  for (int64_t i = 0; i < std::min<int64_t>(count, kLanes); i++) values[i] = from[i * mask.query];
  return load(values);
}

// --- the forward pass over a block of queries

// Turns the scores of one query into weights. Updates its maximum and the sum of its weights; returns the factor of what was
// summed before.
template <bool kBf16, bool kMasked, bool kFilled>
float weigh(const AttentionSpec& s, const Mask& mask, int64_t q, int64_t first_key, int64_t keys, float* scores, float* narrow,
            float* maximum, float* weight) {
  Floats greatest = all(-kInfinity);
  for (int64_t i = 0; i < keys; i += kLanes) {
    Floats x = load(scores + i) * all(s.factor);
    if constexpr (kMasked) x = x + of_keys(mask, q, first_key + i, keys - i);
    if constexpr (kFilled) x = select(first(q + s.diagonal - first_key - i + 1), x, all(s.fill));
    x = select(first(keys - i), x, all(-kInfinity));
    store(scores + i, x);
    greatest = max(x, greatest);  // NaN is passed over here, and found by the sum
  }
  const float found = std::max(*maximum, largest(greatest));
  const float base = found == -kInfinity ? 0 : found;
  const Floats shift = all(base);
  Floats total = zero();
  for (int64_t i = 0; i < keys; i += kLanes) {
    const Floats weights = exponential(load(scores + i) - shift);
    total = total + weights;
    store_row<kBf16>(kBf16 ? narrow : scores, i, weights);
  }
  const float before = first_of(exponential(all(*maximum - base)));
  *weight = *weight * before + sum(total);
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
    const float before = run(s, mask, first + r, first_key, keys, room.scores + r * kForwardKeys,
                             room.narrow + r * kForwardKeys / 2, maxima + r, sums + r);
    if (before == 1) continue;
    float* row = room.sums + r * s.size;
    for (int64_t d = 0; d < s.size; d += kLanes) store(row + d, load(row + d) * all(before));
  }
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
    const Floats scale = all(1 / sums[r]);
    for (int64_t d = 0; d < s.size; d += kLanes) {
      store_row<kBf16>(o.data, (first + r) * o.row + d, load(room.sums + r * s.size + d) * scale);
    }
    statistics[2 * (first + r)] = maxima[r] == -kInfinity ? 0 : maxima[r];
    statistics[2 * (first + r) + 1] = 1 / sums[r];
  }
}

// --- the forward pass of one query, as a model with a cache of keys and values decodes a token: every key is read once

// scores[j] = the product of the query and key + j, for j < kKeys.
template <bool kBf16, int kKeys>
void multiply_keys(const AttentionSpec& s, const Head& q, int64_t query, const Head& k, int64_t key, float* scores) {
  Floats sums[kKeys];
  for (int j = 0; j < kKeys; j++) sums[j] = zero();
  for (int64_t d = 0; d < s.size; d += kLanes) {
    const Floats one = load_row<kBf16>(q.data, query * q.row + d);
    for (int j = 0; j < kKeys; j++) sums[j] = fma(one, load_row<kBf16>(k.data, (key + j) * k.row + d), sums[j]);
  }
  for (int j = 0; j < kKeys; j++) scores[j] = sum(sums[j]);
}

// row[d] = the sum of the weighted values of the visible keys, kVectors vectors from d on. `visible`: whether one of kLanes keys
// is.
template <bool kBf16, int kVectors>
void add_values(const AttentionSpec& s, const Head& v, const float* weights, const bool* visible, int64_t d, float* row) {
  Floats sums[kVectors];
  for (int i = 0; i < kVectors; i++) sums[i] = zero();
  for (int64_t begin = 0; begin < s.keys; begin += kLanes) {
    if (!visible[begin / kLanes]) continue;
    const int64_t end = std::min(begin + kLanes, s.keys);
    for (int64_t key = begin; key < end; key++) {
      const Floats weight = all(weights[key]);
      for (int i = 0; i < kVectors; i++) sums[i] = fma(weight, load_row<kBf16>(v.data, key * v.row + d + kLanes * i), sums[i]);
    }
  }
  for (int i = 0; i < kVectors; i++) store(row + d + kLanes * i, sums[i]);
}

// Keys that a mask of minus infinity hides, kLanes at a time, are not read: an infinite or NaN value there has no effect.
template <bool kBf16>
void forward_query(const AttentionSpec& s, const ForwardCall& c, int64_t query) {
  const bool may_hide = s.has_mask && c.mask.key && !s.is_causal;
  float *scores = c.room.scores, *row = c.room.sums;
  bool* visible = c.room.visible;
  for (int64_t begin = 0; begin < s.keys; begin += kLanes) {
    const int64_t count = std::min<int64_t>(kLanes, s.keys - begin);
    const bool seen = !may_hide || any(both(first(count), differs(of_keys(c.mask, query, begin, count), all(-kInfinity))));
    visible[begin / kLanes] = seen;
    if (!seen) {
      store(scores + begin, zero());
      continue;
    }
    int64_t j = 0;
    for (; j + 4 <= count; j += 4) multiply_keys<kBf16, 4>(s, c.q, query, c.k, begin + j, scores + begin + j);
    for (; j < count; j++) multiply_keys<kBf16, 1>(s, c.q, query, c.k, begin + j, scores + begin + j);
  }
  const bool is_filled = s.hides_some(query, s.keys);
  const auto run = s.has_mask ? (is_filled ? weigh<false, true, true> : weigh<false, true, false>)
                              : (is_filled ? weigh<false, false, true> : weigh<false, false, false>);
  float maximum = -kInfinity, weight = 0;
  run(s, c.mask, query, 0, s.keys, scores, nullptr, &maximum, &weight);
  int64_t d = 0;
  for (; d + 4 * kLanes <= s.size; d += 4 * kLanes) add_values<kBf16, 4>(s, c.v, scores, visible, d, row);
  for (; d < s.size; d += kLanes) add_values<kBf16, 1>(s, c.v, scores, visible, d, row);
  const Floats scale = all(1 / weight);
  for (d = 0; d < s.size; d += kLanes) store_row<kBf16>(c.o.data, query * c.o.row + d, load(row + d) * scale);
  c.statistics[2 * query] = maximum == -kInfinity ? 0 : maximum;
  c.statistics[2 * query + 1] = 1 / weight;
}

template <bool kBf16>
void forward(const AttentionSpec& s, const ForwardCall& c) {
  if (s.queries <= kFewQueries) {
    for (int64_t query = 0; query < s.queries; query++) forward_query<kBf16>(s, c, query);
    return;
  }
  pack_transposed(c.k.data, c.k.words<kBf16>().row, s.keys, s.words(), c.room.keys);
  const float* values = pack_rows<kBf16>(c.v, s.keys, s.size, c.room.values);
  for (int64_t query = c.begin; query < c.end; query += kForwardQueries) {
    const int64_t count = std::min(kForwardQueries, c.end - query);
    forward_block<kBf16>(s, c.q, c.mask, query, count, c.room.keys, values, c.room, c.o, c.statistics);
  }
}

// --- the backward pass over one head; blocks of scores and weights have a row per key here

struct BackwardBlock {
  int64_t query, queries, key, keys;
};

// Weights and gradients to scores of one key.
template <bool kMasked, bool kFilled>
void weigh_again(const AttentionSpec& s, const Mask& mask, const BackwardRoom& room, const BackwardBlock& b, int64_t r) {
  float *weights = room.weights + r * kBackwardQueries, *gradients = room.gradients + r * kBackwardQueries;
  for (int64_t i = 0; i < b.queries; i += kLanes) {
    const int64_t q = b.query + i;
    const Lanes present = first(b.queries - i);
    Floats x = load(weights + i) * all(s.factor);
    if constexpr (kMasked) x = x + of_queries(mask, q, b.key + r, b.queries - i);
    const Lanes hidden = first(b.key + r - s.diagonal - q);  // key > query + diagonal
    if constexpr (kFilled) x = select(hidden, all(s.fill), x);
    const Floats e = exponential(x - load(room.maxima + q));
    const Floats p = where(present, e * load(room.scales + q));
    const Floats centred = load(gradients + i) - load(room.delta + q);
    Floats gradient = where(present, p * centred);
    if constexpr (kFilled) gradient = select(hidden, zero(), gradient);
    store(weights + i, p);
    store(gradients + i, gradient);
  }
}

// Rounds a block to bfloat16: rows of weights and gradients, and words of the gradients of two keys.
template <bool kBf16>
void narrow_block(const BackwardRoom& room, const BackwardBlock& b) {
  using X = Elements<kBf16>;
  const int64_t columns = round_up(b.queries, 16);
  for (int64_t r = 0; r < b.keys; r += 2) {
    for (int64_t i = 0; i < columns; i += kLanes) {
      typename X::Narrow pair[2] = {X::no_narrow(), X::no_narrow()};
      for (int64_t j = 0; j < 2 && r + j < b.keys; j++) {
        const int64_t at = (r + j) * kBackwardQueries + i;
        store_row<kBf16>(room.narrow_weights, at, load(room.weights + at));
        store_row<kBf16>(room.narrow_gradients, at, load(room.gradients + at));
        pair[j] = X::narrowed(load(room.gradients + at));
      }
      store(room.pairs + r / 2 * kBackwardQueries + i, X::paired(pair[0], pair[1]));
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
  if constexpr (kBf16) narrow_block<kBf16>(room, b);
  const int64_t row = kBf16 ? kBackwardQueries / 2 : kBackwardQueries, depth = words_of<kBf16>(b.queries);
  const Words weights{kBf16 ? room.narrow_weights : room.weights, row, 1};
  const Words gradients{kBf16 ? room.narrow_gradients : room.gradients, row, 1};
  const Words transposed{kBf16 ? room.pairs : room.gradients, 1, kBackwardQueries};
  const int64_t begin = words_of<kBf16>(b.query) * s.size;
  multiply<kBf16>(b.keys, s.size, weights, output_rows + begin, s.size, room.dv, s.size, depth, true);
  multiply<kBf16>(b.keys, s.size, gradients, query_rows + begin, s.size, room.dk, s.size, depth, true);
  multiply<kBf16>(b.queries, s.size, transposed, key_rows + words_of<kBf16>(b.key) * s.size, s.size, room.dq + b.query * s.size,
                  s.size, words_of<kBf16>(b.keys), true);
}

template <bool kBf16>
void store_scaled(const float* from, int64_t count, int64_t size, float factor, const Head& to, int64_t begin) {
  for (int64_t r = 0; r < count; r++) {
    for (int64_t d = 0; d < size; d += kLanes) {
      store_row<kBf16>(to.data, (begin + r) * to.row + d, load(from + r * size + d) * all(factor));
    }
  }
}

template <bool kBf16>
void read_statistics(const AttentionSpec& s, const Head& o, const Head& gradient, const float* statistics,
                     const BackwardRoom& room) {
  for (int64_t q = 0; q < s.queries; q++) {
    Floats products = zero();
    for (int64_t d = 0; d < s.size; d += kLanes) {
      products = fma(load_row<kBf16>(o.data, q * o.row + d), load_row<kBf16>(gradient.data, q * gradient.row + d), products);
    }
    room.delta[q] = sum(products);
    room.maxima[q] = statistics[2 * q], room.scales[q] = statistics[2 * q + 1];
  }
}

template <bool kBf16>
void backward(const AttentionSpec& s, const BackwardCall& c) {
  const auto& [q, k, v, o, gradient] = c.in;
  const auto& [dq, dk, dv] = c.out;
  const BackwardRoom& room = c.room;
  read_statistics<kBf16>(s, o, gradient, c.statistics, room);
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
      backward_block<kBf16>(s, k, v, c.mask, room, query_rows, output_rows, key_rows, {query, queries, key, keys});
    }
    store_scaled<kBf16>(room.dk, keys, s.size, s.factor, dk, key);
    store_scaled<kBf16>(room.dv, keys, s.size, 1, dv, key);
  }
  store_scaled<kBf16>(room.dq, s.queries, s.size, s.factor, dq, 0);
}
Kernels choose(bool is_bf16) {
  if (is_bf16) return {forward<true>, backward<true>};
  return {forward<false>, backward<false>};
}
