// Passes over matrices of rows and channels, for each instruction set: of batch_norm_kernels.h and group_norm_kernels.h.

// Sums of a block's rows, added to those of the rows before.
template <int kVectors>
inline void add_up(float* sums, const Floats (&block)[kVectors], bool is_first) {
  for (int v = 0; v < kVectors; v++) {
    float* sum = sums + kLanes * v;
    store(sum, is_first ? block[v] : load(sum) + block[v]);
  }
}

inline Floats where_finite(Floats value) { return where(less(abs(value), all(std::numeric_limits<float>::infinity())), value); }

template <bool kRectified>
inline Floats rectified(Floats value) {  // NaN stays: the second operand is the result then
  return kRectified ? max(zero(), value) : value;
}

// The gradient where the value was positive, otherwise 0.
inline Floats passed(Floats gradient, Floats value) { return where(greater(value, zero()), gradient); }

// Calls body.run<kVectors, kPartial>(first channel, lanes of its last vector) for all channels. Vectors are registers then.
template <class Body>
inline void for_channels(int64_t channels, const Body& body) {
  constexpr int64_t kMost = kLanes * kMaxVectors;
  int64_t c = 0;
  for (; c + kMost <= channels; c += kMost) body.template run<kMaxVectors, false>(c, first(kLanes));
  const int64_t left = channels - c;
  const Lanes last = first((left - 1) % kLanes + 1);
  switch ((left + kLanes - 1) / kLanes) {
    case 1:
      return body.template run<1, true>(c, last);
    case 2:
      return body.template run<2, true>(c, last);
    case 3:
      return body.template run<3, true>(c, last);
    case 4:
      return body.template run<4, true>(c, last);
    default:
      return;
  }
}

template <int kVectors, bool kPartial>
inline Lanes lanes_of_vector(int vector, Lanes last) {
  return kPartial && vector == kVectors - 1 ? last : first(kLanes);
}

// Sums of x less a shift, and of their squares, over some rows. `shift`, `sums`, `squares`: padded vectors. The shift is the mean
// of the first rows, so that nothing cancels; 0 where that is infinite, as then the mean must be.
template <bool kBf16>
struct Statistics {
  using X = Elements<kBf16>;
  const typename X::Number* x;
  int64_t rows, channels;
  float *shift, *sums, *squares;
  bool is_first;

  template <int kVectors, bool kPartial>
  void run(int64_t c, Lanes last) const {
    Floats k[kVectors], s[kVectors], q[kVectors];
    const auto at = [&](int64_t row, int v) {
      return X::load(x + row * channels + c + kLanes * v, lanes_of_vector<kVectors, kPartial>(v, last));
    };
    for (int v = 0; v < kVectors; v++) k[v] = s[v] = q[v] = zero();
    if (is_first) {
      for (int64_t r = 0; r < rows; r++) {
        for (int v = 0; v < kVectors; v++) k[v] = k[v] + at(r, v);
      }
      for (int v = 0; v < kVectors; v++) {
        k[v] = where_finite(k[v] * all(1.f / static_cast<float>(rows)));
        store(shift + c + kLanes * v, k[v]);
      }
    } else {
      for (int v = 0; v < kVectors; v++) k[v] = load(shift + c + kLanes * v);
    }
    for (int64_t r = 0; r < rows; r++) {
      for (int v = 0; v < kVectors; v++) {
        const Floats d = at(r, v) - k[v];
        s[v] = s[v] + d;
        q[v] = fma(d, d, q[v]);
      }
    }
    add_up<kVectors>(sums + c, s, is_first), add_up<kVectors>(squares + c, q, is_first);
  }
};

// y = (x - mean) * slope + beta + residual, rectified.
template <bool kXBf16, bool kYBf16, bool kRectified>
struct Normalize {
  using X = Elements<kXBf16>;
  using Y = Elements<kYBf16>;
  const typename X::Number* x;
  const typename Y::Number* residual;  // null: none
  typename Y::Number* y;
  int64_t rows, channels;
  const float *mean, *slope, *beta;  // padded

  template <int kVectors, bool kPartial>
  void run(int64_t c, Lanes last) const {
    Floats m[kVectors], a[kVectors], b[kVectors];
    for (int v = 0; v < kVectors; v++) {
      m[v] = load(mean + c + kLanes * v), a[v] = load(slope + c + kLanes * v);
      b[v] = load(beta + c + kLanes * v);
    }
    for (int64_t r = 0; r < rows; r++) {
      for (int v = 0; v < kVectors; v++) {
        const int64_t i = r * channels + c + kLanes * v;
        const Lanes present = lanes_of_vector<kVectors, kPartial>(v, last);
        Floats value = fma(X::load(x + i, present) - m[v], a[v], b[v]);
        if (residual) value = value + Y::load(residual + i, present);
        Y::store(y + i, present, rectified<kRectified>(value));
      }
    }
  }
};

// What both passes of the gradients read. The vectors are padded.
template <bool kXBf16, bool kYBf16, bool kRectified, bool kHasY>
struct Gradients {
  using X = Elements<kXBf16>;
  using Y = Elements<kYBf16>;
  const typename X::Number* x;
  const typename Y::Number *y, *dy, *more;  // null: none
  const float *mean, *slope, *beta;

  // The gradient to the sum before the ReLU; d: x - mean.
  Floats at(int64_t i, Lanes present, Floats d, int64_t c) const {
    Floats g = Y::load(dy + i, present);
    if (more) g = g + Y::load(more + i, present);
    if constexpr (!kRectified) return g;
    if constexpr (kHasY) return passed(g, Y::load(y + i, present));
    return passed(g, fma(d, load(slope + c), load(beta + c)));
  }
};

// Sums of the gradient and of it times x - mean; it is kept where asked for.
template <class Read>
struct GradientSums {
  using X = typename Read::X;
  using Y = typename Read::Y;
  Read read;
  typename Y::Number* kept;  // null: not kept
  int64_t rows, channels;
  float *sums, *products;  // padded
  bool is_first;

  template <int kVectors, bool kPartial>
  void run(int64_t c, Lanes last) const {
    Floats m[kVectors], s[kVectors], p[kVectors];
    for (int v = 0; v < kVectors; v++) {
      m[v] = load(read.mean + c + kLanes * v);
      s[v] = p[v] = zero();
    }
    for (int64_t r = 0; r < rows; r++) {
      for (int v = 0; v < kVectors; v++) {
        const int64_t i = r * channels + c + kLanes * v;
        const Lanes present = lanes_of_vector<kVectors, kPartial>(v, last);
        const Floats d = X::load(read.x + i, present) - m[v];
        Floats g = read.at(i, present, d, c + kLanes * v);
        if (kept) Y::store(kept + i, present, g), g = Y::rounded(g);  // so that what the second pass subtracts is its mean
        s[v] = s[v] + g;
        p[v] = fma(g, d, p[v]);
      }
    }
    add_up<kVectors>(sums + c, s, is_first), add_up<kVectors>(products + c, p, is_first);
  }
};

// Mean and biased variance of all rows from those of the parts.
inline void merged(const Part* parts, int count, int64_t rows, int64_t width, int64_t c, Floats& mean, Floats& variance) {
  const Floats infinity = all(std::numeric_limits<float>::infinity());
  const Floats share = all(1.f / static_cast<float>(rows));
  const auto mean_of = [&](const Part& part) {
    const Floats sum = load(part.vectors + width + c) * all(1.f / static_cast<float>(part.rows));
    return load(part.vectors + c) + sum;
  };
  mean = zero();
  for (int i = 0; i < count; i++) {
    if (parts[i].rows) mean = fma(mean_of(parts[i]), all(static_cast<float>(parts[i].rows) / static_cast<float>(rows)), mean);
  }
  if (count == 1) mean = mean_of(parts[0]);
  Floats total = zero();
  for (int i = 0; i < count; i++) {
    if (!parts[i].rows) continue;
    const auto n = static_cast<float>(parts[i].rows);
    const Floats sum = load(parts[i].vectors + width + c), squares = load(parts[i].vectors + 2 * width + c);
    const Floats apart = mean_of(parts[i]) - mean;
    Floats centred = fnma(sum * all(1.f / n), sum, squares);
    // squares that overflow leave the variance infinite where the mean is finite, and not NaN
    centred = select(both(equal(squares, infinity), less(abs(sum), infinity)), infinity, centred);
    centred = max(zero(), centred);  // of NaN and 0, NaN
    total = total + fma(apart * apart, all(n), centred);
  }
  variance = total * share;
}

inline void add_sums(const Part* parts, int count, int64_t width, int64_t c, Floats& sum, Floats& product) {
  sum = product = zero();
  for (int i = 0; i < count; i++) {
    if (!parts[i].rows) continue;
    sum = sum + load(parts[i].vectors + c);
    product = product + load(parts[i].vectors + width + c);
  }
}
