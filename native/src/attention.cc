// Attention, softmax(factor Q K^T + mask) V, and its gradients, block by block: at no time does an array of queries times keys
// exist. The forward pass keeps two numbers per query, the maximum of its scores and the reciprocal of the sum of their
// exponentials, from which the backward pass computes the weights again. (Their logarithm in one number, as is often kept,
// would lose the sum where a mask of -1e9 is all that a query sees.)
//
// Products are computed by the kernel below, not by oneDNN: their second factors are packed once per head and used by
// every block of queries, and blocks are too small for a call of oneDNN each.
//
//   attention       q, k, v, mask -> result, statistics
//   attention_grad  q, k, v, mask, result, statistics, gradient to the result -> gradients to q, k, v
// The spec is written by oneflow/compiler/attention_kernels.py.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "bf16_speed.h"
#include "operation.h"
#include "vectors.h"

namespace native {

namespace {

constexpr int64_t kForwardQueries = 96, kForwardKeys = 128, kBackwardQueries = 128, kBackwardKeys = 96;  // of a block
constexpr int64_t kMostPanel = 64;  // columns of a packed factor that lie side by side
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

// A matrix of 32-bit words: float32 numbers, or pairs of bfloat16 numbers that are neighbours along the axis that is summed over.
struct Words {
  const float* data;
  int64_t row, column;  // steps between rows and between columns
};

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

template <bool kBf16>
constexpr int64_t words_of(int64_t rows) {
  return kBf16 ? (rows + 1) / 2 : rows;
}

// The numbers of one head of the mask.
struct Mask {
  const float* data;
  int64_t query, key;  // steps
};

// Whether keys whose score is `fill` have a weight of zero for each of these queries.
bool fill_is_nothing(const AttentionSpec& s, const float* maxima, const float* sums, int64_t count, int64_t step) {
  for (int64_t r = 0; r < count; r++) {
    if (!(maxima[r * step] - s.fill > -simd::kLeastExponent) || !(sums[r * step] < kInfinity)) return false;
  }
  return true;
}

struct ForwardRoom {
  float *keys, *values, *scores, *sums, *narrow;  // `narrow`: weights in bfloat16
  bool* visible;                                  // for few queries
};

// Some queries of one head.
struct ForwardCall {
  Head q, k, v, o;
  Mask mask;
  int64_t begin, end;
  ForwardRoom room;
  float* statistics;
};

struct BackwardRoom {
  float *queries, *outputs;                        // packed columns: Q^T, dO^T
  float *query_rows, *output_rows, *key_rows;      // packed rows
  float *weights, *gradients;                      // of a block: weights, gradients to scores
  float *narrow_weights, *narrow_gradients, *pairs;  // in bfloat16; `pairs`: words of two keys
  float *dq, *dk, *dv;
  float *maxima, *scales, *delta;  // per query, up to a multiple of the block's size
};

// One head.
struct BackwardCall {
  Head in[5], out[3];  // q, k, v, the result, the gradient to it; gradients to q, k, v
  Mask mask;
  BackwardRoom room;
  const float* statistics;
};

struct Kernels {
  void (*forward)(const AttentionSpec&, const ForwardCall&);
  void (*backward)(const AttentionSpec&, const BackwardCall&);
};

#define KERNELS "attention_kernels.h"
#include "each_isa.h"

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
    check_isa(is_bf16());
    kernels_ = for_this_cpu(avx2::choose, avx512::choose)(is_bf16());
    const size_t outer = s_.bytes_of_rows(s_.queries), inner = s_.bytes_of_rows(s_.keys);
    threads_ = settings.threads_for(s_.flops(products), s_.queries <= kFewQueries ? 2 * inner : 0);
    const auto mask = static_cast<size_t>(s_.mask_size) * sizeof(float);
    const auto statistics = static_cast<size_t>(s_.batch * s_.heads * s_.queries * 2) * sizeof(float);
    operand_bytes_ = {outer, inner, inner, mask, outer, statistics};
  }

  std::string name() const override { return "blocked:" + isa_name(is_bf16()); }

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
  Kernels kernels_;

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
    for_each(s_.batch * s_.heads * parts_, scratch, [&](int64_t unit, char* memory) { run_part(operands, unit, memory); });
  }

 private:
  ForwardRoom take(Pieces& pieces) const {
    ForwardRoom room{};
    if (s_.queries <= kFewQueries) {
      room.scores = pieces.take(round_up(s_.keys, 16));
      room.sums = pieces.take(s_.size);
      room.visible = reinterpret_cast<bool*>(pieces.take(s_.keys / 32 + 1));  // a byte for 8 or 16 keys
      return room;
    }
    room.keys = pieces.take(round_up(s_.keys, kMostPanel) * s_.words());
    room.values = take_rows(pieces, s_.v, s_.keys);
    room.scores = pieces.take(kForwardQueries * kForwardKeys);
    room.narrow = pieces.take(is_bf16() ? kForwardQueries * kForwardKeys / 2 : 0);
    room.sums = pieces.take(kForwardQueries * s_.size);
    return room;
  }

  void run_part(void* const* operands, int64_t unit, char* memory) const {
    Pieces pieces(memory);
    const int64_t number = unit / parts_, part = unit % parts_, blocks = (s_.queries + kForwardQueries - 1) / kForwardQueries;
    const int64_t begin = blocks * part / parts_ * kForwardQueries, end = blocks * (part + 1) / parts_ * kForwardQueries;
    kernels_.forward(s_, {head(operands[0], s_.q, number), head(operands[1], s_.k, number), head(operands[2], s_.v, number),
                          head(operands[4], s_.o, number), mask(operands[3], number), begin, std::min(end, s_.queries), take(pieces),
                          static_cast<float*>(operands[5]) + number * s_.queries * 2});
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
    for_each(s_.batch * s_.heads, scratch, [&](int64_t number, char* memory) { run_head(operands, number, memory); });
  }

 private:
  BackwardRoom take(Pieces& pieces) const {
    const int64_t queries = round_up(s_.queries, kBackwardQueries), block = kBackwardKeys * kBackwardQueries;
    BackwardRoom room;
    room.queries = pieces.take(round_up(s_.queries, kMostPanel) * s_.words());
    room.outputs = pieces.take(round_up(s_.queries, kMostPanel) * s_.words());
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

  void run_head(void* const* operands, int64_t number, char* memory) const {
    Pieces pieces(memory);
    const BackwardRoom room = take(pieces);
    for (float* padded : {room.maxima, room.scales, room.delta}) {
      std::fill(padded + s_.queries, padded + round_up(s_.queries, kBackwardQueries), 0.f);
    }
    kernels_.backward(s_, {{head(operands[0], s_.q, number), head(operands[1], s_.k, number), head(operands[2], s_.v, number),
                            head(operands[4], s_.o, number), head(operands[6], s_.o, number)},
                           {head(operands[7], s_.q, number), head(operands[8], s_.k, number), head(operands[9], s_.v, number)},
                           mask(operands[3], number),
                           room,
                           static_cast<const float*>(operands[5]) + number * s_.queries * 2});
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
