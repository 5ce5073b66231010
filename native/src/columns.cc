#include "columns.h"

#include <cstring>

namespace native {

namespace {

// Calls part(begin, end) for even shares of `count` on the threads.
template <class Part>
void share(int64_t count, int threads, const Part& part) {
  struct Shared {
    const Part& part;
    int64_t count;
  } shared{part, count};
  team::each(
      [](void* data, int thread, int of) {
        const Shared& s = *static_cast<Shared*>(data);
        s.part(s.count * thread / of, s.count * (thread + 1) / of);
      },
      &shared, threads);
}

Product::Sizes sizes_of(const Spec& s) {
  Product::Sizes p;
  const int64_t filters = s.kernel[0];
  p.type = s.type;
  if (s.kind == kForward) {
    p.m = s.rows(), p.n = filters, p.k = s.row(), p.b_transposed = true;
  } else if (s.kind == kData) {
    p.m = s.rows(), p.n = s.row(), p.k = filters;
  } else {
    p.m = filters, p.n = s.row(), p.k = s.rows(), p.a_transposed = true;
  }
  return p;
}

}  // namespace

Columns::Columns(const Spec& s, int threads, bool only_described)
    : spec_(s), threads_(threads), plain_(s.is_plain()), product_(sizes_of(s), threads, only_described) {
  if (!plain_) matrix_ = static_cast<size_t>(s.rows()) * s.row() * bytes_of(s.type);
  for (int i = 0; i < 3; i++) {
    const int at = i - (3 - s.n);
    const bool there = at >= 0;
    in_[i] = there ? s.source[at + 2] : 1, out_[i] = there ? s.result[at + 2] : 1, window_[i] = there ? s.kernel[at + 2] : 1;
    stride_[i] = there ? s.strides[at] : 1, step_[i] = there ? s.gaps[at] + 1 : 1, low_[i] = there ? s.low[at] : 0;
  }
}

void Columns::run(void* first, void* second, void* made, Scratch& scratch) const {
  if (plain_) {
    if (spec_.kind == kWeights) std::swap(first, second);
    return product_.run(first, second, made, scratch);
  }
  auto* matrix = reinterpret_cast<float*>(scratch.take(matrix_));
  if (spec_.kind == kData) {
    product_.run(first, second, matrix, scratch);
    return scatter(matrix, static_cast<float*>(made));
  }
  gather(static_cast<const float*>(first), matrix);
  if (spec_.kind == kForward) return product_.run(matrix, second, made, scratch);
  product_.run(second, matrix, made, scratch);
}

// Rows have the order of the weights: taps vary fastest, or channels where those are last.
void Columns::gather(const float* x, float* matrix) const {
  const int64_t channels = spec_.kernel[1], taps = spec_.taps(), row = spec_.row();
  const bool channels_last = spec_.flags & kWeightsChannelsLast || taps == 1;
  share(spec_.rows(), threads_, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      float* to = matrix + r * row;
      const int64_t o[3] = {r / (out_[2] * out_[1]) % out_[0], r / out_[2] % out_[1], r % out_[2]};
      const float* image = x + r / (out_[0] * out_[1] * out_[2]) * in_[0] * in_[1] * in_[2] * channels;
      int64_t tap = 0;
      for (int64_t a = 0; a < window_[0]; a++) {
        for (int64_t b = 0; b < window_[1]; b++) {
          for (int64_t c = 0; c < window_[2]; c++, tap++) {
            const int64_t i = o[0] * stride_[0] + a * step_[0] - low_[0], j = o[1] * stride_[1] + b * step_[1] - low_[1],
                          k = o[2] * stride_[2] + c * step_[2] - low_[2];
            const bool inside = i >= 0 && i < in_[0] && j >= 0 && j < in_[1] && k >= 0 && k < in_[2];
            const float* from = image + ((i * in_[1] + j) * in_[2] + k) * channels;
            if (channels_last) {
              float* here = to + tap * channels;
              inside ? std::memcpy(here, from, channels * sizeof(float)) : std::memset(here, 0, channels * sizeof(float));
            } else {
              float* here = to + tap;
              for (int64_t channel = 0; channel < channels; channel++) here[channel * taps] = inside ? from[channel] : 0.f;
            }
          }
        }
      }
    }
  });
}

void Columns::scatter(const float* matrix, float* x) const {
  const int64_t channels = spec_.kernel[1], taps = spec_.taps(), row = spec_.row(), samples = spec_.source[0];
  const int64_t windows = out_[0] * out_[1] * out_[2], pixels = in_[0] * in_[1] * in_[2];
  const bool channels_last = spec_.flags & kWeightsChannelsLast || taps == 1;
  // whole samples, or, where these are few, some of their channels: nobody adds where another one does
  const int64_t parts = samples >= threads_ ? 1 : std::min<int64_t>(threads_, channels);
  share(samples * parts, threads_, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; item++) {
      const int64_t sample = item / parts, first = channels * (item % parts) / parts, last = channels * (item % parts + 1) / parts;
      float* image = x + sample * pixels * channels;
      for (int64_t p = 0; p < pixels; p++) std::memset(image + p * channels + first, 0, (last - first) * sizeof(float));
      for (int64_t w = 0; w < windows; w++) {
        const float* from = matrix + (sample * windows + w) * row;
        const int64_t o[3] = {w / (out_[2] * out_[1]), w / out_[2] % out_[1], w % out_[2]};
        int64_t tap = 0;
        for (int64_t a = 0; a < window_[0]; a++) {
          for (int64_t b = 0; b < window_[1]; b++) {
            for (int64_t c = 0; c < window_[2]; c++, tap++) {
              const int64_t i = o[0] * stride_[0] + a * step_[0] - low_[0], j = o[1] * stride_[1] + b * step_[1] - low_[1],
                            k = o[2] * stride_[2] + c * step_[2] - low_[2];
              if (i < 0 || i >= in_[0] || j < 0 || j >= in_[1] || k < 0 || k >= in_[2]) continue;
              float* to = image + ((i * in_[1] + j) * in_[2] + k) * channels;
              const int64_t step = channels_last ? 1 : taps, at = channels_last ? tap * channels : tap;
              for (int64_t channel = first; channel < last; channel++) to[channel] += from[at + channel * step];
            }
          }
        }
      }
    }
  });
}

}  // namespace native
