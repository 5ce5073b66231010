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

// What the sums of some taps beside each other read, over some rows of pixels, and what they are added to.
struct Strip {
  const float* image;  // the first pixel's first number at the first tap
  int64_t pixel_step, row_step, tap_step;
  const float* gradient;  // rows of it follow each other
  int64_t gradient_step, columns;
  int64_t rows, pixels;
  float* sums;
};

// Of narrow groups: the products of a vector of outputs with each input, at kTaps taps.
template <int kInputs, int kTaps>
void add_taps(const Strip& s) {
  constexpr int kAtOnce = kInputs * kTaps <= 6 ? 2 : 1;  // pixels, so that additions do not wait for each other
  const Lanes present = first(s.columns);
  Floats sums[kAtOnce][kTaps][kInputs];
  for (auto& of_pixel : sums) {
    for (auto& of_tap : of_pixel) {
      for (auto& sum : of_tap) sum = zero();
    }
  }
  const auto add = [&](Floats(&to)[kTaps][kInputs], const float* at, Floats gradient) {
    for (int t = 0; t < kTaps; t++) {
      const Floats x = load(at + t * s.tap_step);
      to[t][0] = fma(of_each_group<kInputs, 0>(x), gradient, to[t][0]);
      if constexpr (kInputs > 1) to[t][1] = fma(of_each_group<kInputs, 1>(x), gradient, to[t][1]);
      if constexpr (kInputs > 2) to[t][2] = fma(of_each_group<kInputs, 2>(x), gradient, to[t][2]);
      if constexpr (kInputs > 2) to[t][3] = fma(of_each_group<kInputs, 3>(x), gradient, to[t][3]);
    }
  };
  const float* gradient = s.gradient;
  for (int64_t row = 0; row < s.rows; row++) {
    const float* at = s.image + row * s.row_step;
    int64_t i = 0;
    for (; i + kAtOnce <= s.pixels; i += kAtOnce) {
      for (auto& of_pixel : sums) {
        add(of_pixel, at, load(gradient, present));
        at += s.pixel_step, gradient += s.gradient_step;
      }
    }
    for (; i < s.pixels; i++, at += s.pixel_step, gradient += s.gradient_step) add(sums[0], at, load(gradient, present));
  }
  for (int t = 0; t < kTaps; t++) {
    for (int i = 0; i < kInputs; i++) {
      float* to = s.sums + (t * kInputs + i) * kLanes;
      Floats sum = sums[0][t][i];
      if constexpr (kAtOnce == 2) sum = sum + sums[1][t][i];
      store(to, load(to) + sum);
    }
  }
}
