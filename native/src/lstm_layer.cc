// All steps of an LSTM over a sequence, with the products of the states before and the recurrent weights, and their gradients, in
// float32.
//
//   lstm_layer       gates[, bias][, h', c'], weights -> h of all steps, the last c[, activated gates, c of all steps, h before
//   each step] lstm_layer_grad  activated gates, c of all steps[, c'], weights, gradients to h of all steps and to the last c
//                    -> gradients to the gates[, to h', to c']
// `gates` are what is added to the products, and the bias is added in all rows and steps. Weights are packed once in a call.
// Threads share the columns of the states, so that each one's weights stay in its core's cache; they wait for each other once in
// each step.
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "lstm.h"
#include "vectors.h"

namespace native {

namespace {

constexpr int64_t kVectors = 4;  // of a panel

// Written by oneflow/compiler/lstm_layer_kernels.py.
struct LstmLayerSpec {
  explicit LstmLayerSpec(SpecReader reader)
      : steps(reader.next(1, int64_t{1} << 24)),
        rows(reader.next(1, int64_t{1} << 24)),
        width(reader.next(1, int64_t{1} << 14)),
        quarters(reader) {
    has_state = reader.next_bool(), by_row = reader.next_bool(), transposed = reader.next_bool();
    has_bias = reader.next_bool(), keeps = reader.next_bool();
    reader.finish();
  }

  // Where a step's row of so many columns begins.
  int64_t at(int64_t step, int64_t row, int64_t columns) const {
    return (by_row ? row * steps + step : step * rows + row) * columns;
  }
  size_t bytes() const { return static_cast<size_t>(rows * width) * sizeof(float); }  // of a state

  int64_t steps, rows, width;
  Quarters quarters;
  bool has_state;   // there are h' and c' from before the first step; else its f and products are zeros
  bool by_row;      // arrays of all steps are (rows, steps, ...), not (steps, rows, ...)
  bool transposed;  // weights are (4 width, width), not (width, 4 width)
  bool has_bias;    // of (4 width); lstm_layer alone reads this and the next one
  bool keeps;       // what the gradient needs
};

// Packed weights: panels of kVectors vectors of columns. Of those that are multiplied at once, one row comes after the other.
//   forward   a vector of columns of each gate i, f, g, o; rows are the columns of the state before
//   backward  adjacent columns of the state; rows are the columns of the gates
struct Panels {
  Panels(const LstmLayerSpec& s, bool is_grad) : depth(is_grad ? 4 * s.width : s.width) {
    const int64_t of_state = is_grad ? width() : lanes();
    count = (s.width + of_state - 1) / of_state;
  }
  int64_t width() const { return kVectors * lanes(); }
  size_t bytes() const { return static_cast<size_t>(count * depth * width()) * sizeof(float); }

  int64_t count, depth;
};

// The operands and working memory of a call. States in working memory are (rows, width), gates (rows, 4 width).
struct Forward {
  const LstmLayerSpec& s;
  const float *gates, *bias, *first_hidden, *first_cell, *weights;
  float *hidden, *last_cell, *activated, *cells, *before;
  float *packed, *states[2], *cell;  // h of the step before and of this one, in turns; c
};

struct Backward {
  const LstmLayerSpec& s;
  const float *activated, *cells, *first_cell, *weights, *to_hidden, *to_last_cell;
  float *to_gates, *to_first_hidden, *to_first_cell;
  float *packed, *slopes[2], *to_cell;  // gradients to the gates of the step after and of this one, in turns; to c
};

// Compute some rows, from one on, in the columns of one panel: `forward[i]` i + 1 rows, up to `most_rows`.
struct Kernels {
  template <class Call>
  using Block = void(const Call&, int64_t step, int64_t row, int64_t panel);

  int64_t most_rows, at_once;  // vectors of a panel
  Block<Forward>* forward[6];
  Block<Backward>* backward[6];
};

#define KERNELS "lstm_layer_kernels.h"
#include "each_isa.h"

const Kernels& kernels() { return for_this_cpu(avx2::kKernels, avx512::kKernels); }

void pack(const LstmLayerSpec& s, const Panels& panels, bool is_grad, const float* weights, float* packed, int64_t begin,
          int64_t end) {
  const int64_t state_stride = s.transposed ? 1 : 4 * s.width, gate_stride = s.transposed ? s.width : 1, lanes = native::lanes(), at_once = kernels().at_once;
  for (int64_t panel = begin; panel < end; panel++) {
    float* to = packed + panel * panels.depth * panels.width();
    for (int64_t begin = 0; begin < kVectors; begin += at_once) {
      for (int64_t row = 0; row < panels.depth; row++) {
        for (int64_t v = begin; v < begin + at_once; v++, to += lanes) {
          const int64_t column = is_grad ? panel * panels.width() + v * lanes : panel * lanes;
          const int64_t present = std::clamp<int64_t>(s.width - column, 0, lanes), stride = is_grad ? state_stride : gate_stride;
          const float* from = is_grad ? weights + row * gate_stride + column * state_stride
                                      : weights + row * state_stride + (s.quarters.of[v] * s.width + column) * gate_stride;
          for (int64_t i = 0; i < present; i++) to[i] = from[i * stride];
          std::fill(to + present, to + lanes, 0.0f);
        }
      }
    }
  }
}

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
  void compute(Kernels::Block<Call>* const* blocks, const Call& call, int64_t step) const {
    const int64_t rows = last_row - row, most = kernels().most_rows, count = (rows + most - 1) / most;
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
    mine.compute(kernels().forward, c, step);
  }
}

void share(const Backward& c, const Panels& panels, int thread, int threads) {
  const LstmLayerSpec& s = c.s;
  pack(s, panels, true, c.weights, c.packed, panels.count * thread / threads, panels.count * (thread + 1) / threads);
  const Share mine(s, panels.count, thread, threads);
  for (int64_t step = s.steps - 1; step >= (s.has_state ? -1 : 0); step--) {
    thread_pool::barrier();
    mine.compute(kernels().backward, c, step);
  }
}

class LstmLayer final : public Operation {
 public:
  LstmLayer(const LstmLayerSpec& spec, const thread_pool::Settings& settings, bool is_grad)
      : spec_(spec), panels_(spec, is_grad), is_grad_(is_grad) {
    check_isa(false);
    const LstmLayerSpec& s = spec_;
    const size_t state = s.bytes(), states = state * static_cast<size_t>(s.steps),
                 weights = static_cast<size_t>(4 * s.width * s.width) * sizeof(float);
    const auto add = [&](std::initializer_list<size_t> sizes) { operand_bytes_.insert(operand_bytes_.end(), sizes); };
    if (is_grad) {
      add({4 * states, states});
      if (s.has_state) add({state});
      add({weights, states, state, 4 * states});
      if (s.has_state) add({state, state});
    } else {
      add({4 * states});
      if (s.has_bias) add({static_cast<size_t>(4 * s.width) * sizeof(float)});
      if (s.has_state) add({state, state});
      add({weights, states, state});
      if (s.keeps) add({4 * states, states, states});
    }
    moving_ = is_grad ? 4 * state : state;
    scratch_size_ = aligned(panels_.bytes()) + 2 * aligned(moving_) + aligned(state);
    constexpr double kSteps = 8;  // that are worth a region: threads wait for each other in each
    threads_ = settings.threads_for(kSteps * 8 * static_cast<double>(s.rows) * static_cast<double>(s.width * s.width));
  }

  std::string name() const override { return "all steps:" + isa_name(false); }

  void run(void* const* operands, Scratch& scratch) const override {
    const LstmLayerSpec& s = spec_;
    int next = 0;
    const auto operand = [&](bool is_there = true) { return is_there ? static_cast<float*>(operands[next++]) : nullptr; };
    const auto taken = [&](size_t bytes) { return reinterpret_cast<float*>(scratch.take(bytes)); };
    if (is_grad_) {
      Backward c{s,
                 operand(),
                 operand(),
                 operand(s.has_state),
                 operand(),
                 operand(),
                 operand(),
                 operand(),
                 operand(s.has_state),
                 operand(s.has_state),
                 taken(panels_.bytes()),
                 {taken(moving_), taken(moving_)},
                 taken(s.bytes())};
      in_parallel(c);
    } else {
      Forward c{s,
                operand(),
                operand(s.has_bias),
                operand(s.has_state),
                operand(s.has_state),
                operand(),
                operand(),
                operand(),
                operand(s.keeps),
                operand(s.keeps),
                operand(s.keeps),
                taken(panels_.bytes()),
                {taken(moving_), taken(moving_)},
                taken(s.bytes())};
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
