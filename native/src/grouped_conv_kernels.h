// Of grouped_conv.cc.

// Some channels of pixels beside each other.
inline void copy_pixels(const float* from, int64_t step, int64_t pixels, int64_t channels, float* to) {
  const int64_t whole = channels / kLanes * kLanes;
  for (; pixels > 0; pixels--, from += step, to += channels) {
    for (int64_t c = 0; c < whole; c += kLanes) store(to + c, load(from + c));
    for (int64_t c = whole; c < channels; c++) to[c] = from[c];
  }
}

// What the sums of some pixels of a row read, and where they go. Kernels say whether one of them is NaN.
struct Tile {
  const float* image;   // the first pixel's first number at the first tap
  int64_t pixel_step;   // between pixels of the image, in numbers
  const int64_t* taps;  // where they lie, from the first one on
  int64_t tap_count, inputs;
  const float* weights;
  float* result;
  int64_t result_step, columns;  // columns: of the result, at most a vector of them
};

// Pixels that lie one, two steps behind a pointer are addressed from there, so that few registers hold addresses.
constexpr int kNear = 3;

template <int kPixels>
struct Sums {
  Floats of[kPixels];

  Sums() {
    for (auto& sum : of) sum = zero();
  }

  // visit(pixel, where it lies)
  template <class Visit>
  static void for_pixels(const float* from, int64_t step, const Visit& visit) {
    const float* near[(kPixels + kNear - 1) / kNear];
    for (int i = 0; i * kNear < kPixels; i++) near[i] = from + i * kNear * step;
    for (int p = 0; p < kPixels; p++) visit(p, near[p / kNear] + p % kNear * step);
  }

  // Whether one of them is NaN.
  bool write(const Tile& t) const {
    float* to = t.result;
    const Lanes present = first(t.columns);
    Lanes bad = is_nan(of[0]);
    for (int p = 1; p < kPixels; p++) bad = either(bad, is_nan(of[p]));
    for (int p = 0; p < kPixels; p++, to += t.result_step) store(to, present, of[p]);
    return any(bad);
  }
};

// A vector of the outputs of one group, which read the same inputs.
template <int kPixels>
bool wide(const Tile& t) {
  Sums<kPixels> sums;
  const float* weights = t.weights;
  for (int64_t tap = 0; tap < t.tap_count; tap++) {
    const float* from = t.image + t.taps[tap];
    for (int64_t i = 0; i < t.inputs; i++, weights += kLanes) {
      const Floats w = load(weights);
      sums.for_pixels(from + i, t.pixel_step, [&](int p, const float* x) { sums.of[p] = fma(all(*x), w, sums.of[p]); });
    }
  }
  return sums.write(t);
}

// A vector of several groups, of kInputs inputs and outputs each: number i of each group's inputs, in all of its lanes.
template <int kInputs, int i>
Floats of_each_group(Floats x) {
  if constexpr (kInputs == 1) return x;
  if constexpr (kInputs == 2) return _mm256_permute_ps(x, i == 0 ? 0xa0 : 0xf5);
  return _mm256_permute_ps(x, i * 0x55);
}

template <int kInputs, int kPixels>
bool narrow(const Tile& t) {
  Sums<kPixels> sums;
  const float* weights = t.weights;
  for (int64_t tap = 0; tap < t.tap_count; tap++, weights += kInputs * kLanes) {
    sums.for_pixels(t.image + t.taps[tap], t.pixel_step, [&](int p, const float* at) {
      const Floats x = load(at);
      Floats& sum = sums.of[p];
      sum = fma(of_each_group<kInputs, 0>(x), load(weights), sum);
      if constexpr (kInputs > 1) sum = fma(of_each_group<kInputs, 1>(x), load(weights + kLanes), sum);
      if constexpr (kInputs > 2) sum = fma(of_each_group<kInputs, 2>(x), load(weights + 2 * kLanes), sum);
      if constexpr (kInputs > 2) sum = fma(of_each_group<kInputs, 3>(x), load(weights + 3 * kLanes), sum);
    });
  }
  return sums.write(t);
}
