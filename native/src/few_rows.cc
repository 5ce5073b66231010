// Weights are packed into panels: four vectors of columns side by side, which a product reads from front to back into sums that stay in
// registers. Rows of data that registers have no room for at once are taken in blocks, one after another for some rows of the panel, which
// stay in the first cache meanwhile. What comes next is asked for: while a block is multiplied by what the cache has, nothing else would be
// read from memory. Missing columns of the last panel are zeros.

#include "few_rows.h"

#include <algorithm>
#include <utility>

#include "vectors.h"

namespace native {

namespace {

constexpr int64_t kMaxRows = 8, kMaxSize = int64_t{1} << 24;  // of columns, and of what is summed over
constexpr int64_t kVectors = 4;                               // of a panel
constexpr int64_t kSharedDepth = 32, kAhead = 64;             // rows of a panel: that blocks share, and that a single one looks ahead

int64_t panel_width() { return kVectors * lanes(); }
int64_t panels_of(const ProductSpec& s) { return (s.channels + panel_width() - 1) / panel_width(); }
size_t packed_bytes(const ProductSpec& s) { return static_cast<size_t>(panels_of(s) * panel_width() * s.depth()) * sizeof(float); }

struct Call {
  const float *data, *weights;
  int64_t depth;
  Epilogue after;
};

// `multiply[i]`: i + 1 rows of the result, all that there are, in the columns of one panel.
struct Kernels {
  void (*multiply[kMaxRows])(const Call&, int64_t panel);
};

#define KERNELS "few_rows_kernels.h"
#include "each_isa.h"

class FewRows final : public Operation {
 public:
  FewRows(const ProductSpec& s, const thread_pool::Settings& settings) : spec_(s) {
    const size_t packed = packed_bytes(s);
    threads_ = static_cast<int>(std::min<int64_t>(settings.threads_for(s.flops(), packed), panels_of(s)));
    operand_bytes_ = s.operand_bytes(packed);
  }

  std::string name() const override { return "few rows"; }

  void run(void* const* operands, Scratch&) const override {
    const auto array = [&](int i) { return static_cast<const float*>(operands[i]); };
    const Call call{array(0), array(1), spec_.depth(), {spec_, operands}};
    const auto multiply = for_this_cpu(avx2::kKernels, avx512::kKernels).multiply[spec_.rows() - 1];
    thread_pool::parallel_for(panels_of(spec_), threads_, [&](int64_t begin, int64_t end) {
      for (int64_t panel = begin; panel < end; panel++) multiply(call, panel);
    });
  }

 private:
  ProductSpec spec_;
};

class FewRowsPack final : public Operation {
 public:
  explicit FewRowsPack(const ProductSpec& s) : spec_(s) {
    operand_bytes_ = {element_count(s.weights) * sizeof(float), packed_bytes(s)};
  }

  std::string name() const override { return std::to_string(packed_bytes(spec_)); }

  void run(void* const* operands, Scratch&) const override {
    const auto* weights = static_cast<const float*>(operands[0]);
    auto* packed = static_cast<float*>(operands[1]);
    const int64_t depth = spec_.depth(), columns = spec_.channels;
    const int64_t row = spec_.weights_are_transposed() ? 1 : columns, column = spec_.weights_are_transposed() ? depth : 1;
    const int64_t width = panel_width();
    for (int64_t first = 0; first < columns; first += width) {
      const int64_t present = std::min(width, columns - first);
      for (int64_t i = 0; i < depth; i++, packed += width) {
        const float* from = weights + i * row + first * column;
        for (int64_t j = 0; j < present; j++) packed[j] = from[j * column];
        std::fill(packed + present, packed + width, 0.0f);
      }
    }
  }

 private:
  ProductSpec spec_;
};

}  // namespace

bool has_few_rows(const ProductSpec& s) {
  const bool fits = s.is_plain() && s.rows() <= kMaxRows && s.depth() <= kMaxSize && s.channels <= kMaxSize;
  return runs_kernels(false) && s.is_float32() && fits;
}

std::unique_ptr<Operation> make_few_rows(const ProductSpec& spec, const thread_pool::Settings& settings) {
  return std::make_unique<FewRows>(spec, settings);
}

std::unique_ptr<Operation> make_few_rows_pack(const ProductSpec& spec) { return std::make_unique<FewRowsPack>(spec); }

}  // namespace native
