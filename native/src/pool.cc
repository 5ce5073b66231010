// Max pooling, channels last. The specs are written by oneflow/ops/_native_pool.py.
//
//   max_pool       x -> y, places
//   max_pool_grad  places, gradient to y -> gradient to x
//
// A place is the number of a window's first maximum among its positions, row by row, or of its first element where one is NaN; kNone in
// a window that has padding alone. Threads share the rows of y, or of the gradient to x.
#include <algorithm>
#include <limits>

#include "operation.h"
#include "vectors.h"
#include "windows.h"

namespace native {

namespace {

constexpr uint8_t kNone = 255;

struct PoolSpec : Windows {
  explicit PoolSpec(SpecReader reader) {
    constexpr int64_t kMost = int64_t{1} << 24;
    type = reader.next_dtype();
    samples = reader.next(1, kMost), channels = reader.next(1, kMost);
    const auto read = [&](Sizes& sizes, int64_t least) {
      for (auto& size : sizes) size = reader.next(least, kMost);
    };
    read(input, 1), read(output, 1), read(kernel, 1), read(strides, 1), read(pads, 0);
    dilations = {1, 1, 1};
    reader.finish();
    double positions = 1, inputs = static_cast<double>(samples) * static_cast<double>(channels), outputs = inputs;
    for (int i = 0; i < kAxes; i++) {
      positions *= static_cast<double>(kernel[i]);
      inputs *= static_cast<double>(input[i]), outputs *= static_cast<double>(output[i]);
    }
    if (positions > static_cast<double>(kMostPositions)) throw std::invalid_argument("the window is too large");
    if (std::max(inputs, outputs) > static_cast<double>(int64_t{1} << 40)) throw std::invalid_argument("the array is too large");
  }

  size_t elements(const Sizes& image) const { return static_cast<size_t>(samples * product(image) * channels); }

  dt type;
  int64_t channels;
};

// For a pixel of y, or of x, the pixels of the other one that belong to it and their positions in the window.
struct Kernels {
  void (*pool)(const PoolSpec&, const void* x, const int64_t* pixels, const int* positions, int count, void* y, uint8_t* places);
  void (*gradient)(const PoolSpec&, const uint8_t* places, const void* dy, const int64_t* pixels, const int* positions, int count,
                   void* dx);
};

#define KERNELS "pool_kernels.h"
#include "each_isa.h"

class Pool : public Operation {
 public:
  Pool(const PoolSpec& spec, bool is_forward, const thread_pool::Settings& settings) : s_(spec), is_forward_(is_forward) {
    check_isa(s_.type == dt::bf16);
    kernels_ = for_this_cpu(avx2::choose, avx512::choose)(s_.type == dt::bf16);
    const size_t inputs = s_.elements(s_.input), outputs = s_.elements(s_.output), bytes = bytes_of(s_.type);
    constexpr double kFlopsPerElement = 16;  // floating point operations that take as long as reading or writing one
    threads_ = settings.threads_for(kFlopsPerElement * static_cast<double>(inputs));
    operand_bytes_ = {inputs * bytes, outputs * bytes, outputs};
    if (!is_forward) std::swap(operand_bytes_[0], operand_bytes_[2]);
  }

  std::string name() const override { return "rows:" + isa_name(s_.type == dt::bf16); }

  void run(void* const* operands, Scratch&) const override {
    const auto& mine = is_forward_ ? s_.output : s_.input;
    const size_t bytes = bytes_of(s_.type);
    thread_pool::parallel_for(s_.samples * mine[0] * mine[1], threads_, [&](int64_t begin, int64_t end) {
      for_pixels(s_, is_forward_, begin, end, [&](int64_t pixel, const int64_t* pixels, const int* positions, int count) {
        const auto at = static_cast<size_t>(pixel * s_.channels);
        if (is_forward_) {
          kernels_.pool(s_, operands[0], pixels, positions, count, static_cast<char*>(operands[1]) + at * bytes,
                        static_cast<uint8_t*>(operands[2]) + at);
        } else {
          kernels_.gradient(s_, static_cast<const uint8_t*>(operands[0]), operands[1], pixels, positions, count,
                            static_cast<char*>(operands[2]) + at * bytes);
        }
      });
    });
  }

 private:
  PoolSpec s_;
  bool is_forward_;
  Kernels kernels_;
};

}  // namespace

std::unique_ptr<Operation> make_max_pool(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<Pool>(PoolSpec(reader), true, settings);
}

std::unique_ptr<Operation> make_max_pool_grad(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<Pool>(PoolSpec(reader), false, settings);
}

}  // namespace native
