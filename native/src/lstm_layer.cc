// All steps of an LSTM over a sequence, with the products of the states before and the recurrent weights, and their gradients. AVX-512
// only; float32.
//
//   lstm_layer       gates[, h', c'], weights -> h of all steps, the last c[, activated gates, c of all steps, h before each step]
//   lstm_layer_grad  activated gates, c of all steps[, c'], weights, gradients to h of all steps and to the last c
//                    -> gradients to the gates[, to h', to c']
// `gates` are what is added to the products. Weights are packed once in a call. Threads share the columns of the states, so that each
// one's weights stay in its core's cache; they wait for each other once in each step.
#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "operation.h"
#include "vector_math.h"

namespace native {

namespace {

constexpr int64_t kLanes = 16, kVectors = 4, kPanel = kVectors * kLanes, kBlock = 6;  // a block of sums is kBlock rows of kVectors registers

// Written by oneflow/compiler/lstm_layer_kernels.py.
struct LstmLayerSpec {
  explicit LstmLayerSpec(SpecReader reader) {
    steps = reader.next(1, int64_t{1} << 24), rows = reader.next(1, int64_t{1} << 24), width = reader.next(1, int64_t{1} << 14);
    unsigned seen = 0;
    for (auto& quarter : quarters) {
      quarter = reader.next(0, 3);
      seen |= 1u << quarter;
    }
    if (seen != 15) throw std::invalid_argument("two gates are in the same quarter");
    has_state = reader.next_bool(), by_row = reader.next_bool(), transposed = reader.next_bool(), keeps = reader.next_bool();
    reader.finish();
  }

  // Where a step's row of so many columns begins.
  int64_t at(int64_t step, int64_t row, int64_t columns) const {
    return (by_row ? row * steps + step : step * rows + row) * columns;
  }
  size_t bytes() const { return static_cast<size_t>(rows * width) * sizeof(float); }  // of a state

  int64_t steps, rows, width;
  int64_t quarters[4];  // of i, f, g, o
  bool has_state;       // there are h' and c' from before the first step; else its f and products are zeros
  bool by_row;          // arrays of all steps are (rows, steps, ...), not (steps, rows, ...)
  bool transposed;      // weights are (4 width, width), not (width, 4 width)
  bool keeps;           // what the gradient needs; lstm_layer alone reads it
};

// Packed weights: panels of 64 columns, one row of the panel after the other.
//   forward   16 columns of each gate i, f, g, o; rows are the columns of the state before
//   backward  64 columns of the state; rows are the columns of the gates
struct Panels {
  Panels(const LstmLayerSpec& s, bool is_grad)
      : count(is_grad ? (s.width + kPanel - 1) / kPanel : (s.width + kLanes - 1) / kLanes), depth(is_grad ? 4 * s.width : s.width) {}
  size_t bytes() const { return static_cast<size_t>(count * depth * kPanel) * sizeof(float); }

  int64_t count, depth;
};

void pack(const LstmLayerSpec& s, const Panels& panels, bool is_grad, const float* weights, float* packed, int64_t begin, int64_t end) {
  const int64_t state_stride = s.transposed ? 1 : 4 * s.width, gate_stride = s.transposed ? s.width : 1;
  for (int64_t panel = begin; panel < end; panel++) {
    float* to = packed + panel * panels.depth * kPanel;
    for (int64_t row = 0; row < panels.depth; row++) {
      for (int64_t v = 0; v < kVectors; v++, to += kLanes) {
        const int64_t column = is_grad ? panel * kPanel + v * kLanes : panel * kLanes;
        const int64_t present = std::clamp<int64_t>(s.width - column, 0, kLanes), stride = is_grad ? state_stride : gate_stride;
        const float* from = is_grad ? weights + row * gate_stride + column * state_stride
                                    : weights + row * state_stride + (s.quarters[v] * s.width + column) * gate_stride;
        for (int64_t i = 0; i < present; i++) to[i] = from[i * stride];
        std::fill(to + present, to + kLanes, 0.0f);
      }
    }
  }
}

// The operands and working memory of a call. States in working memory are (rows, width), gates (rows, 4 width).
struct Forward {
  const LstmLayerSpec& s;
  const float *gates, *first_hidden, *first_cell, *weights;
  float *hidden, *last_cell, *activated, *cells, *before;
  float *packed, *states[2], *cell;  // h of the step before and of this one, in turns; c
};

struct Backward {
  const LstmLayerSpec& s;
  const float *activated, *cells, *first_cell, *weights, *to_hidden, *to_last_cell;
  float *to_gates, *to_first_hidden, *to_first_cell;
  float *packed, *slopes[2], *to_cell;  // gradients to the gates of the step after and of this one, in turns; to c
};

// --- what follows is compiled for AVX-512; it is called only where the CPU has that

#include "avx512_begin.h"

// Adds the products of kRows rows of `left` and a panel to the sums.
template <int kRows>
inline void multiply(const float* left, int64_t depth, const float* panel, __m512 (&sums)[kRows][kVectors]) {
  for (int64_t i = 0; i < depth; i++, panel += kPanel) {
    __m512 w[kVectors];
    for (int v = 0; v < kVectors; v++) w[v] = _mm512_loadu_ps(panel + kLanes * v);
    for (int r = 0; r < kRows; r++) {
      const __m512 x = _mm512_set1_ps(left[r * depth + i]);
      for (int v = 0; v < kVectors; v++) sums[r][v] = _mm512_fmadd_ps(x, w[v], sums[r][v]);
    }
  }
}

inline __mmask16 present(const LstmLayerSpec& s, int64_t column) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(s.width - column, 0, kLanes)) - 1);
}

// Fetches the lines of 16 columns of kRows rows, which are read, or written, behind a product: their distance in memory is too large for
// the processor to foresee them.
template <int kRows>
inline void fetch(const float* first, int64_t stride) {
  for (int r = 0; r < kRows; r++) _mm_prefetch(reinterpret_cast<const char*>(first + r * stride), _MM_HINT_T0);
}

template <int kRows>
void forward_block(const Forward& c, int64_t step, int64_t row, int64_t panel) {
  const LstmLayerSpec& s = c.s;
  const bool follows = step > 0 || s.has_state;
  __m512 sums[kRows][kVectors];
  for (auto& of_row : sums) {
    for (auto& sum : of_row) sum = _mm512_setzero_ps();
  }
  const int64_t column = panel * kLanes, stride = s.at(0, 1, s.width), begin = s.at(step, row, s.width), next = s.at(step + 1, row, s.width);
  for (const int64_t quarter : s.quarters) {
    const int64_t offset = 4 * begin + quarter * s.width + column;
    fetch<kRows>(c.gates + offset, 4 * stride);
    if (s.keeps) fetch<kRows>(c.activated + offset, 4 * stride);
  }
  fetch<kRows>(c.hidden + begin + column, stride);
  if (s.keeps) {
    fetch<kRows>(c.cells + (step * s.rows + row) * s.width + column, s.width);
    if (step + 1 < s.steps) fetch<kRows>(c.before + next + column, stride);
  }
  if (follows) multiply<kRows>(c.states[(step + 1) % 2] + row * s.width, s.width, c.packed + panel * s.width * kPanel, sums);
  const __mmask16 mask = present(s, column);
  for (int r = 0; r < kRows; r++) {
    const int64_t at = (row + r) * s.width + column, first = s.at(step, row + r, 4 * s.width) + column;
    const auto gate = [&](int which) {
      return _mm512_add_ps(sums[r][which], _mm512_maskz_loadu_ps(mask, c.gates + first + s.quarters[which] * s.width));
    };
    const __m512 i = sigmoid(gate(0)), g = hyperbolic_tangent(gate(2)), o = sigmoid(gate(3));
    __m512 f = _mm512_setzero_ps(), cell = _mm512_mul_ps(i, g);
    if (follows) {
      f = sigmoid(gate(1));
      cell = _mm512_fmadd_ps(f, _mm512_maskz_loadu_ps(mask, c.cell + at), cell);
    }
    const __m512 hidden = _mm512_mul_ps(o, hyperbolic_tangent(cell));
    _mm512_mask_storeu_ps(c.hidden + s.at(step, row + r, s.width) + column, mask, hidden);
    _mm512_mask_storeu_ps(c.states[step % 2] + at, mask, hidden);
    _mm512_mask_storeu_ps(c.cell + at, mask, cell);
    if (step == s.steps - 1) _mm512_mask_storeu_ps(c.last_cell + at, mask, cell);
    if (!s.keeps) continue;
    const __m512 kept[] = {i, f, g, o};
    for (int v = 0; v < 4; v++) _mm512_mask_storeu_ps(c.activated + first + s.quarters[v] * s.width, mask, kept[v]);
    _mm512_mask_storeu_ps(c.cells + step * s.rows * s.width + at, mask, cell);
    if (step + 1 < s.steps) _mm512_mask_storeu_ps(c.before + s.at(step + 1, row + r, s.width) + column, mask, hidden);
    if (step == 0) {
      const __m512 first_hidden = s.has_state ? _mm512_maskz_loadu_ps(mask, c.first_hidden + at) : _mm512_setzero_ps();
      _mm512_mask_storeu_ps(c.before + s.at(0, row + r, s.width) + column, mask, first_hidden);
    }
  }
}

// Step -1 computes the gradients to the state before the first one.
template <int kRows>
void backward_block(const Backward& c, int64_t step, int64_t row, int64_t panel) {
  const LstmLayerSpec& s = c.s;
  __m512 sums[kRows][kVectors];
  for (auto& of_row : sums) {
    for (auto& sum : of_row) sum = _mm512_setzero_ps();
  }
  for (int64_t column = panel * kPanel; step >= 0 && column < std::min(s.width, (panel + 1) * kPanel); column += kLanes) {
    const int64_t stride = s.at(0, 1, s.width), begin = s.at(step, row, s.width);
    for (const int64_t quarter : s.quarters) {
      const int64_t offset = 4 * begin + quarter * s.width + column;
      fetch<kRows>(c.activated + offset, 4 * stride);
      fetch<kRows>(c.to_gates + offset, 4 * stride);
    }
    fetch<kRows>(c.to_hidden + begin + column, stride);
    if (step > 0) fetch<kRows>(c.cells + ((step - 1) * s.rows + row) * s.width + column, s.width);  // the step's own came with the one after
  }
  if (step + 1 < s.steps) {
    multiply<kRows>(c.slopes[(step + 2) % 2] + row * 4 * s.width, 4 * s.width, c.packed + panel * 4 * s.width * kPanel, sums);
  }
  const auto slope = [](__m512 y) { return _mm512_fnmadd_ps(y, y, y); };  // of a sigmoid, where its value is y
  const auto slope_of_tangent = [](__m512 y) { return _mm512_fnmadd_ps(y, y, _mm512_set1_ps(1)); };
  for (int v = 0; v < kVectors; v++) {
    const int64_t column = panel * kPanel + v * kLanes;
    if (column >= s.width) return;
    const __mmask16 mask = present(s, column);
    const auto load = [&](const float* data) { return _mm512_maskz_loadu_ps(mask, data); };
    for (int r = 0; r < kRows; r++) {
      const int64_t at = (row + r) * s.width + column;
      if (step < 0) {
        _mm512_mask_storeu_ps(c.to_first_hidden + at, mask, sums[r][v]);
        _mm512_mask_storeu_ps(c.to_first_cell + at, mask, load(c.to_cell + at));
        continue;
      }
      const bool follows = step > 0 || s.has_state;
      const int64_t first = s.at(step, row + r, 4 * s.width) + column;
      const auto gate = [&](int which) { return load(c.activated + first + s.quarters[which] * s.width); };
      const __m512 i = gate(0), f = gate(1), g = gate(2), o = gate(3);
      const __m512 tangent = hyperbolic_tangent(load(c.cells + step * s.rows * s.width + at));
      const __m512 dh = _mm512_add_ps(sums[r][v], load(c.to_hidden + s.at(step, row + r, s.width) + column));
      const __m512 later = load((step + 1 < s.steps ? c.to_cell : c.to_last_cell) + at);
      const __m512 dc = _mm512_fmadd_ps(_mm512_mul_ps(dh, o), slope_of_tangent(tangent), later);
      __m512 to_f = _mm512_setzero_ps();
      if (follows) {
        const float* before = step > 0 ? c.cells + (step - 1) * s.rows * s.width : c.first_cell;
        to_f = _mm512_mul_ps(_mm512_mul_ps(dc, load(before + at)), slope(f));
      }
      const __m512 made[] = {_mm512_mul_ps(_mm512_mul_ps(dc, g), slope(i)), to_f, _mm512_mul_ps(_mm512_mul_ps(dc, i), slope_of_tangent(g)),
                             _mm512_mul_ps(_mm512_mul_ps(dh, tangent), slope(o))};
      for (int which = 0; which < 4; which++) {
        const int64_t offset = s.quarters[which] * s.width + column;
        _mm512_mask_storeu_ps(c.to_gates + s.at(step, row + r, 4 * s.width) + offset, mask, made[which]);
        _mm512_mask_storeu_ps(c.slopes[(step + 1) % 2] + (row + r) * 4 * s.width + offset, mask, made[which]);
      }
      _mm512_mask_storeu_ps(c.to_cell + at, mask, _mm512_mul_ps(dc, f));
    }
  }
}

#include "avx512_end.h"

// --- for any CPU again

template <class Call>
using Block = void(const Call&, int64_t step, int64_t row, int64_t panel);
constexpr Block<Forward>* kForward[kBlock] = {forward_block<1>, forward_block<2>, forward_block<3>,
                                              forward_block<4>, forward_block<5>, forward_block<6>};
constexpr Block<Backward>* kBackward[kBlock] = {backward_block<1>, backward_block<2>, backward_block<3>,
                                                backward_block<4>, backward_block<5>, backward_block<6>};

// The share of a thread: some panels, and where there are more threads than panels some of the rows.
struct Share {
  Share(const LstmLayerSpec& s, int64_t panels, int thread, int threads) {
    const int64_t across = std::min<int64_t>(threads, panels), down = std::min<int64_t>(threads / across, s.rows);
    const int64_t i = thread % across, j = thread / across;
    if (j >= down) return;  // it has nothing to do
    panel = panels * i / across, last_panel = panels * (i + 1) / across;
    row = s.rows * j / down, last_row = s.rows * (j + 1) / down;
  }

  template <class Call>
  void compute(Block<Call>* const* blocks, const Call& call, int64_t step) const {
    const int64_t rows = last_row - row, count = (rows + kBlock - 1) / kBlock;
    for (int64_t p = panel; p < last_panel; p++) {
      for (int64_t i = 0; i < count; i++) {
        const int64_t first = row + rows * i / count, next = row + rows * (i + 1) / count;
        blocks[next - first - 1](call, step, first, p);
      }
    }
  }

  int64_t panel = 0, last_panel = 0, row = 0, last_row = 0;
};

void share(const Forward& c, const Panels& panels, int thread, int threads) {
  const LstmLayerSpec& s = c.s;
  pack(s, panels, false, c.weights, c.packed, panels.count * thread / threads, panels.count * (thread + 1) / threads);
  if (s.has_state && thread == 0) {
    std::memcpy(c.states[1], c.first_hidden, s.bytes());
    std::memcpy(c.cell, c.first_cell, s.bytes());
  }
  const Share mine(s, panels.count, thread, threads);
  for (int64_t step = 0; step < s.steps; step++) {
    thread_pool::barrier();
    mine.compute(kForward, c, step);
  }
}

void share(const Backward& c, const Panels& panels, int thread, int threads) {
  const LstmLayerSpec& s = c.s;
  pack(s, panels, true, c.weights, c.packed, panels.count * thread / threads, panels.count * (thread + 1) / threads);
  const Share mine(s, panels.count, thread, threads);
  for (int64_t step = s.steps - 1; step >= (s.has_state ? -1 : 0); step--) {
    thread_pool::barrier();
    mine.compute(kBackward, c, step);
  }
}

class LstmLayer final : public Operation {
 public:
  LstmLayer(const LstmLayerSpec& spec, const thread_pool::Settings& settings, bool is_grad)
      : spec_(spec), panels_(spec, is_grad), is_grad_(is_grad) {
    check_avx512(false);
    const LstmLayerSpec& s = spec_;
    const size_t state = s.bytes(), states = state * static_cast<size_t>(s.steps), weights = static_cast<size_t>(4 * s.width * s.width) * sizeof(float);
    const auto add = [&](std::initializer_list<size_t> sizes) { operand_bytes_.insert(operand_bytes_.end(), sizes); };
    if (is_grad) {
      add({4 * states, states});
      if (s.has_state) add({state});
      add({weights, states, state, 4 * states});
      if (s.has_state) add({state, state});
    } else {
      add({4 * states});
      if (s.has_state) add({state, state});
      add({weights, states, state});
      if (s.keeps) add({4 * states, states, states});
    }
    moving_ = is_grad ? 4 * state : state;
    scratch_size_ = aligned(panels_.bytes()) + 2 * aligned(moving_) + aligned(state);
    constexpr double kSteps = 8;  // that are worth a region: threads wait for each other in each
    threads_ = settings.threads_for(kSteps * 8 * static_cast<double>(s.rows) * static_cast<double>(s.width * s.width));
  }

  std::string name() const override { return "all steps:avx512_core"; }

  void run(void* const* operands, Scratch& scratch) const override {
    const LstmLayerSpec& s = spec_;
    int next = 0;
    const auto operand = [&](bool is_there = true) { return is_there ? static_cast<float*>(operands[next++]) : nullptr; };
    const auto taken = [&](size_t bytes) { return reinterpret_cast<float*>(scratch.take(bytes)); };
    if (is_grad_) {
      Backward c{s, operand(), operand(), operand(s.has_state), operand(), operand(), operand(), operand(), operand(s.has_state),
                 operand(s.has_state), taken(panels_.bytes()), {taken(moving_), taken(moving_)}, taken(s.bytes())};
      in_parallel(c);
    } else {
      Forward c{s, operand(), operand(s.has_state), operand(s.has_state), operand(), operand(), operand(), operand(s.keeps),
                operand(s.keeps), operand(s.keeps), taken(panels_.bytes()), {taken(moving_), taken(moving_)}, taken(s.bytes())};
      in_parallel(c);
    }
  }

 private:
  template <class Call>
  void in_parallel(const Call& call) const {
    struct Job {
      const Call& call;
      const Panels& panels;
    } job{call, panels_};
    thread_pool::parallel(
        [](void* data, int thread, int threads) {
          const Job& job = *static_cast<const Job*>(data);
          share(job.call, job.panels, thread, threads);
        },
        &job, threads_);
  }

  LstmLayerSpec spec_;
  Panels panels_;
  bool is_grad_;
  size_t moving_;  // the bytes of what goes from step to step through the product
};

}  // namespace

std::unique_ptr<Operation> make_lstm_layer(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<LstmLayer>(LstmLayerSpec(reader), settings, false);
}

std::unique_ptr<Operation> make_lstm_layer_grad(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<LstmLayer>(LstmLayerSpec(reader), settings, true);
}

}  // namespace native
