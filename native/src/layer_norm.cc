// Layer, group and instance normalization: y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with the mean and the biased
// variance of each row of a matrix, and its gradients. A row is read from memory once, where XLA makes a loop for each sum.
//
//   layer_norm       x, [gamma], [beta] -> y, statistics (of each row its mean, then 1 / sqrt(variance + epsilon))
//   layer_norm_grad  x, statistics, [gamma], gradient to y -> gradient to x, [gradients to gamma, then to beta]
// So many numbers side by side share an element of gamma and of beta: one in layer normalization, where each column has its own; the
// pixels of a channel in the others, whose rows are one or several channels of an image.
//
// x, y and their gradients have one dtype, everything else is float32. The gradient to x may overwrite that to y. Gradients to gamma
// and beta are results where one of the two is there. The spec is written by oneflow/ops/_native_norm.py.
#include <algorithm>
#include <cmath>
#include <functional>

#include "operation.h"
#include "vectors.h"

namespace native {

namespace {

constexpr int kRows = 4;        // that gradients are computed of at a time
constexpr int64_t kBlock = 64;  // rows, whose sums are added up before they are added to those of the rows before
constexpr int64_t kColumns = 1024;  // the same of the columns of a row: long sums of float32 numbers drift

struct LayerNormSpec {
  explicit LayerNormSpec(SpecReader reader) {
    type = reader.next_dtype();
    rows = reader.next(1, int64_t{1} << 40), width = reader.next(1, int64_t{1} << 31);
    if (static_cast<double>(rows) * static_cast<double>(width) > 1e15) throw std::invalid_argument("the array is too large");
    has_gamma = reader.next_bool(), has_beta = reader.next_bool();
    epsilon = reader.next_float();
    parameters = reader.next(1, int64_t{1} << 31), span = reader.next(1, width);
    const bool fits = span == 1 ? parameters == width : width % span == 0 && rows * (width / span) % parameters == 0;
    if (!fits) throw std::invalid_argument("gamma and beta do not fit the rows");
    reader.finish();
  }

  size_t bytes() const { return static_cast<size_t>(rows * width) * bytes_of(type); }
  size_t vector() const { return static_cast<size_t>(parameters) * sizeof(float); }
  size_t statistics() const { return static_cast<size_t>(2 * rows) * sizeof(float); }

  dt type;
  int64_t rows, width;
  bool has_gamma, has_beta;
  float epsilon;
  int64_t parameters;  // elements of gamma, and of beta
  int64_t span;        // numbers side by side that share one; these follow each other, and from the last one on begin anew
};

struct Forward {
  const void* x;
  const float *gamma, *beta;  // null where there is none
  void* y;
  float* statistics;
};

struct Backward {
  const void *x, *dy;
  const float *statistics, *gamma;  // gamma: null where there is none
  void* dx;
};

// Compute some rows. `sums` are two vectors, of the gradients to gamma and to beta, which those of these rows are added to, and two
// more for the kernel itself; null where neither is wanted.
struct Kernels {
  void (*normalize)(const LayerNormSpec&, const Forward&, int64_t begin, int64_t end);
  void (*differentiate)(const LayerNormSpec&, const Backward&, int64_t begin, int64_t end, float* sums);
};

#define KERNELS "layer_norm_kernels.h"
#include "each_isa.h"

class LayerNormBase : public Operation {
 public:
  LayerNormBase(const LayerNormSpec& spec, const thread_pool::Settings& settings, double flops_per_element) : s_(spec) {
    check_isa(spec.type != dt::f32);
    threads_ = settings.threads_for(flops_per_element * static_cast<double>(spec.rows) * static_cast<double>(spec.width));
    kernels_ = for_this_cpu(avx2::kernels, avx512::kernels)(spec.type != dt::f32);
  }

  std::string name() const override { return "one pass:" + isa_name(s_.type != dt::f32); }

 protected:
  LayerNormSpec s_;
  Kernels kernels_;
};

class LayerNorm final : public LayerNormBase {
 public:
  LayerNorm(const LayerNormSpec& spec, const thread_pool::Settings& settings) : LayerNormBase(spec, settings, 32) {
    operand_bytes_.push_back(s_.bytes());
    operand_bytes_.insert(operand_bytes_.end(), static_cast<size_t>(s_.has_gamma + s_.has_beta), s_.vector());
    operand_bytes_.insert(operand_bytes_.end(), {s_.bytes(), s_.statistics()});
  }

  void run(void* const* operands, Scratch&) const override {
    Forward at{};
    at.x = *operands++;
    if (s_.has_gamma) at.gamma = static_cast<const float*>(*operands++);
    if (s_.has_beta) at.beta = static_cast<const float*>(*operands++);
    at.y = *operands++;
    at.statistics = static_cast<float*>(*operands);
    thread_pool::parallel_for(s_.rows, threads_,
                              [&](int64_t begin, int64_t end) { kernels_.normalize(s_, at, begin, end); });
  }
};

class LayerNormGrad final : public LayerNormBase {
 public:
  LayerNormGrad(const LayerNormSpec& spec, const thread_pool::Settings& settings) : LayerNormBase(spec, settings, 64) {
    operand_bytes_ = {s_.bytes(), s_.statistics()};
    if (s_.has_gamma) operand_bytes_.push_back(s_.vector());
    operand_bytes_.insert(operand_bytes_.end(), {s_.bytes(), s_.bytes()});
    if (!has_sums()) return;
    operand_bytes_.push_back(2 * s_.vector());
    scratch_size_ = static_cast<size_t>(threads_) * aligned(kVectors * s_.vector());
  }

  void run(void* const* operands, Scratch& scratch) const override {
    Backward at{};
    at.x = *operands++;
    at.statistics = static_cast<const float*>(*operands++);
    if (s_.has_gamma) at.gamma = static_cast<const float*>(*operands++);
    at.dy = *operands++;
    at.dx = *operands++;
    std::vector<float*> sums(static_cast<size_t>(threads_));
    if (has_sums()) {
      for (auto& each : sums) each = reinterpret_cast<float*>(scratch.take(kVectors * s_.vector()));
    }
    thread_pool::on_threads(threads_, [&](int64_t i) {
      float* mine = sums[static_cast<size_t>(i)];
      if (mine) std::fill_n(mine, 2 * s_.parameters, 0.0f);
      kernels_.differentiate(s_, at, s_.rows * i / threads_, s_.rows * (i + 1) / threads_, mine);
    });
    if (!has_sums()) return;
    auto* result = static_cast<float*>(*operands);
    std::copy_n(sums[0], 2 * s_.parameters, result);
    for (size_t i = 1; i < sums.size(); i++) std::transform(result, result + 2 * s_.parameters, sums[i], result, std::plus<float>());
  }

 private:
  static constexpr size_t kVectors = 4;
  bool has_sums() const { return s_.has_gamma || s_.has_beta; }
};

}  // namespace

std::unique_ptr<Operation> make_layer_norm(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<LayerNorm>(LayerNormSpec(reader), settings);
}

std::unique_ptr<Operation> make_layer_norm_grad(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<LayerNormGrad>(LayerNormSpec(reader), settings);
}

}  // namespace native
