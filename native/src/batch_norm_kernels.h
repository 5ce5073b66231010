// Of batch_norm.cc, for each instruction set (each_isa.h).

#include "channel_kernels.h"

// dx = slope * (g - share - (x - mean) * tilt).
template <class Read>
struct InputGradient {
  using X = typename Read::X;
  using Y = typename Read::Y;
  Read read;
  const typename Y::Number* kept;  // null: g is computed again
  typename X::Number* dx;
  int64_t rows, channels;
  const float *share, *tilt;  // padded

  template <int kVectors, bool kPartial>
  void run(int64_t c, Lanes last) const {
    Floats m[kVectors], a[kVectors], mine[kVectors], t[kVectors];
    for (int v = 0; v < kVectors; v++) {
      m[v] = load(read.mean + c + kLanes * v), a[v] = load(read.slope + c + kLanes * v);
      mine[v] = load(share + c + kLanes * v), t[v] = load(tilt + c + kLanes * v);
    }
    for (int64_t r = 0; r < rows; r++) {
      for (int v = 0; v < kVectors; v++) {
        const int64_t i = r * channels + c + kLanes * v;
        const Lanes present = lanes_of_vector<kVectors, kPartial>(v, last);
        const Floats d = X::load(read.x + i, present) - m[v];
        const Floats g = kept ? Y::load(kept + i, present) : read.at(i, present, d, c + kLanes * v);
        X::store(dx + i, present, a[v] * fnma(d, t[v], g - mine[v]));
      }
    }
  }
};

inline Floats load_or(const float* data, int64_t c, Lanes present, float otherwise) {
  return data ? load(data + c, present) : all(otherwise);
}

// Mean and variance of this device's rows.
void store_statistics(const ForwardSpec& spec, const Part* parts, int count, int64_t width, float* statistics) {
  for (int64_t c = 0; c < spec.channels; c += kLanes) {
    const Lanes present = first(spec.channels - c);
    Floats mean, variance;
    merged(parts, count, spec.rows, width, c, mean, variance);
    store(statistics + c, present, mean);
    store(statistics + spec.channels + c, present, variance);
  }
}

// The vectors of a part from the mean and the variance of a device's rows.
void load_part(const ForwardSpec& spec, const float* statistics, int64_t width, float* vectors) {
  for (int64_t c = 0; c < spec.channels; c += kLanes) {
    const Lanes present = first(spec.channels - c);
    const Floats variance = load(statistics + spec.channels + c, present);
    store(vectors + c, load(statistics + c, present));
    store(vectors + width + c, zero());
    store(vectors + 2 * width + c, variance * all(static_cast<float>(spec.rows)));
  }
}

void finish_statistics(const ForwardSpec& spec, const Part* parts, int count, int64_t width, const ForwardVectors& at) {
  for (int64_t c = 0; c < spec.channels; c += kLanes) {
    const Lanes present = first(spec.channels - c);
    Floats mean, variance;
    merged(parts, count, spec.all_rows(), width, c, mean, variance);
    const Floats inverse = all(1) / sqrt(variance + all(spec.epsilon));
    const auto moved = [&](const float* old, Floats next) {
      return load(old + c, present) * all(spec.momentum) + next * all(spec.rest);
    };
    store(at.new_mean + c, present, moved(at.moving_mean, mean));
    store(at.new_variance + c, present, moved(at.moving_variance, variance));
    store(at.statistics + c, present, mean);
    store(at.statistics + spec.channels + c, present, inverse);
    store(at.mean + c, mean);
    store(at.slope + c, inverse * load_or(at.gamma, c, present, 1));
    store(at.shift + c, load_or(at.beta, c, present, 0));
  }
}

void load_vectors(const BackwardSpec& spec, const BackwardVectors& at) {
  for (int64_t c = 0; c < spec.channels; c += kLanes) {
    const Lanes present = first(spec.channels - c);
    const Floats inverse = load(at.statistics + spec.channels + c, present);
    store(at.mean + c, load(at.statistics + c, present));
    store(at.slope + c, inverse * load_or(at.gamma, c, present, 1));
    store(at.shift + c, load_or(at.beta, c, present, 0));
  }
}

void store_sums(const BackwardSpec& spec, const Part* parts, int count, int64_t width, float* sums) {
  for (int64_t c = 0; c < spec.channels; c += kLanes) {
    const Lanes present = first(spec.channels - c);
    Floats sum, product;
    add_sums(parts, count, width, c, sum, product);
    store(sums + c, present, sum);
    store(sums + spec.channels + c, present, product);
  }
}

void finish_gradients(const BackwardSpec& spec, const Part* parts, int count, int64_t width, const BackwardVectors& at) {
  const Floats share = all(1.f / static_cast<float>(spec.all_rows()));
  for (int64_t c = 0; c < spec.channels; c += kLanes) {
    const Lanes present = first(spec.channels - c);
    Floats sum, product;
    add_sums(parts, count, width, c, sum, product);
    const Floats inverse = load(at.statistics + spec.channels + c, present), d_gamma = product * inverse;
    store(at.results + c, present, d_gamma);
    store(at.results + spec.channels + c, present, sum);
    store(at.share + c, sum * share);
    store(at.tilt + c, inverse * (d_gamma * share));
  }
}

template <bool kBf16>
void measure(const void* data, int64_t begin, int64_t end, int64_t channels, float* vectors) {
  const int64_t width = padded(channels);
  for (int64_t row = begin; row < end; row += kBlock) {
    const auto* x = static_cast<const typename Elements<kBf16>::Number*>(data) + row * channels;
    for_channels(channels, Statistics<kBf16>{x, std::min(kBlock, end - row), channels, vectors, vectors + width,
                                             vectors + 2 * width, row == begin});
  }
}

template <bool kXBf16, bool kYBf16, bool kRectified>
void normalize(const ForwardSpec& spec, int64_t begin, int64_t end, const void* x, const void* residual, void* y,
               const ForwardVectors& vectors) {
  using Body = Normalize<kXBf16, kYBf16, kRectified>;
  using Y = typename Body::Y::Number;
  for (int64_t row = begin; row < end; row += kBlock) {
    const int64_t at = row * spec.channels;
    for_channels(spec.channels, Body{static_cast<const typename Body::X::Number*>(x) + at,
                                     residual ? static_cast<const Y*>(residual) + at : nullptr, static_cast<Y*>(y) + at,
                                     std::min(kBlock, end - row), spec.channels, vectors.mean, vectors.slope, vectors.shift});
  }
}

// The sums of a part of the rows if `vectors` is not null, else the gradient to x.
template <bool kXBf16, bool kYBf16, bool kRectified, bool kHasY>
void differentiate(const BackwardSpec& spec, int64_t begin, int64_t end, const BackwardArrays& arrays, const BackwardVectors& at,
                   float* vectors) {
  using Read = Gradients<kXBf16, kYBf16, kRectified, kHasY>;
  using X = typename Read::X::Number;
  using Y = typename Read::Y::Number;
  for (int64_t row = begin; row < end; row += kBlock) {
    const int64_t begins = row * spec.channels, rows = std::min(kBlock, end - row);
    const auto of = [&](const void* array) { return array ? static_cast<const Y*>(array) + begins : nullptr; };
    Y* kept = arrays.kept ? static_cast<Y*>(arrays.kept) + begins : nullptr;
    const Read read{
        static_cast<const X*>(arrays.x) + begins, of(arrays.y), of(arrays.dy), of(arrays.more), at.mean, at.slope, at.shift};
    if (vectors) {
      for_channels(spec.channels,
                   GradientSums<Read>{read, kept, rows, spec.channels, vectors, vectors + padded(spec.channels), row == begin});
    } else {
      X* dx = static_cast<X*>(arrays.dx) + begins;
      for_channels(spec.channels, InputGradient<Read>{read, kept, dx, rows, spec.channels, at.share, at.tilt});
    }
  }
}

// What choose(x is bfloat16, y is bfloat16, the result is rectified) returns for constant types.
template <class Choose>
auto specialized(const NormSpec& spec, const Choose& choose) {
  const auto rectified = [&](auto x, auto y) {
    return spec.is_rectified ? choose(x, y, std::true_type()) : choose(x, y, std::false_type());
  };
  const auto result = [&](auto x) {
    return spec.y_type == dt::bf16 ? rectified(x, std::true_type()) : rectified(x, std::false_type());
  };
  return spec.x_type == dt::bf16 ? result(std::true_type()) : result(std::false_type());
}

Kernels::Measure* choose_measure(const ForwardSpec& spec) {
  return specialized(spec, [](auto x, auto, auto) { return measure<decltype(x)::value>; });
}

Kernels::Normalize* choose_normalize(const ForwardSpec& spec) {
  return specialized(spec, [](auto x, auto y, auto rectified) {
    return normalize<decltype(x)::value, decltype(y)::value, decltype(rectified)::value>;
  });
}

Kernels::Differentiate* choose_differentiate(const BackwardSpec& spec) {
  return specialized(spec, [&](auto x, auto y, auto rectified) {
    constexpr bool kX = decltype(x)::value, kY = decltype(y)::value, kRectified = decltype(rectified)::value;
    return spec.has_y ? differentiate<kX, kY, kRectified, true> : differentiate<kX, kY, kRectified, false>;
  });
}

constexpr Kernels kKernels = {choose_measure,    choose_normalize, choose_differentiate, store_statistics, load_part,
                              finish_statistics, load_vectors,     store_sums,           finish_gradients};
