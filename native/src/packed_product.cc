// A convolution is the product of the matrix of all windows, each a row, and the weights. Windows are written out, unless each is a pixel and
// all pixels have one.

#include "packed_product.h"

#include <cstring>

#include "packed_gemm.h"

namespace native {

namespace {

GemmShape shape_of(const ProductSpec& s) {
  return {{dt::f32, {dt::f32, dt::f32, dt::f32}}, 1, s.rows(), s.channels, s.depth(), false, s.weights_are_transposed()};
}

class PackedProduct final : public Operation {
 public:
  PackedProduct(const ProductSpec& s, const thread_pool::Settings& settings)
      : spec_(s), windows_(s.windows()), gemm_(shape_of(s), settings.threads_for(s.flops()), true) {
    threads_ = settings.threads_for(s.flops());
    if (!s.is_plain()) matrix_bytes_ = static_cast<size_t>(s.rows() * s.depth()) * sizeof(float);
    scratch_size_ = aligned(matrix_bytes_) + gemm_.scratch_size();
    operand_bytes_ = s.operand_bytes(gemm_.packed_size());
  }

  std::string name() const override { return gemm_.name(); }

  void run(void* const* operands, Scratch& scratch) const override {
    const auto array = [&](int i) { return static_cast<const float*>(operands[i]); };
    const float* data = matrix_bytes_ > 0 ? windows_of(array(0), reinterpret_cast<float*>(scratch.take(matrix_bytes_))) : array(0);
    gemm_.run(data, array(1), Epilogue(spec_, operands), scratch);
  }

 private:
  const float* windows_of(const float* data, float* matrix) const {
    const int64_t channels = spec_.input[1], depth = spec_.depth();
    thread_pool::parallel_for(spec_.rows(), threads_, [&](int64_t begin, int64_t end) {
      for (int64_t pixel = begin; pixel < end; pixel++) {
        const Window window(windows_, pixel);
        float* row = matrix + pixel * depth;
        if (!window.is_whole()) std::fill_n(row, depth, 0.0f);
        window.for_rows([&](int64_t at, int64_t tap, int64_t count) {
          for (int64_t i = 0; i < count; i++) {
            const float* from = data + (at + i * windows_.dilations[2]) * channels;
            std::memcpy(row + (tap + i) * channels, from, static_cast<size_t>(channels) * sizeof(float));
          }
        });
      }
    });
    return matrix;
  }

  ProductSpec spec_;
  Windows windows_;
  PackedGemm gemm_;
  size_t matrix_bytes_ = 0;  // of all windows, where the data are not this matrix
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

// oneDNN's are about as fast for many rows, and faster where many windows would have to be written out. They add no residual to products of
// matrices.
bool is_for_packed_gemm(const ProductSpec& s) {
  constexpr int64_t kMostRows = 512, kMostWindows = 64;
  if (isa() != Isa::kAvx2 || !s.is_float32() || s.groups > 1) return false;
  return s.rows() <= (s.depth() == s.input[1] ? kMostRows : kMostWindows) || (s.has_residual && !s.is_conv);
}

std::unique_ptr<Operation> make_packed_product(const ProductSpec& spec, const thread_pool::Settings& settings) {
  return std::make_unique<PackedProduct>(spec, settings);
}

std::unique_ptr<Operation> make_packed_product_pack(const ProductSpec& spec) { return std::make_unique<PackedProductPack>(spec); }

}  // namespace native
