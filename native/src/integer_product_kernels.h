// Of integer_product.cc, for each instruction set (each_isa.h).

#include "epilogue.h"

constexpr int kMostRows = 6;  // whose sums for a panel stay in registers
constexpr int64_t kPanel = kVectors * kLanes;

void widen(const uint8_t* from, int64_t count, int16_t* to) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) store_words(to + i, words_of(from + i));
  for (; i < count; i++) to[i] = from[i];
}

// What the sums of a vector of channels become, of those from `channel` on; of the first `count` of them, where these are not all.
template <bool kWhole>
struct Channels {
  Channels(const Call& call, int64_t channel, int64_t count) : call(call), channel(channel), present(first(count)) {
    scale = read(call.scale), offset = read(call.offset);
  }

  __attribute__((always_inline)) void write(Integers sums, int64_t row) const {
    const ProductSpec& s = call.spec;
    const int64_t at = row * s.channels + channel;
    Floats x = floats(sums) * scale + offset;
    if (call.residual) x = x + floats(kWhole ? load_bytes(call.residual + at) : load_bytes(call.residual + at, present));
    if (!call.is_plain) x = activated(s, x);
    if (s.output_type == dt::f32) {
      float* to = static_cast<float*>(call.result) + at;
      return kWhole ? store(to, x) : store(to, present, x);
    }
    const Integers found = nearest_integers(bounded_above(s.high, bounded_below(s.low, where(equal(x, x), x))));  // NaN becomes 0
    uint8_t* to = static_cast<uint8_t*>(call.result) + at;
    kWhole ? store_bytes(to, found) : store_bytes(to, present, found);
  }

  Floats read(const float* from) const { return kWhole ? load(from + channel) : load(from + channel, present); }

  const Call& call;
  int64_t channel;
  Lanes present;
  Floats scale, offset;
};

template <int kRows>
void multiply(const Call& call, const int16_t* rows, const int8_t* weights, int64_t row, int64_t channel, int64_t end) {
  const int64_t step = 2 * call.pairs;
  Integers sums[kRows][kVectors];
  for (auto& of_row : sums) {
    for (auto& sum : of_row) sum = integers(0);
  }
  for (int64_t pair = 0; pair < call.pairs; pair++, weights += 2 * kPanel) {
    Integers w[kVectors];
    for (int v = 0; v < kVectors; v++) w[v] = words_of(weights + 2 * kLanes * v);
    for (int r = 0; r < kRows; r++) {
      int two;
      std::memcpy(&two, rows + r * step + 2 * pair, sizeof two);
      const Integers x = integers(two);
      for (int v = 0; v < kVectors; v++) sums[r][v] = sum_of(sums[r][v], products_of_pairs(x, w[v]));
    }
  }
  for (int v = 0; v < kVectors; v++, channel += kLanes) {
    const auto write = [&](auto channels) {
      for (int r = 0; r < kRows; r++) channels.write(sums[r][v], row + r);
    };
    if (channel + kLanes <= end) {
      write(Channels<true>(call, channel, kLanes));
    } else if (channel < end) {
      write(Channels<false>(call, channel, end - channel));
    }
  }
}

// Bytes, each as a number of 32 bits whose upper half is its sign: pairs of words, of which the second product is zero.
template <bool kWhole, int kCount>
void add_taps(const Call& call, const Window& window, int64_t tap_bytes, int64_t pixel, int64_t c) {
  const int64_t channels = call.spec.channels, pixel_step = window.axes[2].index_step * channels;
  const Lanes present = first(channels - c);
  Integers sums[kCount];
  for (auto& sum : sums) sum = integers(0);
  window.for_rows([&](int64_t first, int64_t tap, int64_t count) {
    const uint8_t* data = call.data + first * channels + c;
    const int8_t* weights = call.weights + tap * tap_bytes + c;
    for (; count > 0; count--, data += pixel_step, weights += tap_bytes) {
      for (int v = 0; v < kCount; v++) {
        const Integers x = kWhole ? load_bytes(data + v * kLanes) : load_bytes(data, present);
        sums[v] = sum_of(sums[v], products_of_pairs(x, integers_of(weights + v * kLanes)));
      }
    }
  });
  for (int v = 0; v < kCount; v++) Channels<kWhole>(call, c + v * kLanes, channels - c).write(sums[v], pixel);
}

void multiply_depthwise(const Call& call, const Window& window, int64_t tap_bytes, int64_t pixel) {
  constexpr int kMany = 4;
  int64_t c = 0;
  const auto add = [&](auto add_some, int64_t channels) {
    for (; c + channels <= call.spec.channels; c += channels) add_some(call, window, tap_bytes, pixel, c);
  };
  add(add_taps<true, kMany>, kMany * kLanes);
  add(add_taps<true, 1>, kLanes);
  if (c < call.spec.channels) add_taps<false, 1>(call, window, tap_bytes, pixel, c);
}

template <int... kRows>
constexpr Kernels table_of(std::integer_sequence<int, kRows...>) {
  return {kMostRows, widen, {multiply<kRows + 1>...}, multiply_depthwise};
}
constexpr Kernels kKernels = table_of(std::make_integer_sequence<int, kMostRows>());
