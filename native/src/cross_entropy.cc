// Softmax cross-entropy of rows of logits with one label each: log(sum(exp(x))) - x[label], and its gradient, without an array of
// probabilities. A row is read once: its maximum and its sum are brought up to date block by block.
//
//   cross_entropy       logits, labels -> losses, normalizers
//   cross_entropy_grad  logits, labels, normalizers, gradient to the losses -> gradient to the logits
// Labels are int32, losses and normalizers (two numbers for each row) float32; the gradient has the dtype of the logits and may
// overwrite them. A label that is no class has the largest loss, and no gradient. The spec is written by
// oneflow/ops/_native_loss.py.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "operation.h"
#include "vectors.h"

namespace native {

namespace {

constexpr int64_t kBlock = 4096;  // elements whose sum is computed while they are in the first cache
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct CrossEntropySpec {
  explicit CrossEntropySpec(SpecReader reader) {
    type = reader.next_dtype();
    rows = reader.next(1, int64_t{1} << 40), classes = reader.next(1, std::numeric_limits<int32_t>::max());
    if (static_cast<double>(rows) * static_cast<double>(classes) > 1e15) throw std::invalid_argument("too many logits");
    largest = reader.next_float();
    reader.finish();
  }

  size_t logits_bytes() const { return static_cast<size_t>(rows * classes) * bytes_of(type); }

  dt type;
  int64_t rows, classes;
  float largest;  // loss
};

// log(sum(exp(x))) as the greatest x, and the logarithm of what is left when it is subtracted: rounded, their sum may lack all
// digits.
struct Normalizer {
  float top, log;
};

// Computes some rows.
using Run = void(const CrossEntropySpec&, void* const* operands, int64_t begin, int64_t end);

#define KERNELS "cross_entropy_kernels.h"
#include "each_isa.h"

class CrossEntropy final : public Operation {
 public:
  CrossEntropy(const CrossEntropySpec& spec, const thread_pool::Settings& settings, bool is_grad) : spec_(spec) {
    check_isa(spec.type != dt::f32);
    const size_t logits = spec.logits_bytes(), one_each = static_cast<size_t>(spec.rows) * sizeof(float);
    if (is_grad) {
      operand_bytes_ = {logits, one_each, 2 * one_each, one_each, logits};
    } else {
      operand_bytes_ = {logits, one_each, one_each, 2 * one_each};
    }
    constexpr double kFlopsPerElement = 32;  // floating point operations that take as long as one of the logits
    threads_ = settings.threads_for(kFlopsPerElement * static_cast<double>(spec.rows) * static_cast<double>(spec.classes));
    run_ = for_this_cpu(avx2::choose, avx512::choose)(is_grad, spec.type != dt::f32);
  }

  std::string name() const override { return "one pass:" + isa_name(spec_.type != dt::f32); }

  void run(void* const* operands, Scratch&) const override {
    thread_pool::parallel_for(spec_.rows, threads_, [&](int64_t begin, int64_t end) { run_(spec_, operands, begin, end); });
  }

 private:
  CrossEntropySpec spec_;
  Run* run_;
};

}  // namespace

std::unique_ptr<Operation> make_cross_entropy(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<CrossEntropy>(CrossEntropySpec(reader), settings, false);
}

std::unique_ptr<Operation> make_cross_entropy_grad(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<CrossEntropy>(CrossEntropySpec(reader), settings, true);
}

}  // namespace native
