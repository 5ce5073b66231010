#include "packed_product.h"

#include "packed_gemm.h"

namespace native {

namespace {

GemmShape shape_of(const ProductSpec& s) {
  return {{dt::f32, {dt::f32, dt::f32, dt::f32}}, 1, s.rows(), s.channels, s.depth(), false, s.weights_are_transposed()};
}

class PackedProduct final : public Operation {
 public:
  PackedProduct(const ProductSpec& s, const thread_pool::Settings& settings)
      : spec_(s), gemm_(shape_of(s), settings.threads_for(s.flops()), true) {
    threads_ = settings.threads_for(s.flops());
    scratch_size_ = gemm_.scratch_size();
    const size_t count = element_count(s.output) * sizeof(float);
    operand_bytes_ = {element_count(s.input) * sizeof(float), gemm_.packed_size(), static_cast<size_t>(s.channels) * sizeof(float)};
    if (s.has_residual) operand_bytes_.push_back(count);
    operand_bytes_.push_back(count);
  }

  std::string name() const override { return gemm_.name(); }

  void run(void* const* operands, Scratch& scratch) const override {
    const auto array = [&](int i) { return static_cast<float*>(operands[i]); };
    float* residual = spec_.has_residual ? array(3) : nullptr;
    gemm_.run(array(0), array(1), {spec_, array(2), residual, array(3 + spec_.has_residual)}, scratch);
  }

 private:
  ProductSpec spec_;
  PackedGemm gemm_;
};

class PackedProductPack final : public Operation {
 public:
  explicit PackedProductPack(const ProductSpec& s) : gemm_(shape_of(s), 1, true) {
    operand_bytes_ = {element_count(s.weights) * sizeof(float), gemm_.packed_size()};
  }

  std::string name() const override { return std::to_string(gemm_.packed_size()); }

  void run(void* const* operands, Scratch&) const override {
    gemm_.pack(static_cast<const float*>(operands[0]), static_cast<float*>(operands[1]));
  }

 private:
  PackedGemm gemm_;
};

}  // namespace

// oneDNN's are about as fast for many rows, but do not add a residual to products of matrices.
bool is_for_packed_gemm(const ProductSpec& s) {
  constexpr int64_t kMostRows = 384;
  const bool is_float32 = s.input_type == dt::f32 && s.output_type == dt::f32;
  if (isa() != Isa::kAvx2 || !is_float32 || !s.is_plain()) return false;
  return s.rows() <= kMostRows || (s.has_residual && !s.is_conv);
}

std::unique_ptr<Operation> make_packed_product(const ProductSpec& spec, const thread_pool::Settings& settings) {
  return std::make_unique<PackedProduct>(spec, settings);
}

std::unique_ptr<Operation> make_packed_product_pack(const ProductSpec& spec) { return std::make_unique<PackedProductPack>(spec); }

}  // namespace native
