#include "im2col.h"

#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace native {

namespace {

GemmShape gemm_shape(const ConvSpec& s) {
  const int64_t rows = s.rows(), columns = s.columns(), filters = s.kernel[0];
  const auto [compute, dtypes] = s.dtypes;
  switch (s.kind) {
    case ConvSpec::kForward:  // matrix x weights transposed
      return {s.dtypes, 1, rows, filters, columns, false, true};
    case ConvSpec::kBackwardData: {  // output's gradient x weights
      const dt made = s.is_pointwise() ? dtypes[2] : dt::f32;
      return {{compute, {dtypes[0], dtypes[1], made}}, 1, rows, columns, filters, false, false};
    }
    default:  // output's gradient transposed x matrix
      return {{compute, {dtypes[1], dtypes[0], dtypes[2]}}, 1, filters, columns, rows, true, false};
  }
}

}  // namespace

Im2colConv::Im2colConv(const ConvSpec& s, int threads, bool describe_only)
    : spec_(s),
      threads_(threads),
      is_pointwise_(s.is_pointwise()),
      channels_fastest_(s.weights_channels_last() || s.taps() == 1),
      gemm_(gemm_shape(s), threads, describe_only) {
  if (!is_pointwise_) {
    const bool is_sum = s.kind == ConvSpec::kBackwardData;
    const dt matrix = is_sum ? dt::f32 : s.dtypes.operands[0];
    matrix_bytes_ = static_cast<size_t>(s.rows() * s.columns()) * bytes_of(matrix);
    if (is_sum && s.dtypes.operands[2] != dt::f32 && !describe_only) {
      const thread_pool::ScopedMaxThreads scope(threads);
      sums_bytes_ = element_count(s.input) * sizeof(float);
      rounding_ = Conversion(element_count(s.input), dt::f32, s.dtypes.operands[2]);
    }
  }
  for (int i = 0; i < 3; i++) {
    const int axis = i - (3 - s.n);
    const bool exists = axis >= 0;
    input_[i] = exists ? s.input[axis + 2] : 1;
    output_[i] = exists ? s.output[axis + 2] : 1;
    kernel_[i] = exists ? s.kernel[axis + 2] : 1;
    stride_[i] = exists ? s.strides[axis] : 1;
    dilation_[i] = exists ? s.dilations[axis] : 1;
    pad_[i] = exists ? s.pad_low[axis] : 0;
  }
}

void Im2colConv::run(const void* first, const void* second, void* result, Scratch& scratch) const {
  void* matrix = is_pointwise_ ? nullptr : scratch.take(matrix_bytes_);
  switch (spec_.kind) {
    case ConvSpec::kForward:
      if (matrix) im2col(first, matrix);
      return gemm_.run(matrix ? matrix : first, second, result, scratch);
    case ConvSpec::kBackwardData: {
      gemm_.run(first, second, matrix ? matrix : result, scratch);
      if (!matrix) return;
      void* sums = sums_bytes_ ? scratch.take(sums_bytes_) : result;
      col2im(static_cast<const float*>(matrix), static_cast<float*>(sums));
      if (sums_bytes_) rounding_.run(sums, result, scratch);
      return;
    }
    case ConvSpec::kBackwardWeights:
      if (matrix) im2col(first, matrix);
      return gemm_.run(second, matrix ? matrix : first, result, scratch);
  }
}

// Calls visit(tap, pixel) for every tap of a window, of all those of one image; `pixel` is -1 in the padding.
template <class Visit>
void Im2colConv::for_each_tap(int64_t window, const Visit& visit) const {
  const int64_t first[3] = {window / (output_[2] * output_[1]) * stride_[0] - pad_[0],
                            window / output_[2] % output_[1] * stride_[1] - pad_[1], window % output_[2] * stride_[2] - pad_[2]};
  int64_t tap = 0;
  for (int64_t a = 0; a < kernel_[0]; a++) {
    for (int64_t b = 0; b < kernel_[1]; b++) {
      for (int64_t c = 0; c < kernel_[2]; c++, tap++) {
        const int64_t i = first[0] + a * dilation_[0], j = first[1] + b * dilation_[1], k = first[2] + c * dilation_[2];
        const bool inside = i >= 0 && i < input_[0] && j >= 0 && j < input_[1] && k >= 0 && k < input_[2];
        visit(tap, inside ? (i * input_[1] + j) * input_[2] + k : -1);
      }
    }
  }
}

void Im2colConv::im2col(const void* input, void* matrix) const {
  if (spec_.dtypes.operands[0] == dt::f32) return im2col(static_cast<const float*>(input), static_cast<float*>(matrix));
  im2col(static_cast<const uint16_t*>(input), static_cast<uint16_t*>(matrix));
}

namespace {

// Writes a row whose taps vary fastest. `Taps`: their number, a constant where it is a frequent one, so that the inner loop is unrolled.
template <class Element, class Taps>
void interleave(const std::vector<const Element*>& from, int64_t channels, Taps taps, Element* to) {
  for (int64_t c = 0; c < channels; c++) {
    for (int64_t tap = 0; tap < taps; tap++) to[c * taps + tap] = from[static_cast<size_t>(tap)][c];
  }
}

}  // namespace

template <class Element>
void Im2colConv::im2col(const Element* input, Element* matrix) const {
  const int64_t channels = spec_.kernel[1], taps = spec_.taps(), columns = spec_.columns();
  const int64_t windows = output_[0] * output_[1] * output_[2], pixels = input_[0] * input_[1] * input_[2];
  thread_pool::parallel_for(spec_.rows(), threads_, [&](int64_t begin, int64_t end) {
    const std::vector<Element> padding(static_cast<size_t>(channels));
    std::vector<const Element*> from(static_cast<size_t>(taps));
    for (int64_t row = begin; row < end; row++) {
      const Element* image = input + row / windows * pixels * channels;
      Element* to = matrix + row * columns;
      for_each_tap(row % windows, [&](int64_t tap, int64_t pixel) {
        from[static_cast<size_t>(tap)] = pixel >= 0 ? image + pixel * channels : padding.data();
      });
      if (channels_fastest_) {
        for (int64_t tap = 0; tap < taps; tap++) {
          std::memcpy(to + tap * channels, from[static_cast<size_t>(tap)], static_cast<size_t>(channels) * sizeof(Element));
        }
      } else if (taps == 9) {
        interleave(from, channels, std::integral_constant<int64_t, 9>(), to);
      } else {
        interleave(from, channels, taps, to);
      }
    }
  });
}

void Im2colConv::col2im(const float* matrix, float* input) const {
  const int64_t channels = spec_.kernel[1], taps = spec_.taps(), columns = spec_.columns(), samples = spec_.input[0];
  const int64_t windows = output_[0] * output_[1] * output_[2], pixels = input_[0] * input_[1] * input_[2];
  const int64_t tap_step = channels_fastest_ ? channels : 1, channel_step = channels_fastest_ ? 1 : taps;
  // Windows overlap, so a share of the work is whole samples, or some channels of one: no two threads add to one element.
  const int64_t parts = samples >= threads_ ? 1 : std::min<int64_t>(threads_, channels);
  thread_pool::parallel_for(samples * parts, threads_, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; item++) {
      const int64_t sample = item / parts, part = item % parts;
      const int64_t first = channels * part / parts, last = channels * (part + 1) / parts;
      float* image = input + sample * pixels * channels;
      for (int64_t p = 0; p < pixels; p++) std::memset(image + p * channels + first, 0, (last - first) * sizeof(float));
      for (int64_t window = 0; window < windows; window++) {
        const float* row = matrix + (sample * windows + window) * columns;
        for_each_tap(window, [&](int64_t tap, int64_t pixel) {
          if (pixel < 0) return;
          float* to = image + pixel * channels;
          const float* from = row + tap * tap_step;
          for (int64_t c = first; c < last; c++) to[c] += from[c * channel_step];
        });
      }
    }
  });
}

}  // namespace native
