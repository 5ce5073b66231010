// Transpositions of a batch of matrices, which move channels last, and back: XLA would compute one together with what
// comes before it, element by element in the order of the result. The spec: dtype, batch, rows, columns (written by
// oneflow/compiler/channels_last.py).

#include "operation.h"

namespace native {

namespace {

constexpr double kFlopsPerElement = 16;  // floating point operations that take as long as moving one

class Transpose final : public Operation {
 public:
  Transpose(dt dtype, int64_t batch, int64_t rows, int64_t columns, const thread_pool::Settings& settings)
      : from_({batch, rows, columns}, dtype, dims{rows * columns, columns, 1}),
        to_({batch, rows, columns}, dtype, dims{rows * columns, 1, rows}) {
    threads_ = settings.threads_for(kFlopsPerElement * static_cast<double>(batch) * rows * columns);
    const thread_pool::ScopedMaxThreads scope(threads_);
    reorder_ = Reorder(from_, to_);
    scratch_size_ = reorder_.scratch_size();
    operand_bytes_.assign(2, static_cast<size_t>(batch * rows * columns) * bytes_of(dtype));
  }

  std::string name() const override { return "reorder"; }

  void run(void* const* operands, Scratch& scratch) const override {
    reorder_.run(dnnl::memory(from_, engine(), operands[0]), dnnl::memory(to_, engine(), operands[1]), scratch);
  }

 private:
  dnnl::memory::desc from_, to_;
  Reorder reorder_;
};

}  // namespace

std::unique_ptr<Operation> make_transpose(SpecReader reader, thread_pool::Settings settings, bool) {
  const dt dtype = reader.next_dtype();
  const int64_t batch = reader.next(1), rows = reader.next(1), columns = reader.next(1);
  reader.finish();
  return std::make_unique<Transpose>(dtype, batch, rows, columns, settings);
}

}  // namespace native
