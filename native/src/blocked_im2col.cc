#include "blocked_im2col.h"

#include <algorithm>

namespace native {

namespace {

constexpr WindowBlocks::Limits kLimits{1 << 17, 96, 1024};  // half a megabyte

GemmShape shape_of(const ConvSpec& s, int64_t rows) {
  const Dtypes dtypes{dt::f32, {dt::f32, dt::f32, dt::f32}};
  if (s.kind == ConvSpec::kForward)
    return {dtypes, 1, rows, s.kernel[0], s.columns(), false, true};  // windows x weights transposed
  return {dtypes, 1, s.kernel[0], s.columns(), rows, true, false};    // gradient transposed x windows
}

}  // namespace

bool BlockedIm2col::takes(const ConvSpec& s) {
  constexpr int64_t kMostSums = 1 << 18;  // of which each thread has its own
  return isa() == Isa::kAvx2 && s.dtypes.are_float32() && s.groups == 1 && s.kind != ConvSpec::kBackwardData &&
         s.kernel[0] * s.columns() <= kMostSums;
}

BlockedIm2col::BlockedIm2col(const ConvSpec& s, int threads)
    : blocks_({s.windows(), s.kernel[1]}, s.rows(), threads, kLimits,
              [&](int64_t windows) { return PackedGemm(shape_of(s, windows), 1); }),
      filters_(s.kernel[0]),
      channels_(s.kernel[1]),
      taps_(s.taps()),
      is_forward_(s.kind == ConvSpec::kForward),
      is_turned_(!s.weights_channels_last() && channels_ > 1 && taps_ > 1) {
  const size_t weights = element_count(s.kernel) * sizeof(float);
  if (!is_forward_) sums_bytes_ = weights;
  if (is_forward_ && is_turned_) weights_bytes_ = weights;
}

void BlockedIm2col::run(const void* first, const void* second, void* result, Scratch& scratch) const {
  const auto *input = static_cast<const float*>(first), *other = static_cast<const float*>(second);
  auto* turned = reinterpret_cast<float*>(scratch.take(weights_bytes_));
  char* const memory = scratch.take(static_cast<size_t>(blocks_.threads()) * scratch_of_thread());
  if (!is_forward_) return run_weights(input, other, static_cast<float*>(result), memory);
  if (turned) turn(other, turned, true);
  run_forward(input, turned ? turned : other, static_cast<float*>(result), memory);
}

void BlockedIm2col::run_forward(const float* input, const float* weights, float* result, char* memory) const {
  thread_pool::on_threads(blocks_.threads(), [&](int64_t thread) {
    char* const mine = memory + static_cast<size_t>(thread) * scratch_of_thread();
    blocks_.for_each(thread, input, mine, [&](const PackedGemm& product, const float* matrix, int64_t row, Scratch& rest) {
      product.run(matrix, weights, result + row * filters_, rest);
    });
  });
}

void BlockedIm2col::run_weights(const float* input, const float* gradient, float* result, char* memory) const {
  const int64_t count = filters_ * channels_ * taps_;
  const auto sums_of = [&](int64_t thread) {
    return reinterpret_cast<float*>(memory + static_cast<size_t>(thread) * scratch_of_thread());
  };
  thread_pool::on_threads(blocks_.threads(), [&](int64_t thread) {
    float* const sums = sums_of(thread);
    bool is_first = true;
    blocks_.for_each(thread, input, reinterpret_cast<char*>(sums) + aligned(sums_bytes_),
                     [&](const PackedGemm& product, const float* matrix, int64_t row, Scratch& rest) {
                       product.run(gradient + row * filters_, matrix, sums, rest, !is_first);
                       is_first = false;
                     });
  });
  for (int thread = 1; thread < blocks_.threads(); thread++) {
    for (int64_t i = 0; i < count; i++) sums_of(0)[i] += sums_of(thread)[i];
  }
  is_turned_ ? turn(sums_of(0), result, false) : static_cast<void>(std::copy_n(sums_of(0), count, result));
}

void BlockedIm2col::turn(const float* from, float* to, bool channels_last) const {
  const int64_t rows = channels_last ? channels_ : taps_, columns = channels_last ? taps_ : channels_;
  for (int64_t filter = 0; filter < filters_; filter++, from += rows * columns, to += rows * columns) {
    for (int64_t i = 0; i < rows; i++) {
      for (int64_t j = 0; j < columns; j++) to[j * rows + i] = from[i * columns + j];
    }
  }
}

}  // namespace native
