// What a step of an LSTM computes of its gates, which a product has made: c = sigmoid(f) c' + sigmoid(i) tanh(g), h = sigmoid(o)
// tanh(c), and the gradients, in float32.
//
//   lstm_cell       gates[, c'] -> h, c, activated gates
//   lstm_cell_grad  activated gates[, c'], c, gradients to h and c -> gradients to the gates[, to c']
// Gates are rows of four times the width; the spec says in which quarter each one is. Without c' the quarter of f is not read,
// and its activated gates and gradients are zeros. The spec is written by oneflow/compiler/lstm_cell_kernels.py.
#include <algorithm>

#include "lstm.h"
#include "vectors.h"

namespace native {

namespace {

struct LstmCellSpec {
  explicit LstmCellSpec(SpecReader reader)
      : rows(reader.next(1, int64_t{1} << 32)),
        width(reader.next(1, int64_t{1} << 24)),
        quarters(reader),
        has_cell(reader.next_bool()) {
    reader.finish();
  }

  size_t bytes() const { return static_cast<size_t>(rows * width) * sizeof(float); }

  int64_t rows, width;
  Quarters quarters;
  bool has_cell;
};

// Compute some blocks of a vector of columns each, row by row.
struct Kernels {
  using Run = void(const LstmCellSpec&, void* const* operands, int64_t begin, int64_t end);
  Run *cells, *gradients;
};

#define KERNELS "lstm_cell_kernels.h"
#include "each_isa.h"

class LstmCell final : public Operation {
 public:
  LstmCell(const LstmCellSpec& spec, const thread_pool::Settings& settings, bool is_grad) : spec_(spec) {
    check_isa(false);
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
    const Kernels& kernels = for_this_cpu(avx2::kKernels, avx512::kKernels);
    run_ = is_grad ? kernels.gradients : kernels.cells;
    blocks_ = spec.rows * ((spec.width + lanes() - 1) / lanes());
  }

  std::string name() const override { return "one pass:" + isa_name(false); }

  void run(void* const* operands, Scratch&) const override {
    thread_pool::parallel_for(blocks_, threads_, [&](int64_t begin, int64_t end) { run_(spec_, operands, begin, end); });
  }

 private:
  LstmCellSpec spec_;
  Kernels::Run* run_;
  int64_t blocks_;
};

}  // namespace

std::unique_ptr<Operation> make_lstm_cell(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<LstmCell>(LstmCellSpec(reader), settings, false);
}

std::unique_ptr<Operation> make_lstm_cell_grad(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<LstmCell>(LstmCellSpec(reader), settings, true);
}

}  // namespace native
