// Of group_norm.cc, for each instruction set (each_isa.h).

#include "channel_kernels.h"

template <bool kBf16, class Operands>
const typename Elements<kBf16>::Number* pixels_of(const GroupNormSpec& s, const Operands& at, int64_t sample, int64_t begin) {
  return static_cast<const typename Elements<kBf16>::Number*>(at.x) + (sample * s.pixels + begin) * s.channels;
}

inline const float* statistics_of(const GroupNormSpec& s, const Backward& at, int64_t sample) {
  return at.statistics + sample * 2 * s.width();
}

// Calls body(its first channel, the one behind its last) for each group.
template <class Body>
inline void for_groups(const GroupNormSpec& s, const Body& body) {
  for (int64_t c = 0; c < s.channels; c += s.size()) body(c, c + s.size());
}

template <bool kBf16>
void measure(const GroupNormSpec& s, const Forward& at, int64_t sample, int64_t begin, int64_t end, float* vectors) {
  const int64_t width = s.width();
  for (int64_t pixel = begin; pixel < end; pixel += kBlock) {
    for_channels(s.channels, Statistics<kBf16>{pixels_of<kBf16>(s, at, sample, pixel), std::min(kBlock, end - pixel), s.channels,
                                               vectors, vectors + width, vectors + 2 * width, pixel == begin});
  }
}

// `applied`: the mean of each channel's group, what x - mean is multiplied by, and what is added.
void finish(const GroupNormSpec& s, const Forward& at, int64_t sample, const Part* parts, int count, float* applied) {
  const int64_t width = s.width();
  float *means = applied, *slopes = applied + width, *shifts = applied + 2 * width;
  for (int64_t c = 0; c < s.channels; c += kLanes) {  // of the channels alone
    Floats mean, variance;
    merged(parts, count, s.pixels, width, c, mean, variance);
    store(means + c, mean), store(slopes + c, variance);
  }
  float* statistics = at.statistics + sample * 2 * width;
  std::fill_n(statistics, 2 * width, 0.0f);
  const auto size = static_cast<double>(s.size());
  for_groups(s, [&](int64_t first, int64_t last) {
    double mean = 0, variance = 0;
    for (int64_t c = first; c < last; c++) mean += means[c];
    mean /= size;
    for (int64_t c = first; c < last; c++) variance += slopes[c] + (means[c] - mean) * (means[c] - mean);
    const float inverse = 1.0f / std::sqrt(static_cast<float>(variance / size) + s.epsilon);
    for (int64_t c = first; c < last; c++) {
      statistics[c] = means[c] = static_cast<float>(mean), statistics[width + c] = inverse;
      slopes[c] = inverse * (at.gamma ? at.gamma[c] : 1), shifts[c] = at.beta ? at.beta[c] : 0;
    }
  });
}

template <bool kBf16>
void apply(const GroupNormSpec& s, const Forward& at, int64_t sample, int64_t begin, int64_t end, const float* applied) {
  using Number = typename Elements<kBf16>::Number;
  const int64_t width = s.width();
  for (int64_t pixel = begin; pixel < end; pixel += kBlock) {
    auto* y = static_cast<Number*>(at.y) + (sample * s.pixels + pixel) * s.channels;
    for_channels(s.channels,
                 Normalize<kBf16, kBf16, false>{pixels_of<kBf16>(s, at, sample, pixel), nullptr, y, std::min(kBlock, end - pixel),
                                                s.channels, applied, applied + width, applied + 2 * width});
  }
}

template <bool kBf16>
void measure_gradients(const GroupNormSpec& s, const Backward& at, int64_t sample, int64_t begin, int64_t end, float* vectors) {
  using Read = Gradients<kBf16, kBf16, false, false>;
  const float* mean = statistics_of(s, at, sample);
  for (int64_t pixel = begin; pixel < end; pixel += kBlock) {
    const auto* dy = static_cast<const typename Read::Y::Number*>(at.dy) + (sample * s.pixels + pixel) * s.channels;
    const Read read{pixels_of<kBf16>(s, at, sample, pixel), nullptr, dy, nullptr, mean, nullptr, nullptr};
    for_channels(s.channels, GradientSums<Read>{read, nullptr, std::min(kBlock, end - pixel), s.channels, vectors,
                                                vectors + s.width(), pixel == begin});
  }
}

// `applied`: a, b and t of dx = a * dy - b - t * (x - mean), for each channel.
void finish_gradients(const GroupNormSpec& s, const Backward& at, int64_t sample, const Part* parts, int count, float* applied,
                      double* totals) {
  const int64_t width = s.width();
  float *slopes = applied, *less = applied + width, *tilts = applied + 2 * width;
  for (int64_t c = 0; c < s.channels; c += kLanes) {
    Floats sum, product;
    add_sums(parts, count, width, c, sum, product);
    store(less + c, sum), store(tilts + c, product);
  }
  const float* inverses = statistics_of(s, at, sample) + width;
  const double elements = static_cast<double>(s.pixels) * static_cast<double>(s.size());
  for_groups(s, [&](int64_t first, int64_t last) {
    const double inverse = inverses[first];
    double sum = 0, product = 0;
    for (int64_t c = first; c < last; c++) {
      const double gamma = at.gamma ? at.gamma[c] : 1;
      sum += gamma * less[c], product += gamma * tilts[c];
      if (totals) totals[c] += inverse * tilts[c], totals[s.channels + c] += less[c];
      slopes[c] = static_cast<float>(inverse * gamma);
    }
    std::fill(less + first, less + last, static_cast<float>(inverse * sum / elements));
    std::fill(tilts + first, tilts + last, static_cast<float>(inverse * inverse * inverse * product / elements));
  });
}

// dx = slope * dy - less - tilt * (x - mean).
template <bool kBf16>
struct GroupGradient {
  using X = Elements<kBf16>;
  const typename X::Number *x, *dy;
  typename X::Number* dx;
  int64_t rows, channels;
  const float *mean, *slope, *less, *tilt;  // padded

  template <int kCount, bool kPartial>
  void run(int64_t c, Lanes last) const {
    Floats m[kCount], a[kCount], b[kCount], t[kCount];
    for (int v = 0; v < kCount; v++) {
      m[v] = load(mean + c + kLanes * v), a[v] = load(slope + c + kLanes * v);
      b[v] = load(less + c + kLanes * v), t[v] = load(tilt + c + kLanes * v);
    }
    for (int64_t r = 0; r < rows; r++) {
      for (int v = 0; v < kCount; v++) {
        const int64_t i = r * channels + c + kLanes * v;
        const Lanes present = lanes_of_vector<kCount, kPartial>(v, last);
        X::store(dx + i, present, fnma(X::load(x + i, present) - m[v], t[v], fms(X::load(dy + i, present), a[v], b[v])));
      }
    }
  }
};

template <bool kBf16>
void apply_gradients(const GroupNormSpec& s, const Backward& at, int64_t sample, int64_t begin, int64_t end,
                     const float* applied) {
  using Number = typename Elements<kBf16>::Number;
  const int64_t width = s.width();
  for (int64_t pixel = begin; pixel < end; pixel += kBlock) {
    const int64_t i = (sample * s.pixels + pixel) * s.channels;
    for_channels(s.channels, GroupGradient<kBf16>{pixels_of<kBf16>(s, at, sample, pixel), static_cast<const Number*>(at.dy) + i,
                                                  static_cast<Number*>(at.dx) + i, std::min(kBlock, end - pixel), s.channels,
                                                  statistics_of(s, at, sample), applied, applied + width, applied + 2 * width});
  }
}

template <bool kBf16>
constexpr Kernels kKernels = {measure<kBf16>,           finish,           apply<kBf16>,
                              measure_gradients<kBf16>, finish_gradients, apply_gradients<kBf16>};

Kernels kernels(bool is_bf16) { return is_bf16 ? kKernels<true> : kKernels<false>; }
