// Update rules of optimizers: one pass over variables, their state and their gradients, where XLA, whose loops have one result
// each, makes two or three. In place where a result's address is that of its operand.
//
// The operands: scalars (the rate, see `UpdateSpec`), then for each variable its value, its slots and its gradient. The results:
// for each variable the value and the slots. AVX-512 only. The spec is written by oneflow/compiler/fused_update.py.
#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "operation.h"

namespace native {

namespace {

constexpr int64_t kChunk = 1 << 15;  // elements that a thread takes at a time
constexpr int kMaxFactors = 8;
constexpr int64_t kMaxVariables = 1 << 16, kMaxElements = int64_t{1} << 40;

enum class Rule { kMomentum = 0, kAdam = 1 };

// x is a variable, g its gradient. First g <- (g * before... + l1 * sign(x) + l2 * x) * after..., then
//   momentum:  m <- beta1 * m - rate * g;  x <- x + m - decay * x
//   Adam:      m <- beta1 * m + gain1 * g;  v <- beta2 * v + gain2 * g * g;  x <- x - rate * m / (root * sqrt(v) + epsilon) - decay * x
// The terms with l1, l2 and decay are left out where the spec lacks them, so that they make no NaN of an infinity.
struct UpdateSpec {
  explicit UpdateSpec(SpecReader reader) {
    rule = reader.next(0, 1) == 0 ? Rule::kMomentum : Rule::kAdam;
    decays = reader.next_bool();
    may_skip = reader.next_bool();
    before = static_cast<int>(reader.next(0, kMaxFactors)), after = static_cast<int>(reader.next(0, kMaxFactors));
    l1 = reader.next_float(), l2 = reader.next_float();
    beta1 = reader.next_float();
    if (rule == Rule::kAdam) {
      gain1 = reader.next_float(), beta2 = reader.next_float(), gain2 = reader.next_float(), epsilon = reader.next_float();
    }
    const int64_t count = reader.next(1, kMaxVariables);
    for (int64_t i = 0; i < count; i++) sizes.push_back(reader.next(0, kMaxElements));
    reader.finish();
  }

  int slots() const { return rule == Rule::kAdam ? 2 : 1; }
  int scalars() const { return 1 + (rule == Rule::kAdam) + decays + before + after; }  // of float32; then whether to skip

  Rule rule;
  bool decays, may_skip;
  int before, after;
  float l1, l2, beta1, gain1 = 0, beta2 = 0, gain2 = 0, epsilon = 0;
  std::vector<int64_t> sizes;
};

// The scalars of one call, in the order of its operands.
struct Scalars {
  Scalars(const UpdateSpec& spec, void* const* operands) {
    const auto next = [&] { return *static_cast<const float*>(*operands++); };
    rate = next();
    if (spec.rule == Rule::kAdam) root = next();
    if (spec.decays) decay = next();
    for (int i = 0; i < spec.before; i++) before[i] = next();
    for (int i = 0; i < spec.after; i++) after[i] = next();
    skips = spec.may_skip && *static_cast<const uint8_t*>(*operands) != 0;
  }

  float rate, root = 1, decay = 0, before[kMaxFactors], after[kMaxFactors];
  bool skips;
};

// The arrays of one variable, from the element on where a chunk begins.
struct Arrays {
  const float *x, *m, *v, *g;
  float *new_x, *new_m, *new_v;
};

// --- what follows is compiled for AVX-512; it is called only where the CPU has that

#include "avx512_begin.h"

inline __m512 all(float value) { return _mm512_set1_ps(value); }

inline __m512 prepared(const UpdateSpec& spec, const Scalars& s, __m512 x, __m512 g) {
  for (int i = 0; i < spec.before; i++) g = _mm512_mul_ps(g, all(s.before[i]));
  if (spec.l1 != 0 || spec.l2 != 0) {
    __m512 penalty = _mm512_setzero_ps();
    if (spec.l1 != 0) penalty = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, penalty, _CMP_GE_OQ), all(-spec.l1), all(spec.l1));
    if (spec.l2 != 0) penalty = _mm512_fmadd_ps(all(spec.l2), x, penalty);
    g = _mm512_add_ps(g, penalty);
  }
  for (int i = 0; i < spec.after; i++) g = _mm512_mul_ps(g, all(s.after[i]));
  return g;
}

template <Rule rule>
inline void update_vector(const UpdateSpec& spec, const Scalars& s, const Arrays& a, int64_t i, __mmask16 mask) {
  const __m512 x = _mm512_maskz_loadu_ps(mask, a.x + i), rate = all(s.rate);
  const __m512 g = prepared(spec, s, x, _mm512_maskz_loadu_ps(mask, a.g + i));
  const __m512 old_m = _mm512_maskz_loadu_ps(mask, a.m + i);
  __m512 m, moved;
  if constexpr (rule == Rule::kMomentum) {
    m = _mm512_fmsub_ps(all(spec.beta1), old_m, _mm512_mul_ps(rate, g));
    moved = _mm512_add_ps(x, m);
  } else {
    m = _mm512_fmadd_ps(all(spec.beta1), old_m, _mm512_mul_ps(all(spec.gain1), g));
    const __m512 square = _mm512_mul_ps(all(spec.gain2), _mm512_mul_ps(g, g));
    const __m512 v = _mm512_fmadd_ps(all(spec.beta2), _mm512_maskz_loadu_ps(mask, a.v + i), square);
    const __m512 root = _mm512_fmadd_ps(all(s.root), _mm512_sqrt_ps(v), all(spec.epsilon));
    moved = _mm512_fnmadd_ps(rate, _mm512_div_ps(m, root), x);
    _mm512_mask_storeu_ps(a.new_v + i, mask, v);
  }
  if (spec.decays) moved = _mm512_fnmadd_ps(all(s.decay), x, moved);
  _mm512_mask_storeu_ps(a.new_m + i, mask, m);
  _mm512_mask_storeu_ps(a.new_x + i, mask, moved);
}

template <Rule rule>
void update(const UpdateSpec& spec, const Scalars& scalars, const Arrays& arrays, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) update_vector<rule>(spec, scalars, arrays, i, 0xffff);
  if (i < count) update_vector<rule>(spec, scalars, arrays, i, static_cast<__mmask16>((1u << (count - i)) - 1));
}

#include "avx512_end.h"

// --- end of what is compiled for AVX-512

class Update final : public Operation {
 public:
  Update(UpdateSpec spec, const thread_pool::Settings& settings) : spec_(std::move(spec)) {
    check_avx512(false);
    operand_bytes_.assign(static_cast<size_t>(spec_.scalars()), sizeof(float));
    if (spec_.may_skip) operand_bytes_.push_back(1);
    first_ = operand_bytes_.size();
    double elements = 0;
    for (size_t i = 0; i < spec_.sizes.size(); i++) {
      operand_bytes_.insert(operand_bytes_.end(), static_cast<size_t>(spec_.slots() + 2), bytes(i));
      for (int64_t begin = 0; begin < spec_.sizes[i]; begin += kChunk) {
        chunks_.push_back({i, begin, std::min(kChunk, spec_.sizes[i] - begin)});
      }
      elements += static_cast<double>(spec_.sizes[i]);
    }
    for (size_t i = 0; i < spec_.sizes.size(); i++) {
      operand_bytes_.insert(operand_bytes_.end(), static_cast<size_t>(spec_.slots() + 1), bytes(i));
    }
    constexpr double kFlopsPerElement = 32;  // floating point operations that take as long as updating one
    threads_ = settings.threads_for(kFlopsPerElement * elements);
  }

  std::string name() const override { return "one pass:avx512_core"; }

  void run(void* const* operands, Scratch&) const override {
    const Scalars scalars(spec_, operands);
    const auto count = static_cast<int64_t>(chunks_.size());
    std::atomic<int64_t> next{0};
    thread_pool::parallel_for(threads_, threads_, [&](int64_t, int64_t) {
      for (int64_t chunk; (chunk = next.fetch_add(1)) < count;) run_chunk(operands, scalars, chunks_[static_cast<size_t>(chunk)]);
    });
  }

 private:
  struct Chunk {
    size_t variable;
    int64_t begin, count;
  };

  size_t bytes(size_t variable) const { return static_cast<size_t>(spec_.sizes[variable]) * sizeof(float); }

  void run_chunk(void* const* operands, const Scalars& scalars, const Chunk& chunk) const {
    const auto slots = static_cast<size_t>(spec_.slots()), variables = spec_.sizes.size();
    void* const* in = operands + first_ + chunk.variable * (slots + 2);
    void* const* out = operands + first_ + variables * (slots + 2) + chunk.variable * (slots + 1);
    const auto at = [&](void* array) { return static_cast<float*>(array) + chunk.begin; };
    if (scalars.skips) {
      for (size_t i = 0; i <= slots; i++) {
        if (in[i] != out[i]) std::memcpy(at(out[i]), at(in[i]), static_cast<size_t>(chunk.count) * sizeof(float));
      }
    } else if (spec_.rule == Rule::kMomentum) {
      update<Rule::kMomentum>(spec_, scalars, {at(in[0]), at(in[1]), nullptr, at(in[2]), at(out[0]), at(out[1]), nullptr},
                              chunk.count);
    } else {
      update<Rule::kAdam>(spec_, scalars, {at(in[0]), at(in[1]), at(in[2]), at(in[3]), at(out[0]), at(out[1]), at(out[2])},
                          chunk.count);
    }
  }

  UpdateSpec spec_;
  size_t first_;  // the operand with the first variable
  std::vector<Chunk> chunks_;
};

}  // namespace

std::unique_ptr<Operation> make_update(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<Update>(UpdateSpec(reader), settings);
}

}  // namespace native
