#include "blocked_im2col.h"

#include <algorithm>

namespace native {

namespace {

GemmShape shape_of(const ConvSpec& s, int64_t rows) {
  const Dtypes dtypes{dt::f32, {dt::f32, dt::f32, dt::f32}};
  if (s.kind == ConvSpec::kForward) return {dtypes, 1, rows, s.kernel[0], s.columns(), false, true};  // windows x weights transposed
  return {dtypes, 1, s.kernel[0], s.columns(), rows, true, false};                                     // gradient transposed x windows
}

}  // namespace

bool BlockedIm2col::takes(const ConvSpec& s) {
  constexpr int64_t kMostSums = 1 << 18;  // of which each thread has its own
  const auto& [compute, operands] = s.dtypes;
  const bool is_float32 = std::all_of(std::begin(operands), std::end(operands), [](dt type) { return type == dt::f32; });
  return isa() == Isa::kAvx2 && is_float32 && compute == dt::f32 && s.groups == 1 && s.kind != ConvSpec::kBackwardData &&
         s.kernel[0] * s.columns() <= kMostSums;
}

BlockedIm2col::BlockedIm2col(const ConvSpec& s, int threads)
    : windows_(s.windows(), s.kernel[1]),
      rows_(s.rows()),
      filters_(s.kernel[0]),
      channels_(s.kernel[1]),
      taps_(s.taps()),
      is_forward_(s.kind == ConvSpec::kForward),
      is_turned_(!s.weights_channels_last() && channels_ > 1 && taps_ > 1) {
  constexpr int64_t kLeastRows = 96, kMostRows = 1024, kMatrix = 1 << 17;  // half a megabyte
  block_ = std::min(rows_, std::clamp(kMatrix / windows_.depth(), kLeastRows, kMostRows));
  threads_ = static_cast<int>(std::min<int64_t>(threads, (rows_ + block_ - 1) / block_));
  gemms_.push_back(PackedGemm(shape_of(s, block_), 1));
  if (rows_ % block_ != 0) gemms_.push_back(PackedGemm(shape_of(s, rows_ % block_), 1));
  matrix_bytes_ = static_cast<size_t>(block_ * windows_.depth()) * sizeof(float);
  const size_t weights = static_cast<size_t>(filters_ * windows_.depth()) * sizeof(float);
  if (!is_forward_) sums_bytes_ = weights;
  if (is_forward_ && is_turned_) weights_bytes_ = weights;
}

void BlockedIm2col::run(const void* first, const void* second, void* result, Scratch& scratch) const {
  const auto *input = static_cast<const float*>(first), *other = static_cast<const float*>(second);
  auto* turned = reinterpret_cast<float*>(scratch.take(weights_bytes_));
  char* const memory = scratch.take(static_cast<size_t>(threads_) * scratch_of_thread());
  if (!is_forward_) return run_weights(input, other, static_cast<float*>(result), memory);
  if (turned) turn(other, turned, true);
  run_forward(input, turned ? turned : other, static_cast<float*>(result), memory);
}

template <class Visit>
void BlockedIm2col::for_blocks(int64_t thread, const float* input, char* memory, const Visit& visit) const {
  const int64_t blocks = (rows_ + block_ - 1) / block_, first = blocks * thread / threads_;
  for (int64_t i = first; i < blocks * (thread + 1) / threads_; i++) {
    const int64_t begin = i * block_, end = std::min(begin + block_, rows_);
    Scratch rest(memory);
    auto* matrix = reinterpret_cast<float*>(rest.take(matrix_bytes_));
    windows_.write(input, begin, end, matrix);
    visit(end - begin == block_ ? gemms_.front() : gemms_.back(), matrix, begin, i == first, rest);
  }
}

void BlockedIm2col::run_forward(const float* input, const float* weights, float* result, char* memory) const {
  thread_pool::on_threads(threads_, [&](int64_t thread) {
    char* const mine = memory + static_cast<size_t>(thread) * scratch_of_thread();
    for_blocks(thread, input, mine, [&](const PackedGemm& gemm, const float* matrix, int64_t row, bool, Scratch& rest) {
      gemm.run(matrix, weights, result + row * filters_, rest);
    });
  });
}

void BlockedIm2col::run_weights(const float* input, const float* gradient, float* result, char* memory) const {
  const int64_t count = filters_ * windows_.depth();
  const auto piece_of = [&](int64_t thread) { return memory + static_cast<size_t>(thread) * scratch_of_thread(); };
  const auto sums_of = [&](int64_t thread) { return reinterpret_cast<float*>(piece_of(thread) + aligned(matrix_bytes_)); };
  thread_pool::on_threads(threads_, [&](int64_t thread) {
    float* const sums = sums_of(thread);
    for_blocks(thread, input, piece_of(thread), [&](const PackedGemm& gemm, const float* matrix, int64_t row, bool is_first, Scratch& rest) {
      rest.take(sums_bytes_);
      gemm.run(gradient + row * filters_, matrix, sums, rest, !is_first);
    });
  });
  for (int thread = 1; thread < threads_; thread++) {
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
