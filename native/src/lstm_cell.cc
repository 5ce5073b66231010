// What a step of an LSTM computes of its gates, which a product has made: c = sigmoid(f) c' + sigmoid(i) tanh(g), h = sigmoid(o) tanh(c),
// and the gradients. AVX-512 only; float32.
//
//   lstm_cell       gates[, c'] -> h, c, activated gates
//   lstm_cell_grad  activated gates[, c'], c, gradients to h and c -> gradients to the gates[, to c']
// Gates are rows of four times the width; the spec says in which quarter each one is. Without c' the quarter of f is not read, and its
// activated gates and gradients are zeros. The spec is written by oneflow/compiler/lstm_cell_kernels.py.
#include <algorithm>

#include "operation.h"
#include "vector_math.h"

namespace native {

namespace {

constexpr int64_t kLanes = 16;

struct LstmCellSpec {
  explicit LstmCellSpec(SpecReader reader) {
    rows = reader.next(1, int64_t{1} << 32), width = reader.next(1, int64_t{1} << 24);
    unsigned seen = 0;
    for (auto& quarter : quarters) {
      quarter = reader.next(0, 3);
      seen |= 1u << quarter;
    }
    if (seen != 15) throw std::invalid_argument("two gates are in the same quarter");
    has_cell = reader.next_bool();
    reader.finish();
  }

  size_t bytes() const { return static_cast<size_t>(rows * width) * sizeof(float); }

  int64_t rows, width;
  int64_t quarters[4];  // of i, f, g, o
  bool has_cell;
};

// --- what follows is compiled for AVX-512; it is called only where the CPU has that

#include "avx512_begin.h"

// Calls body(row, column, mask of the columns that exist) for the blocks of 16 columns from `begin` to `end`.
template <class Body>
inline void for_blocks(const LstmCellSpec& s, int64_t begin, int64_t end, const Body& body) {
  const int64_t blocks = (s.width + kLanes - 1) / kLanes;
  int64_t row = begin / blocks, column = begin % blocks * kLanes;
  for (; begin < end; begin++) {
    const int64_t present = std::min(kLanes, s.width - column);
    body(row, column, static_cast<__mmask16>((1u << present) - 1));
    column += kLanes;
    if (column >= s.width) column = 0, row++;
  }
}

void cells(const LstmCellSpec& s, void* const* operands, int64_t begin, int64_t end) {
  const auto array = [&](int i) { return static_cast<float*>(operands[i]); };
  const float *gates = array(0), *before = s.has_cell ? array(1) : nullptr;
  float *hidden = array(1 + s.has_cell), *cell = array(2 + s.has_cell), *activated = array(3 + s.has_cell);
  for_blocks(s, begin, end, [&](int64_t row, int64_t column, __mmask16 mask) {
    const int64_t at = row * s.width + column, first = row * 4 * s.width + column;
    const auto gate = [&](int which) { return _mm512_maskz_loadu_ps(mask, gates + first + s.quarters[which] * s.width); };
    const auto keep = [&](int which, __m512 x) { _mm512_mask_storeu_ps(activated + first + s.quarters[which] * s.width, mask, x); };
    const __m512 i = sigmoid(gate(0)), g = hyperbolic_tangent(gate(2)), o = sigmoid(gate(3));
    __m512 f = _mm512_setzero_ps(), c = _mm512_mul_ps(i, g);
    if (before) {
      f = sigmoid(gate(1));
      c = _mm512_fmadd_ps(f, _mm512_maskz_loadu_ps(mask, before + at), c);
    }
    keep(0, i), keep(1, f), keep(2, g), keep(3, o);
    _mm512_mask_storeu_ps(cell + at, mask, c);
    _mm512_mask_storeu_ps(hidden + at, mask, _mm512_mul_ps(o, hyperbolic_tangent(c)));
  });
}

void gradients(const LstmCellSpec& s, void* const* operands, int64_t begin, int64_t end) {
  const auto array = [&](int i) { return static_cast<float*>(operands[i]); };
  const float *activated = array(0), *before = s.has_cell ? array(1) : nullptr;
  const float *cell = array(1 + s.has_cell), *to_hidden = array(2 + s.has_cell), *to_cell = array(3 + s.has_cell);
  float *to_gates = array(4 + s.has_cell), *to_before = s.has_cell ? array(6) : nullptr;
  for_blocks(s, begin, end, [&](int64_t row, int64_t column, __mmask16 mask) {
    const int64_t at = row * s.width + column, first = row * 4 * s.width + column;
    const auto load = [&](const float* data) { return _mm512_maskz_loadu_ps(mask, data); };
    const auto gate = [&](int which) { return load(activated + first + s.quarters[which] * s.width); };
    const auto keep = [&](int which, __m512 x) { _mm512_mask_storeu_ps(to_gates + first + s.quarters[which] * s.width, mask, x); };
    const auto slope = [](__m512 y) { return _mm512_fnmadd_ps(y, y, y); };  // of a sigmoid, where its value is y
    const auto slope_of_tangent = [](__m512 y) { return _mm512_fnmadd_ps(y, y, _mm512_set1_ps(1)); };
    const __m512 i = gate(0), g = gate(2), o = gate(3), dh = load(to_hidden + at), tangent = hyperbolic_tangent(load(cell + at));
    const __m512 dc = _mm512_fmadd_ps(_mm512_mul_ps(dh, o), slope_of_tangent(tangent), load(to_cell + at));
    keep(0, _mm512_mul_ps(_mm512_mul_ps(dc, g), slope(i)));
    keep(2, _mm512_mul_ps(_mm512_mul_ps(dc, i), slope_of_tangent(g)));
    keep(3, _mm512_mul_ps(_mm512_mul_ps(dh, tangent), slope(o)));
    if (before) {
      const __m512 f = gate(1);
      keep(1, _mm512_mul_ps(_mm512_mul_ps(dc, load(before + at)), slope(f)));
      _mm512_mask_storeu_ps(to_before + at, mask, _mm512_mul_ps(dc, f));
    } else {
      keep(1, _mm512_setzero_ps());
    }
  });
}

#include "avx512_end.h"

// --- for any CPU again

class LstmCell final : public Operation {
 public:
  LstmCell(const LstmCellSpec& spec, const thread_pool::Settings& settings, bool is_grad) : spec_(spec) {
    check_avx512(false);
    const size_t one = spec.bytes(), all = 4 * one;
    operand_bytes_ = {all};
    if (spec.has_cell) operand_bytes_.push_back(one);
    if (is_grad) {
      operand_bytes_.insert(operand_bytes_.end(), {one, one, one, all});
      if (spec.has_cell) operand_bytes_.push_back(one);
    } else {
      operand_bytes_.insert(operand_bytes_.end(), {one, one, all});
    }
    const double flops = is_grad ? 160 : 400;  // floating point operations that take as long as one element
    threads_ = settings.threads_for(flops * static_cast<double>(spec.rows) * static_cast<double>(spec.width));
    run_ = is_grad ? gradients : cells;
  }

  std::string name() const override { return "one pass:avx512_core"; }

  void run(void* const* operands, Scratch&) const override {
    const int64_t blocks = spec_.rows * ((spec_.width + kLanes - 1) / kLanes);
    thread_pool::parallel_for(blocks, threads_, [&](int64_t begin, int64_t end) { run_(spec_, operands, begin, end); });
  }

 private:
  LstmCellSpec spec_;
  void (*run_)(const LstmCellSpec&, void* const*, int64_t, int64_t);
};

}  // namespace

std::unique_ptr<Operation> make_lstm_cell(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<LstmCell>(LstmCellSpec(reader), settings, false);
}

std::unique_ptr<Operation> make_lstm_cell_grad(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<LstmCell>(LstmCellSpec(reader), settings, true);
}

}  // namespace native
