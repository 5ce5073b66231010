// Group and instance normalization of channels-last arrays: y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with the
// mean and the biased variance of each sample's groups of channels, and its gradients. Where channels come first, a group is a
// row of layer_norm.cc.
//
//   group_norm       x, [gamma, beta] -> y, statistics
//   group_norm_grad  x, statistics, [gamma], gradient to y -> gradient to x, [gradients to gamma, then to beta]
// Statistics are, for each sample, the mean of each channel's group and then 1 / sqrt(variance + epsilon), as padded vectors.
//
// x, y and their gradients have one dtype, everything else is float32. The gradient to x may overwrite that to y. The spec is
// written by oneflow/ops/_native_norm.py.
//
// A sample, a matrix of pixels and channels, is read twice: for its sums, then for the result. A thread takes samples one by one,
// so that they are in its cache the second time; few samples are divided among the threads.
#include <algorithm>
#include <cmath>
#include <limits>

#include "channels.h"
#include "operation.h"
#include "vectors.h"

namespace native {

namespace {

struct GroupNormSpec {
  explicit GroupNormSpec(SpecReader reader) {
    constexpr int64_t kMax = int64_t{1} << 40;
    type = reader.next_dtype();
    samples = reader.next(1, kMax), pixels = reader.next(1, kMax), channels = reader.next(1, int64_t{1} << 24);
    if (static_cast<double>(samples) * static_cast<double>(pixels) * static_cast<double>(channels) > static_cast<double>(kMax)) {
      throw std::invalid_argument("the array is too large");
    }
    groups = reader.next(1, channels);
    if (channels % groups != 0) throw std::invalid_argument("the channels are no whole groups");
    is_affine = reader.next_bool();
    epsilon = reader.next_float();
    reader.finish();
  }

  int64_t size() const { return channels / groups; }  // channels of a group
  int64_t width() const { return padded(channels); }
  size_t bytes() const { return static_cast<size_t>(samples * pixels * channels) * bytes_of(type); }
  size_t vector() const { return static_cast<size_t>(channels) * sizeof(float); }
  size_t statistics() const { return static_cast<size_t>(samples * 2 * width()) * sizeof(float); }

  dt type;
  int64_t samples, pixels, channels, groups;
  bool is_affine;
  float epsilon;
};

struct Forward {
  const void* x;
  const float *gamma, *beta;  // null where there is none
  void* y;
  float* statistics;
};

struct Backward {
  const void* x;
  const float *statistics, *gamma;  // gamma: null where there is none
  const void* dy;
  void* dx;
};

constexpr int kVectors = 3;  // the most that a part has, and that `applied` reads

// `measure` finds the sums of some pixels of a sample, `finish` makes the vectors of them that `apply` computes the result with.
struct Kernels {
  void (*measure)(const GroupNormSpec&, const Forward&, int64_t sample, int64_t begin, int64_t end, float* vectors);
  void (*finish)(const GroupNormSpec&, const Forward&, int64_t sample, const Part*, int count, float* applied);
  void (*apply)(const GroupNormSpec&, const Forward&, int64_t sample, int64_t begin, int64_t end, const float* applied);
  void (*measure_gradients)(const GroupNormSpec&, const Backward&, int64_t sample, int64_t begin, int64_t end, float* vectors);
  // Gradients to gamma, then to beta, are added to `totals`, if that is not null.
  void (*finish_gradients)(const GroupNormSpec&, const Backward&, int64_t sample, const Part*, int count, float* applied,
                           double* totals);
  void (*apply_gradients)(const GroupNormSpec&, const Backward&, int64_t sample, int64_t begin, int64_t end,
                          const float* applied);
};

#define KERNELS "group_norm_kernels.h"
#include "each_isa.h"

class GroupNormBase : public Operation {
 public:
  GroupNormBase(const GroupNormSpec& spec, const thread_pool::Settings& settings, double flops_per_element) : s_(spec) {
    check_isa(spec.type != dt::f32);
    threads_ = settings.threads_for(flops_per_element * static_cast<double>(spec.samples) * static_cast<double>(spec.pixels) *
                                    static_cast<double>(spec.channels));
    // whole samples leave threads idle where they are few
    pieces_ = s_.samples % threads_ == 0 || s_.samples >= 4 * threads_ ? 1 : std::min<int64_t>(threads_, s_.pixels);
    kernels_ = for_this_cpu(avx2::kernels, avx512::kernels)(spec.type != dt::f32);
    const auto at_once = static_cast<size_t>(pieces_ == 1 ? threads_ : s_.samples);
    scratch_size_ = at_once * static_cast<size_t>(pieces_ + 1) * aligned(kVectors * vector());
  }

  std::string name() const override { return "two passes:" + isa_name(s_.type != dt::f32); }

 protected:
  size_t vector() const { return static_cast<size_t>(s_.width()) * sizeof(float); }

  // For each sample measure(sample, begin, end, vectors) of its pixels, finish(sample, parts, count, applied, thread) and
  // apply(sample, begin, end, applied).
  template <class Measure, class Finish, class Apply>
  void for_samples(Scratch& scratch, const Measure& measure, const Finish& finish, const Apply& apply) const {
    const auto take = [&](int64_t count) {
      std::vector<float*> taken(static_cast<size_t>(count));
      for (auto& each : taken) each = reinterpret_cast<float*>(scratch.take(kVectors * vector()));
      return taken;
    };
    const int64_t at_once = pieces_ == 1 ? threads_ : s_.samples;
    const auto vectors = take(at_once * pieces_), applied = take(at_once);
    const auto share = [&](int64_t thread, int64_t count) { return count * thread / threads_; };
    if (pieces_ == 1) {
      thread_pool::on_threads(threads_, [&](int64_t thread) {
        const auto i = static_cast<size_t>(thread);
        const Part part{s_.pixels, vectors[i]};
        for (int64_t sample = share(thread, s_.samples); sample < share(thread + 1, s_.samples); sample++) {
          measure(sample, 0, s_.pixels, vectors[i]);
          finish(sample, &part, 1, applied[i], thread);
          apply(sample, 0, s_.pixels, applied[i]);
        }
      });
      return;
    }
    const auto begins = [&](int64_t piece) { return s_.pixels * piece / pieces_; };
    std::vector<Part> parts(vectors.size());
    const auto for_pieces = [&](const auto& body) {
      thread_pool::parallel_for(s_.samples * pieces_, threads_, [&](int64_t i, int64_t end) {
        for (; i < end; i++) body(i / pieces_, begins(i % pieces_), begins(i % pieces_ + 1), static_cast<size_t>(i));
      });
    };
    for_pieces([&](int64_t sample, int64_t begin, int64_t end, size_t i) {
      parts[i] = {end - begin, vectors[i]};
      measure(sample, begin, end, vectors[i]);
    });
    thread_pool::on_threads(threads_, [&](int64_t thread) {
      for (int64_t sample = share(thread, s_.samples); sample < share(thread + 1, s_.samples); sample++) {
        finish(sample, &parts[static_cast<size_t>(sample * pieces_)], static_cast<int>(pieces_),
               applied[static_cast<size_t>(sample)], thread);
      }
    });
    for_pieces([&](int64_t sample, int64_t begin, int64_t end, size_t) {
      apply(sample, begin, end, applied[static_cast<size_t>(sample)]);
    });
  }

  GroupNormSpec s_;
  int64_t pieces_;  // of a sample, that threads take
  Kernels kernels_;
};

class GroupNorm final : public GroupNormBase {
 public:
  GroupNorm(const GroupNormSpec& spec, const thread_pool::Settings& settings) : GroupNormBase(spec, settings, 32) {
    operand_bytes_.push_back(s_.bytes());
    if (s_.is_affine) operand_bytes_.insert(operand_bytes_.end(), 2, s_.vector());
    operand_bytes_.insert(operand_bytes_.end(), {s_.bytes(), s_.statistics()});
  }

  void run(void* const* operands, Scratch& scratch) const override {
    Forward at{};
    at.x = *operands++;
    if (s_.is_affine) at.gamma = static_cast<const float*>(*operands++), at.beta = static_cast<const float*>(*operands++);
    at.y = *operands++;
    at.statistics = static_cast<float*>(*operands);
    for_samples(
        scratch,
        [&](int64_t sample, int64_t begin, int64_t end, float* vectors) {
          kernels_.measure(s_, at, sample, begin, end, vectors);
        },
        [&](int64_t sample, const Part* parts, int count, float* applied, int64_t) {
          kernels_.finish(s_, at, sample, parts, count, applied);
        },
        [&](int64_t sample, int64_t begin, int64_t end, const float* applied) {
          kernels_.apply(s_, at, sample, begin, end, applied);
        });
  }
};

class GroupNormGrad final : public GroupNormBase {
 public:
  GroupNormGrad(const GroupNormSpec& spec, const thread_pool::Settings& settings) : GroupNormBase(spec, settings, 64) {
    operand_bytes_ = {s_.bytes(), s_.statistics()};
    if (s_.is_affine) operand_bytes_.push_back(s_.vector());
    operand_bytes_.insert(operand_bytes_.end(), {s_.bytes(), s_.bytes()});
    if (!s_.is_affine) return;
    operand_bytes_.push_back(2 * s_.vector());
    scratch_size_ += static_cast<size_t>(threads_) * aligned(totals() * sizeof(double));
  }

  void run(void* const* operands, Scratch& scratch) const override {
    Backward at{};
    at.x = *operands++;
    at.statistics = static_cast<const float*>(*operands++);
    if (s_.is_affine) at.gamma = static_cast<const float*>(*operands++);
    at.dy = *operands++;
    at.dx = *operands++;
    std::vector<double*> sums(static_cast<size_t>(threads_));
    if (s_.is_affine) {
      for (auto& each : sums) {
        each = reinterpret_cast<double*>(scratch.take(totals() * sizeof(double)));
        std::fill_n(each, totals(), 0.0);
      }
    }
    for_samples(
        scratch,
        [&](int64_t sample, int64_t begin, int64_t end, float* vectors) {
          kernels_.measure_gradients(s_, at, sample, begin, end, vectors);
        },
        [&](int64_t sample, const Part* parts, int count, float* applied, int64_t thread) {
          kernels_.finish_gradients(s_, at, sample, parts, count, applied, sums[static_cast<size_t>(thread)]);
        },
        [&](int64_t sample, int64_t begin, int64_t end, const float* applied) {
          kernels_.apply_gradients(s_, at, sample, begin, end, applied);
        });
    if (!s_.is_affine) return;
    auto* result = static_cast<float*>(*operands);
    for (size_t c = 0; c < totals(); c++) {
      double total = 0;
      for (const double* each : sums) total += each[c];
      result[c] = static_cast<float>(total);
    }
  }

 private:
  size_t totals() const { return static_cast<size_t>(2 * s_.channels); }  // gradients to gamma, then to beta
};

}  // namespace

std::unique_ptr<Operation> make_group_norm(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<GroupNorm>(GroupNormSpec(reader), settings);
}

std::unique_ptr<Operation> make_group_norm_grad(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<GroupNormGrad>(GroupNormSpec(reader), settings);
}

}  // namespace native
