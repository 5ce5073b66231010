// Update rules of optimizers: one pass over variables, their state and their gradients, where XLA, whose loops have one result
// each, makes two or three. In place where a result's address is that of its operand.
//
// The operands: scalars (the rate, see `UpdateSpec`), then for each variable its value, its slots and its gradient. The results:
// for each variable the value and the slots. The spec is written by oneflow/compiler/fused_update.py.
//
// The same for several devices, which have equal values and slots: the gradient is the sum of theirs, and all get the results.
// Operands and results are then those of the first device, of the second, and so on.
//
// The same for one variable whose gradient is a product: some rows of it are computed and used up before the next ones, so that it never
// leaves the caches. The operands have both matrices in the gradient's place; the spec begins with m, n, k, and what is transposed.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "operation.h"
#include "packed_gemm.h"
#include "vectors.h"

namespace native {

namespace {

constexpr int64_t kChunk = 1 << 15;  // elements that a thread takes at a time
constexpr double kStreamBytes = 1 << 25;  // of results, from which on copies for further devices are written past the caches
constexpr int kMaxFactors = 8, kMaxDevices = 64;
constexpr int64_t kMaxVariables = 1 << 16, kMaxElements = int64_t{1} << 40;

enum class Rule { kMomentum = 0, kAdam = 1, kSgd = 2 };

// x is a variable, g its gradient. First g <- (g * before... + l1 * sign(x) + l2 * x) * after..., then
//   momentum:  m <- beta1 * m - rate * g;  x <- x + m - decay * x
//   SGD:       x <- x - rate * g - decay * x
//   Adam:      m <- beta1 * m + gain1 * g;  v <- beta2 * v + gain2 * g * g;  x <- x - rate * m / (root * sqrt(v) + epsilon) - decay * x
// The terms with l1, l2 and decay are left out where the spec lacks them, so that they make no NaN of an infinity.
struct UpdateSpec {
  explicit UpdateSpec(SpecReader reader) {
    rule = static_cast<Rule>(reader.next(0, 2));
    decays = reader.next_bool();
    may_skip = reader.next_bool();
    before = static_cast<int>(reader.next(0, kMaxFactors)), after = static_cast<int>(reader.next(0, kMaxFactors));
    l1 = reader.next_float(), l2 = reader.next_float();
    if (rule != Rule::kSgd) beta1 = reader.next_float();
    if (rule == Rule::kAdam) {
      gain1 = reader.next_float(), beta2 = reader.next_float(), gain2 = reader.next_float(), epsilon = reader.next_float();
    }
    const int64_t count = reader.next(1, kMaxVariables);
    for (int64_t i = 0; i < count; i++) sizes.push_back(reader.next(0, kMaxElements));
    reader.finish();
  }

  int slots() const { return rule == Rule::kAdam ? 2 : rule == Rule::kMomentum ? 1 : 0; }
  // The bytes of the operands before the arrays: scalars of float32, then whether to skip.
  std::vector<size_t> scalar_bytes() const {
    std::vector<size_t> found(static_cast<size_t>(1 + (rule == Rule::kAdam) + decays + before + after), sizeof(float));
    if (may_skip) found.push_back(1);
    return found;
  }

  Rule rule;
  bool decays, may_skip;
  int before, after;
  float l1, l2, beta1 = 0, gain1 = 0, beta2 = 0, gain2 = 0, epsilon = 0;
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

// How one device's results are written to the others' arrays.
enum class Copies { kNone, kCached, kStreamed };

// The arrays of the devices after the first one, from the element on where a chunk begins: gradients, and results as in `Arrays`.
struct Others {
  int count = 0;
  const float* g[kMaxDevices - 1];
  float* results[3][kMaxDevices - 1];
};

// Updates so many elements.
using Run = void(const UpdateSpec&, const Scalars&, const Arrays&, const Others&, int64_t count);
using Choose = Run*(Rule, Copies);

#define KERNELS "update_kernels.h"
#include "each_isa.h"

// What a skipped update leaves.
void keep(const void* value, void* result, size_t bytes) {
  if (value != result) std::memcpy(result, value, bytes);
}

class Update final : public Operation {
 public:
  Update(UpdateSpec spec, int devices, const thread_pool::Settings& settings) : spec_(std::move(spec)), devices_(devices) {
    check_isa(false);
    std::vector<size_t> sizes = spec_.scalar_bytes();
    first_ = sizes.size();
    double elements = 0;
    for (size_t i = 0; i < spec_.sizes.size(); i++) {
      sizes.insert(sizes.end(), static_cast<size_t>(spec_.slots() + 2), bytes(i));
      for (int64_t begin = 0; begin < spec_.sizes[i]; begin += kChunk) {
        chunks_.push_back({i, begin, std::min(kChunk, spec_.sizes[i] - begin)});
      }
      elements += static_cast<double>(spec_.sizes[i]);
    }
    for (size_t i = 0; i < spec_.sizes.size(); i++) {
      sizes.insert(sizes.end(), static_cast<size_t>(spec_.slots() + 1), bytes(i));
    }
    per_device_ = sizes.size();
    for (int i = 0; i < devices; i++) operand_bytes_.insert(operand_bytes_.end(), sizes.begin(), sizes.end());
    const bool streams = elements * sizeof(float) * (spec_.slots() + 1) * devices >= kStreamBytes;
    const Copies copies = devices == 1 ? Copies::kNone : streams ? Copies::kStreamed : Copies::kCached;
    run_ = for_this_cpu<Choose*>(avx2::choose, avx512::choose)(spec_.rule, copies);
    constexpr double kFlopsPerElement = 32;  // floating point operations that take as long as updating one
    threads_ = settings.threads_for(kFlopsPerElement * elements);
  }

  std::string name() const override { return "one pass:" + isa_name(false); }

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

  // A variable's operands and results on one device, from some element on.
  struct Part {
    float *in[4], *out[3];
  };

  size_t bytes(size_t variable) const { return static_cast<size_t>(spec_.sizes[variable]) * sizeof(float); }

  Part part(void* const* operands, int device, size_t variable, int64_t begin) const {
    const auto slots = static_cast<size_t>(spec_.slots());
    void* const* in = operands + static_cast<size_t>(device) * per_device_ + first_ + variable * (slots + 2);
    void* const* out = operands + static_cast<size_t>(device) * per_device_ + first_ + spec_.sizes.size() * (slots + 2) +
                       variable * (slots + 1);
    Part found{};
    for (size_t i = 0; i < slots + 2; i++) found.in[i] = static_cast<float*>(in[i]) + begin;
    for (size_t i = 0; i < slots + 1; i++) found.out[i] = static_cast<float*>(out[i]) + begin;
    return found;
  }

  void run_chunk(void* const* operands, const Scalars& scalars, const Chunk& chunk) const {
    if (scalars.skips) {
      for (int device = 0; device < devices_; device++) {
        const Part part = this->part(operands, device, chunk.variable, chunk.begin);
        for (int i = 0; i <= spec_.slots(); i++) keep(part.in[i], part.out[i], static_cast<size_t>(chunk.count) * sizeof(float));
      }
    } else {
      run_rule(operands, scalars, chunk);
    }
  }

  // In one pass for all devices.
  void run_rule(void* const* operands, const Scalars& scalars, const Chunk& chunk) const {
    const auto slots = static_cast<size_t>(spec_.slots());
    const auto [in, out] = part(operands, 0, chunk.variable, chunk.begin);
    Others others;
    for (; others.count < devices_ - 1; others.count++) {
      const Part other = part(operands, others.count + 1, chunk.variable, chunk.begin);
      others.g[others.count] = other.in[slots + 1];
      for (size_t i = 0; i <= slots; i++) others.results[i][others.count] = other.out[i];
    }
    const Arrays arrays{in[0], slots > 0 ? in[1] : nullptr, slots > 1 ? in[2] : nullptr, in[slots + 1], out[0], out[1], out[2]};
    run_(spec_, scalars, arrays, others, chunk.count);
  }

  UpdateSpec spec_;
  int devices_;
  size_t first_, per_device_;  // the operand with the first variable; the operands and results of a device
  Run* run_;
  std::vector<Chunk> chunks_;
};

class ProductUpdate final : public Operation {
 public:
  ProductUpdate(const GemmShape& shape, UpdateSpec spec, const thread_pool::Settings& settings)
      : shape_(shape), spec_(std::move(spec)), product_(shape, threads_ = settings.threads_for(shape.flops()), true) {
    check_isa(false);
    if (!PackedGemm::can(shape)) throw std::invalid_argument("no kernel for this product");
    if (spec_.sizes.size() != 1 || spec_.sizes[0] != shape.m * shape.n) throw std::invalid_argument("the gradient has another size");
    run_ = for_this_cpu<Choose*>(avx2::choose, avx512::choose)(spec_.rule, Copies::kNone);
    rows_ = std::min(shape.m, std::max(kLeastRows, kBlock / shape.n / kLeastRows * kLeastRows));
    operand_bytes_ = spec_.scalar_bytes();
    first_ = operand_bytes_.size();
    const auto array = [](int64_t a, int64_t b) { return static_cast<size_t>(a * b) * sizeof(float); };
    const auto slots = static_cast<size_t>(spec_.slots());
    operand_bytes_.insert(operand_bytes_.end(), slots + 1, array(shape.m, shape.n));
    operand_bytes_.push_back(array(shape.m, shape.k));
    operand_bytes_.push_back(array(shape.k, shape.n));
    operand_bytes_.insert(operand_bytes_.end(), slots + 1, array(shape.m, shape.n));
    block_bytes_ = aligned(array(rows_, shape.n));
    scratch_size_ = aligned(product_.packed_size()) + static_cast<size_t>(threads_) * thread_bytes();
  }

  std::string name() const override { return "one pass with its product:" + isa_name(false); }

  void run(void* const* operands, Scratch& scratch) const override {
    const Scalars scalars(spec_, operands);
    const auto slots = static_cast<size_t>(spec_.slots());
    void* const* in = operands + first_;
    void* const* out = in + slots + 3;
    if (scalars.skips) {
      for (size_t i = 0; i <= slots; i++) keep(in[i], out[i], operand_bytes_[first_ + i]);
      return;
    }
    const auto *a = static_cast<const float*>(in[slots + 1]), *b = static_cast<const float*>(in[slots + 2]);
    auto* packed = reinterpret_cast<float*>(scratch.take(product_.packed_size()));
    char* of_threads = scratch.take(static_cast<size_t>(threads_) * thread_bytes());
    const int64_t tile = product_.panel_columns(), tiles = (shape_.n + tile - 1) / tile;
    thread_pool::parallel_for(tiles, threads_, [&](int64_t begin, int64_t end) {
      if (begin < end) product_.pack(b, begin * tile, std::min(end * tile, shape_.n), packed);
    });
    std::atomic<int64_t> next{0};
    thread_pool::on_threads(threads_, [&](int64_t thread) {
      char* mine = of_threads + static_cast<size_t>(thread) * thread_bytes();
      auto* gradient = reinterpret_cast<float*>(mine);
      for (int64_t row; (row = next.fetch_add(rows_)) < shape_.m;) {
        const int64_t last = std::min(row + rows_, shape_.m), at = row * shape_.n;
        product_.run_rows(a, packed, row, last, gradient, reinterpret_cast<float*>(mine + block_bytes_));
        const auto of = [&](void* const* arrays, size_t i) { return i <= slots ? static_cast<float*>(arrays[i]) + at : nullptr; };
        const Arrays arrays{of(in, 0), of(in, 1), of(in, 2), gradient, of(out, 0), of(out, 1), of(out, 2)};
        run_(spec_, scalars, arrays, Others(), (last - row) * shape_.n);
      }
    });
  }

 private:
  static constexpr int64_t kLeastRows = 24, kBlock = 1 << 17;  // rows and numbers of a block of the gradient: the second cache has room

  size_t thread_bytes() const { return block_bytes_ + aligned(product_.row_scratch_size()); }

  GemmShape shape_;
  UpdateSpec spec_;
  PackedGemm product_;
  int64_t rows_;  // of a block
  size_t first_, block_bytes_;
  Run* run_;
};

}  // namespace

std::unique_ptr<Operation> make_product_update(SpecReader reader, thread_pool::Settings settings, bool) {
  GemmShape shape{{dt::f32, {dt::f32, dt::f32, dt::f32}}, 1};
  shape.m = reader.next(1, kMaxElements), shape.n = reader.next(1, kMaxElements), shape.k = reader.next(1, kMaxElements);
  shape.a_transposed = reader.next_bool(), shape.b_transposed = reader.next_bool();
  if (shape.m > kMaxElements / shape.n) throw std::invalid_argument("a value of the spec is out of range");
  return std::make_unique<ProductUpdate>(shape, UpdateSpec(reader), settings);
}

std::unique_ptr<Operation> make_update(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<Update>(UpdateSpec(reader), 1, settings);
}

std::unique_ptr<Operation> make_summed_update(SpecReader reader, thread_pool::Settings settings, bool) {
  const auto devices = static_cast<int>(reader.next(2, kMaxDevices));
  reader.next(0);  // which of its program's calls that devices make together it is (see calls.cc)
  return std::make_unique<Update>(UpdateSpec(reader), devices, settings);
}

}  // namespace native
