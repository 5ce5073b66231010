#include "padded_gradient.h"

#include <algorithm>

namespace native {

namespace {

int64_t reach(const ConvSpec& s) {
  return (s.kernel.back() - 1) * s.dilations.back();
}  // from a window's first pixel to its last

int64_t padded_length(const ConvSpec& s) { return s.input.back() + reach(s); }

// The convolution along the last axis that computes the gradient.
ConvSpec forward_of(const ConvSpec& s) {
  ConvSpec made = s;
  made.kind = ConvSpec::kForward;
  made.flags = ConvSpec::kWeightsChannelsLast | ConvSpec::kAlwaysDirect;
  made.n = 1;
  made.input = {s.input[0], s.output[1], padded_length(s)};
  made.kernel = {s.input[1], s.output[1], s.kernel.back()};
  made.output = {s.input[0], s.input[1], s.input.back()};
  made.strides = {1}, made.dilations = {s.dilations.back()};
  made.pad_low = made.pad_high = {0};
  return made;
}

}  // namespace

bool PaddedGradient::takes(const ConvSpec& s) {
  constexpr int64_t kWide = 128;
  if (isa() != Isa::kAvx2 || s.kind != ConvSpec::kBackwardData || s.groups != 1 || s.flags & ConvSpec::kAlwaysDirect)
    return false;
  if (s.dtypes.compute != dt::f32) return false;
  for (int i = 0; i < s.n; i++) {
    const bool is_last = i == s.n - 1, is_alone = s.input[i + 2] == 1 && s.kernel[i + 2] == 1 && s.output[i + 2] == 1;
    if (s.strides[i] != 1 || std::max(s.pad_low[i], s.pad_high[i]) > (s.kernel[i + 2] - 1) * s.dilations[i] ||
        !(is_last || is_alone))
      return false;
  }
  const bool keeps_length = s.output.back() == s.input.back() && s.dilations.back() == 1;  // few windows reach beyond it then
  return s.input.back() >= kWide && s.kernel.back() > 1 && !keeps_length;
}

PaddedGradient::PaddedGradient(const ConvSpec& s, int threads, bool describe_only)
    : threads_(threads),
      samples_(s.input[0]),
      inputs_(s.input[1]),
      outputs_(s.output[1]),
      taps_(s.kernel.back()),
      length_(s.output.back()),
      padded_length_(padded_length(s)),
      begin_(reach(s) - s.pad_low.back()),
      output_step_(inputs_ * taps_),
      input_step_(s.weights_channels_last() ? 1 : taps_),
      tap_step_(s.weights_channels_last() ? inputs_ : 1),
      forward_(forward_of(s), threads, describe_only) {}

size_t PaddedGradient::scratch_size() const {
  return aligned(static_cast<size_t>(samples_ * padded_length_ * outputs_) * sizeof(float)) +
         aligned(static_cast<size_t>(inputs_ * taps_ * outputs_) * sizeof(float)) + forward_.scratch_size();
}

void PaddedGradient::run(const void* gradient, const void* weights, void* result, Scratch& scratch) const {
  const auto take = [&](int64_t count) {
    return reinterpret_cast<float*>(scratch.take(static_cast<size_t>(count) * sizeof(float)));
  };
  float *padded = take(samples_ * padded_length_ * outputs_), *reversed = take(inputs_ * taps_ * outputs_);
  pad(static_cast<const float*>(gradient), padded);
  reverse(static_cast<const float*>(weights), reversed);
  forward_.run(padded, reversed, result, scratch);
}

void PaddedGradient::pad(const float* gradient, float* padded) const {
  thread_pool::parallel_for(samples_ * padded_length_, threads_, [&](int64_t row, int64_t end) {
    while (row < end) {
      const int64_t sample = row / padded_length_, first = row % padded_length_ - begin_;
      const int64_t last =
          std::min(end - sample * padded_length_, padded_length_) - begin_;  // of this sample, as positions of the gradient
      const int64_t from = std::clamp<int64_t>(first, 0, length_), to = std::clamp<int64_t>(last, from, length_);
      float* at = std::fill_n(padded + row * outputs_, (std::min(from, last) - first) * outputs_, 0.0f);
      at = std::copy(gradient + (sample * length_ + from) * outputs_, gradient + (sample * length_ + to) * outputs_, at);
      std::fill(at, padded + (row + last - first) * outputs_, 0.0f);
      row += last - first;
    }
  });
}

// To (inputs, taps from the last one on, outputs).
void PaddedGradient::reverse(const float* weights, float* reversed) const {
  thread_pool::parallel_for(inputs_, threads_, [&](int64_t input, int64_t end) {
    for (; input < end; input++) {
      for (int64_t tap = 0; tap < taps_; tap++) {
        const float* from = weights + input * input_step_ + (taps_ - 1 - tap) * tap_step_;
        float* to = reversed + (input * taps_ + tap) * outputs_;
        for (int64_t output = 0; output < outputs_; output++) to[output] = from[output * output_step_];
      }
    }
  });
}

}  // namespace native
