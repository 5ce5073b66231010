// Weights are packed into panels: 64 columns side by side, which a product reads from front to back into sums that stay in registers.
// More than 6 rows are taken in blocks, which find the panel in a cache. Missing columns of the last panel are zeros.

#include "few_rows.h"

#include <immintrin.h>

#include <algorithm>

#include "epilogue.h"

namespace native {

namespace {

constexpr int64_t kMaxRows = 8, kMaxSize = int64_t{1} << 24;  // of columns, and of what is summed over
constexpr int64_t kVectors = 4, kPanel = 16 * kVectors;  // columns of a panel
constexpr int64_t kBlock = 6;                            // rows of a block: 24 sums in registers
constexpr size_t kParallelBytes = 1 << 20;               // of weights, from which on all threads read them

int64_t panels_of(const ProductSpec& s) { return (s.channels + kPanel - 1) / kPanel; }
size_t packed_bytes(const ProductSpec& s) { return static_cast<size_t>(panels_of(s) * kPanel * s.input[1]) * sizeof(float); }

// What is computed of the sums, and where.
struct Call {
  const ProductSpec& spec;
  const float *data, *weights, *offset, *residual;
  float* result;
};

// --- what follows is compiled for AVX-512; it is called only where the CPU has that

#include "avx512_begin.h"

// A block of rows of the result, in the columns of one panel.
template <int kRows>
void multiply_block(const Call& call, int64_t row, int64_t panel) {
  const int64_t depth = call.spec.input[1], columns = call.spec.channels;
  const float *data = call.data + row * depth, *weights = call.weights + panel * kPanel * depth;
  __m512 sums[kRows][kVectors];
  for (auto& of_row : sums) {
    for (auto& sum : of_row) sum = _mm512_setzero_ps();
  }
  for (int64_t i = 0; i < depth; i++, weights += kPanel) {
    __m512 w[kVectors];
    for (int v = 0; v < kVectors; v++) w[v] = _mm512_loadu_ps(weights + 16 * v);
    for (int r = 0; r < kRows; r++) {
      const __m512 x = _mm512_set1_ps(data[r * depth + i]);
      for (int v = 0; v < kVectors; v++) sums[r][v] = _mm512_fmadd_ps(x, w[v], sums[r][v]);
    }
  }
  for (int v = 0; v < kVectors; v++) {
    const int64_t column = panel * kPanel + 16 * v;
    if (column >= columns) return;
    const auto present = static_cast<__mmask16>(columns - column >= 16 ? 0xffff : (1u << (columns - column)) - 1);
    const __m512 offset = _mm512_maskz_loadu_ps(present, call.offset + column);
    for (int r = 0; r < kRows; r++) {
      const int64_t at = (row + r) * columns + column;
      __m512 x = _mm512_add_ps(sums[r][v], offset);
      if (call.residual) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(present, call.residual + at));
      _mm512_mask_storeu_ps(call.result + at, present, activated(call.spec, x));
    }
  }
}

#include "avx512_end.h"

// --- for any CPU again

using Multiply = void(const Call&, int64_t row, int64_t panel);
constexpr Multiply* kMultiply[kBlock] = {multiply_block<1>, multiply_block<2>, multiply_block<3>,
                                         multiply_block<4>, multiply_block<5>, multiply_block<6>};

void multiply(const Call& call, int64_t begin, int64_t end) {  // of these panels
  const int64_t rows = call.spec.input[0], blocks = (rows + kBlock - 1) / kBlock;
  for (; begin < end; begin++) {
    for (int64_t i = 0; i < blocks; i++) {
      const int64_t first = rows * i / blocks, next = rows * (i + 1) / blocks;
      kMultiply[next - first - 1](call, first, begin);
    }
  }
}

class FewRows final : public Operation {
 public:
  FewRows(const ProductSpec& s, const thread_pool::Settings& settings) : spec_(s) {
    const size_t count = element_count(s.output) * sizeof(float), packed = packed_bytes(s);
    const int most = settings.threads_for(std::max(s.flops(), packed < kParallelBytes ? 0 : settings.min_parallel_work));
    threads_ = static_cast<int>(std::min<int64_t>(most, panels_of(s)));
    operand_bytes_ = {element_count(s.input) * sizeof(float), packed, static_cast<size_t>(s.channels) * sizeof(float)};
    if (s.has_residual) operand_bytes_.push_back(count);
    operand_bytes_.push_back(count);
  }

  std::string name() const override { return "few rows"; }

  void run(void* const* operands, Scratch&) const override {
    const auto array = [&](int i) { return static_cast<float*>(operands[i]); };
    const Call call{spec_, array(0), array(1), array(2), spec_.has_residual ? array(3) : nullptr, array(3 + spec_.has_residual)};
    if (threads_ == 1) return multiply(call, 0, panels_of(spec_));
    thread_pool::parallel_for(panels_of(spec_), threads_, [&](int64_t begin, int64_t end) { multiply(call, begin, end); });
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
    const int64_t depth = spec_.input[1], columns = spec_.channels;
    const int64_t row = spec_.weight_strides[0], column = spec_.weight_strides[1];
    for (int64_t first = 0; first < columns; first += kPanel) {
      const int64_t present = std::min(kPanel, columns - first);
      for (int64_t i = 0; i < depth; i++, packed += kPanel) {
        const float* from = weights + i * row + first * column;
        for (int64_t j = 0; j < present; j++) packed[j] = from[j * column];
        std::fill(packed + present, packed + kPanel, 0.0f);
      }
    }
  }

 private:
  ProductSpec spec_;
};

}  // namespace

bool has_few_rows(const ProductSpec& s) {
  static const bool is_supported = has_avx512(false);
  const bool is_float32 = s.input_type == dt::f32 && s.output_type == dt::f32;
  const bool fits = !s.is_conv && s.input[0] <= kMaxRows && s.input[1] <= kMaxSize && s.channels <= kMaxSize;
  return is_supported && is_float32 && fits;
}

std::unique_ptr<Operation> make_few_rows(const ProductSpec& spec, const thread_pool::Settings& settings) {
  return std::make_unique<FewRows>(spec, settings);
}

std::unique_ptr<Operation> make_few_rows_pack(const ProductSpec& spec) { return std::make_unique<FewRowsPack>(spec); }

}  // namespace native
