// Batch normalization of training steps, and what follows it: per channel the mean and the biased variance, then
//   y = (x - mean) * gamma / sqrt(variance + epsilon) + beta + residual, rectified
// in two passes over x, where XLA makes five; and its gradients in two passes more. Channels last: arrays are matrices of rows
// and channels. Statistics and sums are float32. The specs are written by oneflow/compiler/batch_norm_kernels.py.
//
//   batch_norm       x, [gamma], [beta], moving mean, moving variance, [residual]
//                    -> y, new moving mean, new moving variance, statistics (mean, then 1 / sqrt(variance + epsilon))
//   batch_norm_grad  x, [gamma], [beta], statistics, [y], one or two gradients to y, which are added
//                    -> gradient to x, [gradient to the residual], gradients to gamma, then to beta
//
// Where several devices have the rows, each pass is a call, and what the first one of each device finds is sent to all
// (exchange.cc, or XLA's collectives between processes):
//
//   batch_norm       x -> mean and variance of this device's rows
//                    x, those of all devices, [gamma], ... as above
//   batch_norm_grad  x, [gamma], [beta], statistics, [y], gradients to y -> [gradient to the residual], sums
//                    x, [gamma], [beta], statistics, sums of all devices' rows, [y], gradients to y
//                    -> gradient to x, gradients to gamma, then to beta
//
// Threads share the rows. A thread takes blocks of rows, and of each block some channels at a time, whose sums are in registers.
#include <algorithm>
#include <limits>

#include "channels.h"
#include "operation.h"
#include "vectors.h"

namespace native {

namespace {

enum class Passes { kBoth = 0, kFirst = 1, kSecond = 2 };

// What both calls have in common.
struct NormSpec {
  explicit NormSpec(SpecReader& reader) {
    constexpr int64_t kMax = int64_t{1} << 40;
    x_type = reader.next_dtype(), y_type = reader.next_dtype();
    rows = reader.next(1, kMax), channels = reader.next(1, int64_t{1} << 24);
    if (static_cast<double>(rows) * static_cast<double>(channels) > static_cast<double>(kMax)) {
      throw std::invalid_argument("the array is too large");
    }
    has_gamma = reader.next_bool(), has_beta = reader.next_bool();
    is_rectified = reader.next_bool();
    passes = static_cast<Passes>(reader.next(0, 2));
    devices = reader.next(1, passes == Passes::kBoth ? 1 : int64_t{1} << 16);
  }

  int64_t all_rows() const { return rows * devices; }
  size_t vector() const { return static_cast<size_t>(channels) * sizeof(float); }  // bytes
  size_t array(dt type) const { return static_cast<size_t>(rows * channels) * bytes_of(type); }

  dt x_type, y_type;  // of x and its gradient; of y, residual and their gradients
  int64_t rows, channels;
  Passes passes;
  int64_t devices;  // each of which has as many rows
  bool has_gamma, has_beta, is_rectified;
};

struct ForwardSpec : NormSpec {
  explicit ForwardSpec(SpecReader reader) : NormSpec(reader) {
    has_residual = reader.next_bool();
    epsilon = reader.next_float(), momentum = reader.next_float(), rest = reader.next_float();
    reader.finish();
  }

  bool has_residual;
  float epsilon, momentum, rest;  // moving statistics become momentum * old + rest * new
};

struct BackwardSpec : NormSpec {
  explicit BackwardSpec(SpecReader reader) : NormSpec(reader) {
    has_y = reader.next_bool(), keeps = reader.next_bool();
    if (keeps && passes == Passes::kSecond) throw std::invalid_argument("the second pass keeps nothing");
    gradients = static_cast<int>(reader.next(1, 2));
    reader.finish();
  }

  bool has_y;     // it says where the result was positive; otherwise x does, and there was no residual
  bool keeps;     // the gradient to the sum before the ReLU is a result, that to the residual
  int gradients;  // to y
};

struct ForwardVectors {
  const float *gamma, *beta, *moving_mean, *moving_variance;  // gamma, beta: null where there are none
  float *new_mean, *new_variance, *statistics;
  float *mean, *slope, *shift;  // padded
};

struct BackwardVectors {
  const float *gamma, *beta, *statistics;  // gamma, beta: null where there are none
  float* results;
  float *mean, *slope, *shift, *share, *tilt;  // padded
};

struct BackwardArrays {
  const void *x, *y, *dy, *more;
  void *dx, *kept;
};

struct Kernels {
  using Measure = void(const void* x, int64_t begin, int64_t end, int64_t channels, float* vectors);
  using Normalize = void(const ForwardSpec&, int64_t begin, int64_t end, const void* x, const void* residual, void* y,
                         const ForwardVectors&);
  // The sums of a part of the rows if `vectors` is not null, else the gradient to x.
  using Differentiate = void(const BackwardSpec&, int64_t begin, int64_t end, const BackwardArrays&, const BackwardVectors&,
                             float* vectors);

  Measure* (*measure)(const ForwardSpec&);
  Normalize* (*normalize)(const ForwardSpec&);
  Differentiate* (*differentiate)(const BackwardSpec&);
  void (*store_statistics)(const ForwardSpec&, const Part*, int count, int64_t width, float* statistics);
  void (*load_part)(const ForwardSpec&, const float* statistics, int64_t width, float* vectors);
  void (*finish_statistics)(const ForwardSpec&, const Part*, int count, int64_t width, const ForwardVectors&);
  void (*load_vectors)(const BackwardSpec&, const BackwardVectors&);
  void (*store_sums)(const BackwardSpec&, const Part*, int count, int64_t width, float* sums);
  void (*finish_gradients)(const BackwardSpec&, const Part*, int count, int64_t width, const BackwardVectors&);
};

#define KERNELS "batch_norm_kernels.h"
#include "each_isa.h"

template <class Spec, int kPartVectors, int kSharedVectors>
class NormBase : public Operation {
 public:
  NormBase(const Spec& spec, const thread_pool::Settings& settings) : s_(spec), width_(padded(spec.channels)) {
    check_isa(has_bf16());
    constexpr double kFlopsPerElement = 32;  // floating point operations that take as long as normalizing one
    threads_ = settings.threads_for(kFlopsPerElement * static_cast<double>(s_.rows) * static_cast<double>(s_.channels));
    const auto parts = s_.passes == Passes::kSecond ? static_cast<size_t>(s_.devices) : static_cast<size_t>(threads_);
    scratch_size_ = parts * aligned(kPartVectors * vector()) + kSharedVectors * aligned(vector());
  }

  std::string name() const override { return "two passes:" + isa_name(has_bf16()); }

 protected:
  size_t vector() const { return static_cast<size_t>(width_) * sizeof(float); }
  float* take(Scratch& scratch) const { return reinterpret_cast<float*>(scratch.take(vector())); }

  // The sums of all rows: measure(begin, end, vectors) for each thread's part of them.
  template <class Measure>
  std::vector<Part> parts(Scratch& scratch, const Measure& measure) const {
    std::vector<float*> memory(static_cast<size_t>(threads_));
    for (auto& each : memory) each = reinterpret_cast<float*>(scratch.take(kPartVectors * vector()));
    std::vector<Part> found(memory.size());
    thread_pool::parallel_for(threads_, threads_, [&](int64_t first, int64_t last) {
      for (int64_t thread = first; thread < last; thread++) {
        const int64_t begin = s_.rows * thread / threads_, end = s_.rows * (thread + 1) / threads_;
        const auto i = static_cast<size_t>(thread);
        found[i] = {end - begin, memory[i]};
        measure(begin, end, memory[i]);
      }
    });
    return found;
  }

  bool has_bf16() const { return s_.x_type == dt::bf16 || s_.y_type == dt::bf16; }

  Spec s_;
  int64_t width_;  // of padded vectors
  const Kernels& kernels_ = for_this_cpu(avx2::kKernels, avx512::kKernels);
};

class BatchNorm final : public NormBase<ForwardSpec, 3, 3> {
 public:
  BatchNorm(const ForwardSpec& spec, const thread_pool::Settings& settings) : NormBase(spec, settings) {
    operand_bytes_.push_back(s_.array(s_.x_type));
    if (s_.passes == Passes::kFirst) {
      operand_bytes_.push_back(2 * s_.vector());
      return;
    }
    if (s_.passes == Passes::kSecond) operand_bytes_.push_back(static_cast<size_t>(2 * s_.devices) * s_.vector());
    operand_bytes_.insert(operand_bytes_.end(), static_cast<size_t>(2 + s_.has_gamma + s_.has_beta), s_.vector());
    if (s_.has_residual) operand_bytes_.push_back(s_.array(s_.y_type));
    operand_bytes_.insert(operand_bytes_.end(), {s_.array(s_.y_type), s_.vector(), s_.vector(), 2 * s_.vector()});
  }

  void run(void* const* operands, Scratch& scratch) const override {
    const auto next = [&] { return *operands++; };
    const auto next_vector = [&] { return static_cast<float*>(next()); };
    const void* x = next();
    const float* others = s_.passes == Passes::kSecond ? next_vector() : nullptr;
    const auto found = others ? parts_of(others, scratch) : parts(scratch, [&](int64_t begin, int64_t end, float* vectors) {
      kernels_.measure(s_)(x, begin, end, s_.channels, vectors);
    });
    const auto count = static_cast<int>(found.size());
    if (s_.passes == Passes::kFirst) return kernels_.store_statistics(s_, found.data(), count, width_, next_vector());
    ForwardVectors at{};
    at.gamma = s_.has_gamma ? next_vector() : nullptr, at.beta = s_.has_beta ? next_vector() : nullptr;
    at.moving_mean = next_vector(), at.moving_variance = next_vector();
    const void* residual = s_.has_residual ? next() : nullptr;
    void* y = next();
    at.new_mean = next_vector(), at.new_variance = next_vector(), at.statistics = next_vector();
    at.mean = take(scratch), at.slope = take(scratch), at.shift = take(scratch);
    kernels_.finish_statistics(s_, found.data(), count, width_, at);
    const auto normalize = kernels_.normalize(s_);
    thread_pool::parallel_for(s_.rows, threads_,
                              [&](int64_t begin, int64_t end) { normalize(s_, begin, end, x, residual, y, at); });
  }

 private:
  // The rows of each device as a part.
  std::vector<Part> parts_of(const float* statistics, Scratch& scratch) const {
    std::vector<Part> found;
    for (int64_t i = 0; i < s_.devices; i++) {
      auto* vectors = reinterpret_cast<float*>(scratch.take(3 * vector()));
      kernels_.load_part(s_, statistics + 2 * i * s_.channels, width_, vectors);
      found.push_back({s_.rows, vectors});
    }
    return found;
  }
};

class BatchNormGrad final : public NormBase<BackwardSpec, 2, 5> {
 public:
  BatchNormGrad(const BackwardSpec& spec, const thread_pool::Settings& settings) : NormBase(spec, settings) {
    operand_bytes_.push_back(s_.array(s_.x_type));
    operand_bytes_.insert(operand_bytes_.end(), static_cast<size_t>(s_.has_gamma + s_.has_beta), s_.vector());
    operand_bytes_.insert(operand_bytes_.end(), s_.passes == Passes::kSecond ? 2 : 1, 2 * s_.vector());
    operand_bytes_.insert(operand_bytes_.end(), static_cast<size_t>(s_.has_y + s_.gradients), s_.array(s_.y_type));
    if (s_.passes != Passes::kFirst) operand_bytes_.push_back(s_.array(s_.x_type));
    if (s_.keeps) operand_bytes_.push_back(s_.array(s_.y_type));
    operand_bytes_.push_back(2 * s_.vector());
  }

  void run(void* const* operands, Scratch& scratch) const override {
    const auto next = [&] { return *operands++; };
    const auto next_vector = [&] { return static_cast<float*>(next()); };
    BackwardArrays arrays{};
    BackwardVectors at{};
    arrays.x = next();
    at.gamma = s_.has_gamma ? next_vector() : nullptr, at.beta = s_.has_beta ? next_vector() : nullptr;
    at.statistics = next_vector();
    const float* others = s_.passes == Passes::kSecond ? next_vector() : nullptr;
    arrays.y = s_.has_y ? next() : nullptr;
    arrays.dy = next(), arrays.more = s_.gradients == 2 ? next() : nullptr;
    arrays.dx = s_.passes == Passes::kFirst ? nullptr : next();
    arrays.kept = s_.keeps ? next() : nullptr;
    at.results = next_vector();
    for (float** each : {&at.mean, &at.slope, &at.shift, &at.share, &at.tilt}) *each = take(scratch);
    kernels_.load_vectors(s_, at);
    const auto pass = kernels_.differentiate(s_);
    const auto found =
        others ? part_of(others, scratch)
               : parts(scratch, [&](int64_t begin, int64_t end, float* vectors) { pass(s_, begin, end, arrays, at, vectors); });
    const auto count = static_cast<int>(found.size());
    if (s_.passes == Passes::kFirst) return kernels_.store_sums(s_, found.data(), count, width_, at.results);
    kernels_.finish_gradients(s_, found.data(), count, width_, at);
    thread_pool::parallel_for(s_.rows, threads_, [&](int64_t begin, int64_t end) { pass(s_, begin, end, arrays, at, nullptr); });
  }

 private:
  // The rows of all devices as one part.
  std::vector<Part> part_of(const float* sums, Scratch& scratch) const {
    auto* vectors = reinterpret_cast<float*>(scratch.take(2 * vector()));
    for (int64_t i = 0; i < 2; i++) std::copy_n(sums + i * s_.channels, s_.channels, vectors + i * width_);
    return {{s_.all_rows(), vectors}};
  }
};

}  // namespace

std::unique_ptr<Operation> make_batch_norm(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<BatchNorm>(ForwardSpec(reader), settings);
}

std::unique_ptr<Operation> make_batch_norm_grad(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<BatchNormGrad>(BackwardSpec(reader), settings);
}

}  // namespace native
