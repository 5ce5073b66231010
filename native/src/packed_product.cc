// A convolution is the product of the matrix of all windows, each a row, and the weights. Windows are written out, unless each is
// a pixel and all pixels have one.

#include "packed_product.h"

#include "window_blocks.h"

namespace native {

namespace {

GemmShape shape_of(const ProductSpec& s, int64_t rows) {
  return {{dt::f32, {dt::f32, dt::f32, dt::f32}}, 1, rows, s.channels, s.depth(), false, s.weights_are_transposed()};
}
GemmShape shape_of(const ProductSpec& s) { return shape_of(s, s.rows()); }

class PackedProduct final : public Operation {
 public:
  PackedProduct(const ProductSpec& s, const thread_pool::Settings& settings)
      : spec_(s), windows_(s.windows(), s.input[1]), gemm_(shape_of(s), settings.threads_for(s.flops()), true) {
    threads_ = settings.threads_for(s.flops());
    if (!s.is_plain()) matrix_bytes_ = static_cast<size_t>(s.rows() * s.depth()) * sizeof(float);
    scratch_size_ = aligned(matrix_bytes_) + gemm_.scratch_size();
    operand_bytes_ = s.operand_bytes(gemm_.packed_size());
  }

  std::string name() const override { return gemm_.name(); }

  void run(void* const* operands, Scratch& scratch) const override {
    const auto* data = static_cast<const float*>(operands[0]);
    if (matrix_bytes_ > 0) {
      auto* matrix = reinterpret_cast<float*>(scratch.take(matrix_bytes_));
      thread_pool::parallel_for(spec_.rows(), threads_, [&](int64_t begin, int64_t end) {
        windows_.write(data, begin, end, matrix + begin * spec_.depth());
      });
      data = matrix;
    }
    gemm_.run(data, static_cast<const float*>(operands[1]), Epilogue(spec_, operands), scratch);
  }

 private:
  ProductSpec spec_;
  WindowMatrix windows_;
  PackedGemm gemm_;
  size_t matrix_bytes_ = 0;  // of all windows, where the data are not this matrix
};

// The same for many windows, in blocks.
class BlockedProduct final : public Operation {
 public:
  BlockedProduct(const ProductSpec& s, const thread_pool::Settings& settings)
      : spec_(s), blocks_({s.windows(), s.input[1]}, s.rows(), settings.threads_for(s.flops()), kLimits, [&](int64_t windows) {
          return PackedGemm(shape_of(s, windows), 1, true);
        }) {
    threads_ = blocks_.threads();
    scratch_size_ = static_cast<size_t>(threads_) * blocks_.scratch_of_thread();
    operand_bytes_ = s.operand_bytes(blocks_.product().packed_size());
  }

  std::string name() const override { return blocks_.product().name(); }

  void run(void* const* operands, Scratch& scratch) const override {
    const auto *data = static_cast<const float*>(operands[0]), *packed = static_cast<const float*>(operands[1]);
    const Epilogue whole(spec_, operands);
    char* const memory = scratch.take(scratch_size_);
    thread_pool::on_threads(threads_, [&](int64_t thread) {
      char* const mine = memory + static_cast<size_t>(thread) * blocks_.scratch_of_thread();
      blocks_.for_each(thread, data, mine, [&](const PackedGemm& product, const float* matrix, int64_t row, Scratch& rest) {
        product.run(matrix, packed, whole.from(row), rest);
      });
    });
  }

 private:
  static constexpr WindowBlocks::Limits kLimits{1 << 16, 24, 144};  // a quarter of a megabyte

  ProductSpec spec_;
  WindowBlocks blocks_;
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

bool can_be_packed_gemm(const ProductSpec& s) { return runs_kernels(false) && s.is_float32() && s.groups == 1; }

// oneDNN's convolutions are about as fast for many rows, and faster where many windows would have to be written out. Its products
// of matrices are as fast, too, but call a function for each number of what follows.
bool is_for_packed_gemm(const ProductSpec& s) {
  constexpr int64_t kMostRows = 512, kMostWindows = 64;
  if (isa() != Isa::kAvx2 || !can_be_packed_gemm(s)) return false;
  return !s.is_conv || s.rows() <= (s.depth() == s.input[1] ? kMostRows : kMostWindows);
}

std::unique_ptr<Operation> make_packed_product(const ProductSpec& spec, const thread_pool::Settings& settings) {
  if (is_for_packed_gemm(spec) || spec.is_plain()) return std::make_unique<PackedProduct>(spec, settings);
  return std::make_unique<BlockedProduct>(spec, settings);
}

std::unique_ptr<Operation> make_packed_product_pack(const ProductSpec& spec) { return std::make_unique<PackedProductPack>(spec); }

}  // namespace native
