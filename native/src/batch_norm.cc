// Batch normalization of training steps, and what follows it: per channel the mean and the biased variance, then
//   y = (x - mean) * gamma / sqrt(variance + epsilon) + beta + residual, rectified
// in two passes over x, where XLA makes five; and its gradients in two passes more. Channels last: arrays are matrices of rows and
// channels. AVX-512 only. Statistics and sums are float32. The specs are written by oneflow/compiler/batch_norm_kernels.py.
//
//   batch_norm       x, [gamma], [beta], moving mean, moving variance, [residual]
//                    -> y, new moving mean, new moving variance, statistics (mean, then 1 / sqrt(variance + epsilon))
//   batch_norm_grad  x, [gamma], [beta], statistics, [y], one or two gradients to y, which are added
//                    -> gradient to x, [gradient to the residual], gradients to gamma, then to beta
//
// Where several devices have the rows, each pass is a call, and what the first one of each device finds is sent to all (exchange.cc,
// or XLA's collectives between processes):
//
//   batch_norm       x -> mean and variance of this device's rows
//                    x, those of all devices, [gamma], ... as above
//   batch_norm_grad  x, [gamma], [beta], statistics, [y], gradients to y -> [gradient to the residual], sums
//                    x, [gamma], [beta], statistics, sums of all devices' rows, [y], gradients to y
//                    -> gradient to x, gradients to gamma, then to beta
//
// Threads share the rows. A thread takes blocks of rows, and of each block some channels at a time, whose sums are in registers.
#include <immintrin.h>

#include <algorithm>
#include <limits>

#include "elements.h"
#include "operation.h"

namespace native {

namespace {

constexpr int64_t kBlock = 32;  // rows, whose sums are added up before they are added to those of the rows before
constexpr int kMaxVectors = 4;  // of 16 channels, at a time

int64_t padded(int64_t channels) { return (channels + 15) / 16 * 16; }

enum class Passes { kBoth = 0, kFirst = 1, kSecond = 2 };

// What both calls have in common.
struct NormSpec {
  explicit NormSpec(SpecReader& reader) {
    constexpr int64_t kMax = int64_t{1} << 40;
    x_type = reader.next_dtype(), y_type = reader.next_dtype();
    rows = reader.next(1, kMax), channels = reader.next(1, int64_t{1} << 24);
    if (static_cast<double>(rows) * static_cast<double>(channels) > static_cast<double>(kMax)) {
      throw std::invalid_argument("the array is too large");
    }
    has_gamma = reader.next_bool(), has_beta = reader.next_bool();
    is_rectified = reader.next_bool();
    passes = static_cast<Passes>(reader.next(0, 2));
    devices = reader.next(1, passes == Passes::kBoth ? 1 : int64_t{1} << 16);
  }

  int64_t all_rows() const { return rows * devices; }
  size_t vector() const { return static_cast<size_t>(channels) * sizeof(float); }  // bytes
  size_t array(dt type) const { return static_cast<size_t>(rows * channels) * bytes_of(type); }

  dt x_type, y_type;  // of x and its gradient; of y, residual and their gradients
  int64_t rows, channels;
  Passes passes;
  int64_t devices;  // each of which has as many rows
  bool has_gamma, has_beta, is_rectified;
};

struct ForwardSpec : NormSpec {
  explicit ForwardSpec(SpecReader reader) : NormSpec(reader) {
    has_residual = reader.next_bool();
    epsilon = reader.next_float(), momentum = reader.next_float(), rest = reader.next_float();
    reader.finish();
  }

  bool has_residual;
  float epsilon, momentum, rest;  // moving statistics become momentum * old + rest * new
};

struct BackwardSpec : NormSpec {
  explicit BackwardSpec(SpecReader reader) : NormSpec(reader) {
    has_y = reader.next_bool(), keeps = reader.next_bool();
    if (keeps && passes == Passes::kSecond) throw std::invalid_argument("the second pass keeps nothing");
    gradients = static_cast<int>(reader.next(1, 2));
    reader.finish();
  }

  bool has_y;     // it says where the result was positive; otherwise x does, and there was no residual
  bool keeps;     // the gradient to the sum before the ReLU is a result, that to the residual
  int gradients;  // to y
};

// --- what follows is compiled for AVX-512; it is called only where the CPU has that

#include "avx512_begin.h"

inline __m512 all(float value) { return _mm512_set1_ps(value); }

// Sums of a block's rows, added to those of the rows before.
template <int kVectors>
inline void add_up(float* sums, const __m512 (&block)[kVectors], bool is_first) {
  for (int v = 0; v < kVectors; v++) {
    float* sum = sums + 16 * v;
    _mm512_storeu_ps(sum, is_first ? block[v] : _mm512_add_ps(_mm512_loadu_ps(sum), block[v]));
  }
}

inline __m512 where_finite(__m512 value) {
  const auto finite = _mm512_cmp_ps_mask(_mm512_abs_ps(value), all(std::numeric_limits<float>::infinity()), _CMP_LT_OQ);
  return _mm512_maskz_mov_ps(finite, value);
}

template <bool kRectified>
inline __m512 rectified(__m512 value) {  // NaN stays: the second operand is the result then
  return kRectified ? _mm512_max_ps(_mm512_setzero_ps(), value) : value;
}

// The gradient where the value was positive, otherwise 0.
inline __m512 passed(__m512 gradient, __m512 value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_GT_OQ), gradient);
}

// Calls body.run<kVectors, kPartial>(first channel, mask of its last vector) for all channels. Vectors are registers then.
template <class Body>
inline void for_channels(int64_t channels, const Body& body) {
  constexpr int64_t kMost = 16 * kMaxVectors;
  int64_t c = 0;
  for (; c + kMost <= channels; c += kMost) body.template run<kMaxVectors, false>(c, 0xffff);
  const int64_t left = channels - c;
  const auto mask = static_cast<__mmask16>(left % 16 ? (1u << left % 16) - 1 : 0xffff);
  switch ((left + 15) / 16) {
    case 1: return body.template run<1, true>(c, mask);
    case 2: return body.template run<2, true>(c, mask);
    case 3: return body.template run<3, true>(c, mask);
    case 4: return body.template run<4, true>(c, mask);
    default: return;
  }
}

template <int kVectors, bool kPartial>
inline __mmask16 mask_of(int vector, __mmask16 last) {
  return kPartial && vector == kVectors - 1 ? last : __mmask16{0xffff};
}

// Sums of x less a shift, and of their squares, over some rows. `shift`, `sums`, `squares`: padded vectors. The shift is the mean of
// the first rows, so that nothing cancels; 0 where that is infinite, as then the mean must be.
template <bool kBf16>
struct Statistics {
  using X = Elements<kBf16>;
  const typename X::Number* x;
  int64_t rows, channels;
  float *shift, *sums, *squares;
  bool is_first;

  template <int kVectors, bool kPartial>
  void run(int64_t c, __mmask16 last) const {
    __m512 k[kVectors], s[kVectors], q[kVectors];
    const auto at = [&](int64_t row, int v) {
      return X::load(x + row * channels + c + 16 * v, mask_of<kVectors, kPartial>(v, last));
    };
    for (int v = 0; v < kVectors; v++) k[v] = s[v] = q[v] = _mm512_setzero_ps();
    if (is_first) {
      for (int64_t r = 0; r < rows; r++) {
        for (int v = 0; v < kVectors; v++) k[v] = _mm512_add_ps(k[v], at(r, v));
      }
      for (int v = 0; v < kVectors; v++) {
        k[v] = where_finite(_mm512_mul_ps(k[v], all(1.f / static_cast<float>(rows))));
        _mm512_storeu_ps(shift + c + 16 * v, k[v]);
      }
    } else {
      for (int v = 0; v < kVectors; v++) k[v] = _mm512_loadu_ps(shift + c + 16 * v);
    }
    for (int64_t r = 0; r < rows; r++) {
      for (int v = 0; v < kVectors; v++) {
        const __m512 d = _mm512_sub_ps(at(r, v), k[v]);
        s[v] = _mm512_add_ps(s[v], d);
        q[v] = _mm512_fmadd_ps(d, d, q[v]);
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
  void run(int64_t c, __mmask16 last) const {
    __m512 m[kVectors], a[kVectors], b[kVectors];
    for (int v = 0; v < kVectors; v++) {
      m[v] = _mm512_loadu_ps(mean + c + 16 * v), a[v] = _mm512_loadu_ps(slope + c + 16 * v);
      b[v] = _mm512_loadu_ps(beta + c + 16 * v);
    }
    for (int64_t r = 0; r < rows; r++) {
      for (int v = 0; v < kVectors; v++) {
        const int64_t i = r * channels + c + 16 * v;
        const __mmask16 mask = mask_of<kVectors, kPartial>(v, last);
        __m512 value = _mm512_fmadd_ps(_mm512_sub_ps(X::load(x + i, mask), m[v]), a[v], b[v]);
        if (residual) value = _mm512_add_ps(value, Y::load(residual + i, mask));
        Y::store(y + i, mask, rectified<kRectified>(value));
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
  __m512 at(int64_t i, __mmask16 mask, __m512 d, int64_t c) const {
    __m512 g = Y::load(dy + i, mask);
    if (more) g = _mm512_add_ps(g, Y::load(more + i, mask));
    if constexpr (!kRectified) return g;
    if constexpr (kHasY) return passed(g, Y::load(y + i, mask));
    return passed(g, _mm512_fmadd_ps(d, _mm512_loadu_ps(slope + c), _mm512_loadu_ps(beta + c)));
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
  void run(int64_t c, __mmask16 last) const {
    __m512 m[kVectors], s[kVectors], p[kVectors];
    for (int v = 0; v < kVectors; v++) {
      m[v] = _mm512_loadu_ps(read.mean + c + 16 * v);
      s[v] = p[v] = _mm512_setzero_ps();
    }
    for (int64_t r = 0; r < rows; r++) {
      for (int v = 0; v < kVectors; v++) {
        const int64_t i = r * channels + c + 16 * v;
        const __mmask16 mask = mask_of<kVectors, kPartial>(v, last);
        const __m512 d = _mm512_sub_ps(X::load(read.x + i, mask), m[v]);
        __m512 g = read.at(i, mask, d, c + 16 * v);
        if (kept) Y::store(kept + i, mask, g), g = Y::rounded(g);  // so that what the second pass subtracts is its mean
        s[v] = _mm512_add_ps(s[v], g);
        p[v] = _mm512_fmadd_ps(g, d, p[v]);
      }
    }
    add_up<kVectors>(sums + c, s, is_first), add_up<kVectors>(products + c, p, is_first);
  }
};

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
  void run(int64_t c, __mmask16 last) const {
    __m512 m[kVectors], a[kVectors], mine[kVectors], t[kVectors];
    for (int v = 0; v < kVectors; v++) {
      m[v] = _mm512_loadu_ps(read.mean + c + 16 * v), a[v] = _mm512_loadu_ps(read.slope + c + 16 * v);
      mine[v] = _mm512_loadu_ps(share + c + 16 * v), t[v] = _mm512_loadu_ps(tilt + c + 16 * v);
    }
    for (int64_t r = 0; r < rows; r++) {
      for (int v = 0; v < kVectors; v++) {
        const int64_t i = r * channels + c + 16 * v;
        const __mmask16 mask = mask_of<kVectors, kPartial>(v, last);
        const __m512 d = _mm512_sub_ps(X::load(read.x + i, mask), m[v]);
        const __m512 g = kept ? Y::load(kept + i, mask) : read.at(i, mask, d, c + 16 * v);
        X::store(dx + i, mask, _mm512_mul_ps(a[v], _mm512_fnmadd_ps(d, t[v], _mm512_sub_ps(g, mine[v]))));
      }
    }
  }
};

// A part of the rows with its sums: `vectors` are three padded ones, shift, sums, squares.
struct Part {
  int64_t rows;
  const float* vectors;
};

// Mean and biased variance of all rows from those of the parts.
inline void merged(const Part* parts, int count, int64_t rows, int64_t width, int64_t c, __m512& mean, __m512& variance) {
  const __m512 infinity = all(std::numeric_limits<float>::infinity()), zero = _mm512_setzero_ps();
  const __m512 share = all(1.f / static_cast<float>(rows));
  const auto mean_of = [&](const Part& part) {
    const __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(part.vectors + width + c), all(1.f / static_cast<float>(part.rows)));
    return _mm512_add_ps(_mm512_loadu_ps(part.vectors + c), sum);
  };
  mean = zero;
  for (int i = 0; i < count; i++) {
    if (parts[i].rows) mean = _mm512_fmadd_ps(mean_of(parts[i]), all(static_cast<float>(parts[i].rows) / static_cast<float>(rows)), mean);
  }
  if (count == 1) mean = mean_of(parts[0]);
  __m512 total = zero;
  for (int i = 0; i < count; i++) {
    if (!parts[i].rows) continue;
    const auto n = static_cast<float>(parts[i].rows);
    const __m512 sum = _mm512_loadu_ps(parts[i].vectors + width + c), squares = _mm512_loadu_ps(parts[i].vectors + 2 * width + c);
    const __m512 apart = _mm512_sub_ps(mean_of(parts[i]), mean);
    __m512 centred = _mm512_fnmadd_ps(_mm512_mul_ps(sum, all(1.f / n)), sum, squares);
    // squares that overflow leave the variance infinite where the mean is finite, and not NaN
    const auto overflows = _mm512_cmp_ps_mask(squares, infinity, _CMP_EQ_OQ);
    centred = _mm512_mask_mov_ps(centred, _mm512_mask_cmp_ps_mask(overflows, _mm512_abs_ps(sum), infinity, _CMP_LT_OQ), infinity);
    centred = _mm512_max_ps(zero, centred);  // of NaN and 0, NaN
    total = _mm512_add_ps(total, _mm512_fmadd_ps(_mm512_mul_ps(apart, apart), all(n), centred));
  }
  variance = _mm512_mul_ps(total, share);
}

inline __m512 load_or(const float* data, int64_t c, __mmask16 mask, float otherwise) {
  return data ? _mm512_maskz_loadu_ps(mask, data + c) : all(otherwise);
}

struct ForwardVectors {
  const float *gamma, *beta, *moving_mean, *moving_variance;  // gamma, beta: null where there are none
  float *new_mean, *new_variance, *statistics;
  float *mean, *slope, *shift;  // padded
};

// Mean and variance of this device's rows.
void store_statistics(const ForwardSpec& spec, const Part* parts, int count, int64_t width, float* statistics) {
  for (int64_t c = 0; c < spec.channels; c += 16) {
    const __mmask16 mask = mask_at(c, spec.channels);
    __m512 mean, variance;
    merged(parts, count, spec.rows, width, c, mean, variance);
    _mm512_mask_storeu_ps(statistics + c, mask, mean);
    _mm512_mask_storeu_ps(statistics + spec.channels + c, mask, variance);
  }
}

// The vectors of a part from the mean and the variance of a device's rows.
void load_part(const ForwardSpec& spec, const float* statistics, int64_t width, float* vectors) {
  for (int64_t c = 0; c < spec.channels; c += 16) {
    const __mmask16 mask = mask_at(c, spec.channels);
    const __m512 variance = _mm512_maskz_loadu_ps(mask, statistics + spec.channels + c);
    _mm512_storeu_ps(vectors + c, _mm512_maskz_loadu_ps(mask, statistics + c));
    _mm512_storeu_ps(vectors + width + c, _mm512_setzero_ps());
    _mm512_storeu_ps(vectors + 2 * width + c, _mm512_mul_ps(variance, all(static_cast<float>(spec.rows))));
  }
}

void finish_statistics(const ForwardSpec& spec, const Part* parts, int count, int64_t width, const ForwardVectors& at) {
  for (int64_t c = 0; c < spec.channels; c += 16) {
    const __mmask16 mask = mask_at(c, spec.channels);
    __m512 mean, variance;
    merged(parts, count, spec.all_rows(), width, c, mean, variance);
    const __m512 inverse = _mm512_div_ps(all(1), _mm512_sqrt_ps(_mm512_add_ps(variance, all(spec.epsilon))));
    const auto moved = [&](const float* old, __m512 next) {
      return _mm512_add_ps(_mm512_mul_ps(_mm512_maskz_loadu_ps(mask, old + c), all(spec.momentum)), _mm512_mul_ps(next, all(spec.rest)));
    };
    _mm512_mask_storeu_ps(at.new_mean + c, mask, moved(at.moving_mean, mean));
    _mm512_mask_storeu_ps(at.new_variance + c, mask, moved(at.moving_variance, variance));
    _mm512_mask_storeu_ps(at.statistics + c, mask, mean);
    _mm512_mask_storeu_ps(at.statistics + spec.channels + c, mask, inverse);
    _mm512_storeu_ps(at.mean + c, mean);
    _mm512_storeu_ps(at.slope + c, _mm512_mul_ps(inverse, load_or(at.gamma, c, mask, 1)));
    _mm512_storeu_ps(at.shift + c, load_or(at.beta, c, mask, 0));
  }
}

struct BackwardVectors {
  const float *gamma, *beta, *statistics;  // gamma, beta: null where there are none
  float* results;
  float *mean, *slope, *shift, *share, *tilt;  // padded
};

void load_vectors(const BackwardSpec& spec, const BackwardVectors& at) {
  for (int64_t c = 0; c < spec.channels; c += 16) {
    const __mmask16 mask = mask_at(c, spec.channels);
    const __m512 inverse = _mm512_maskz_loadu_ps(mask, at.statistics + spec.channels + c);
    _mm512_storeu_ps(at.mean + c, _mm512_maskz_loadu_ps(mask, at.statistics + c));
    _mm512_storeu_ps(at.slope + c, _mm512_mul_ps(inverse, load_or(at.gamma, c, mask, 1)));
    _mm512_storeu_ps(at.shift + c, load_or(at.beta, c, mask, 0));
  }
}

// `vectors` of a part: the sums of the gradient, and of it times x - mean.
inline void add_sums(const Part* parts, int count, int64_t width, int64_t c, __m512& sum, __m512& product) {
  sum = product = _mm512_setzero_ps();
  for (int i = 0; i < count; i++) {
    if (!parts[i].rows) continue;
    sum = _mm512_add_ps(sum, _mm512_loadu_ps(parts[i].vectors + c));
    product = _mm512_add_ps(product, _mm512_loadu_ps(parts[i].vectors + width + c));
  }
}

void store_sums(const BackwardSpec& spec, const Part* parts, int count, int64_t width, float* sums) {
  for (int64_t c = 0; c < spec.channels; c += 16) {
    const __mmask16 mask = mask_at(c, spec.channels);
    __m512 sum, product;
    add_sums(parts, count, width, c, sum, product);
    _mm512_mask_storeu_ps(sums + c, mask, sum);
    _mm512_mask_storeu_ps(sums + spec.channels + c, mask, product);
  }
}

void finish_gradients(const BackwardSpec& spec, const Part* parts, int count, int64_t width, const BackwardVectors& at) {
  const __m512 share = all(1.f / static_cast<float>(spec.all_rows()));
  for (int64_t c = 0; c < spec.channels; c += 16) {
    const __mmask16 mask = mask_at(c, spec.channels);
    __m512 sum, product;
    add_sums(parts, count, width, c, sum, product);
    const __m512 inverse = _mm512_maskz_loadu_ps(mask, at.statistics + spec.channels + c), d_gamma = _mm512_mul_ps(product, inverse);
    _mm512_mask_storeu_ps(at.results + c, mask, d_gamma);
    _mm512_mask_storeu_ps(at.results + spec.channels + c, mask, sum);
    _mm512_storeu_ps(at.share + c, _mm512_mul_ps(sum, share));
    _mm512_storeu_ps(at.tilt + c, _mm512_mul_ps(inverse, _mm512_mul_ps(d_gamma, share)));
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

struct BackwardArrays {
  const void *x, *y, *dy, *more;
  void *dx, *kept;
};

// The sums of a part of the rows if `vectors` is not null, else the gradient to x.
template <bool kXBf16, bool kYBf16, bool kRectified, bool kHasY>
void differentiate(const BackwardSpec& spec, int64_t begin, int64_t end, const BackwardArrays& arrays, const BackwardVectors& at,
                   float* vectors) {
  using Read = Gradients<kXBf16, kYBf16, kRectified, kHasY>;
  using X = typename Read::X::Number;
  using Y = typename Read::Y::Number;
  for (int64_t row = begin; row < end; row += kBlock) {
    const int64_t first = row * spec.channels, rows = std::min(kBlock, end - row);
    const auto of = [&](const void* array) { return array ? static_cast<const Y*>(array) + first : nullptr; };
    Y* kept = arrays.kept ? static_cast<Y*>(arrays.kept) + first : nullptr;
    const Read read{static_cast<const X*>(arrays.x) + first, of(arrays.y), of(arrays.dy), of(arrays.more), at.mean, at.slope,
                    at.shift};
    if (vectors) {
      for_channels(spec.channels, GradientSums<Read>{read, kept, rows, spec.channels, vectors, vectors + padded(spec.channels),
                                                     row == begin});
    } else {
      X* dx = static_cast<X*>(arrays.dx) + first;
      for_channels(spec.channels, InputGradient<Read>{read, kept, dx, rows, spec.channels, at.share, at.tilt});
    }
  }
}

#include "avx512_end.h"

// --- end of what is compiled for AVX-512

// Calls body(x is bfloat16, y is bfloat16, the result is rectified), each a constant type.
template <class Body>
void specialized(const NormSpec& spec, const Body& body) {
  const auto rectified = [&](auto x, auto y) {
    spec.is_rectified ? body(x, y, std::true_type()) : body(x, y, std::false_type());
  };
  const auto result = [&](auto x) { spec.y_type == dt::bf16 ? rectified(x, std::true_type()) : rectified(x, std::false_type()); };
  spec.x_type == dt::bf16 ? result(std::true_type()) : result(std::false_type());
}

template <class Spec, int kPartVectors, int kSharedVectors>
class NormBase : public Operation {
 public:
  NormBase(const Spec& spec, const thread_pool::Settings& settings) : s_(spec), width_(padded(spec.channels)) {
    check_avx512(s_.x_type == dt::bf16 || s_.y_type == dt::bf16);
    constexpr double kFlopsPerElement = 32;  // floating point operations that take as long as normalizing one
    threads_ = settings.threads_for(kFlopsPerElement * static_cast<double>(s_.rows) * static_cast<double>(s_.channels));
    const auto parts = s_.passes == Passes::kSecond ? static_cast<size_t>(s_.devices) : static_cast<size_t>(threads_);
    scratch_size_ = parts * aligned(kPartVectors * vector()) + kSharedVectors * aligned(vector());
  }

  std::string name() const override {
    return s_.x_type == dt::bf16 || s_.y_type == dt::bf16 ? "two passes:avx512_core_bf16" : "two passes:avx512_core";
  }

 protected:
  size_t vector() const { return static_cast<size_t>(width_) * sizeof(float); }
  float* take(Scratch& scratch) const { return reinterpret_cast<float*>(scratch.take(vector())); }

  // The sums of all rows: measure(begin, end, vectors) for each thread's part of them.
  template <class Measure>
  std::vector<Part> parts(Scratch& scratch, const Measure& measure) const {
    std::vector<float*> memory(static_cast<size_t>(threads_));
    for (auto& each : memory) each = reinterpret_cast<float*>(scratch.take(kPartVectors * vector()));
    std::vector<Part> found(memory.size());
    thread_pool::parallel_for(threads_, threads_, [&](int64_t first, int64_t last) {
      for (int64_t thread = first; thread < last; thread++) {
        const int64_t begin = s_.rows * thread / threads_, end = s_.rows * (thread + 1) / threads_;
        const auto i = static_cast<size_t>(thread);
        found[i] = {end - begin, memory[i]};
        measure(begin, end, memory[i]);
      }
    });
    return found;
  }

  Spec s_;
  int64_t width_;  // of padded vectors
};

class BatchNorm final : public NormBase<ForwardSpec, 3, 3> {
 public:
  BatchNorm(const ForwardSpec& spec, const thread_pool::Settings& settings) : NormBase(spec, settings) {
    operand_bytes_.push_back(s_.array(s_.x_type));
    if (s_.passes == Passes::kFirst) {
      operand_bytes_.push_back(2 * s_.vector());
      return;
    }
    if (s_.passes == Passes::kSecond) operand_bytes_.push_back(static_cast<size_t>(2 * s_.devices) * s_.vector());
    operand_bytes_.insert(operand_bytes_.end(), static_cast<size_t>(2 + s_.has_gamma + s_.has_beta), s_.vector());
    if (s_.has_residual) operand_bytes_.push_back(s_.array(s_.y_type));
    operand_bytes_.insert(operand_bytes_.end(), {s_.array(s_.y_type), s_.vector(), s_.vector(), 2 * s_.vector()});
  }

  void run(void* const* operands, Scratch& scratch) const override {
    const auto next = [&] { return *operands++; };
    const auto next_vector = [&] { return static_cast<float*>(next()); };
    const void* x = next();
    const float* others = s_.passes == Passes::kSecond ? next_vector() : nullptr;
    const auto found = others ? parts_of(others, scratch) : parts(scratch, [&](int64_t begin, int64_t end, float* vectors) {
      s_.x_type == dt::bf16 ? measure<true>(x, begin, end, s_.channels, vectors)
                            : measure<false>(x, begin, end, s_.channels, vectors);
    });
    const auto count = static_cast<int>(found.size());
    if (s_.passes == Passes::kFirst) return store_statistics(s_, found.data(), count, width_, next_vector());
    ForwardVectors at{};
    at.gamma = s_.has_gamma ? next_vector() : nullptr, at.beta = s_.has_beta ? next_vector() : nullptr;
    at.moving_mean = next_vector(), at.moving_variance = next_vector();
    const void* residual = s_.has_residual ? next() : nullptr;
    void* y = next();
    at.new_mean = next_vector(), at.new_variance = next_vector(), at.statistics = next_vector();
    at.mean = take(scratch), at.slope = take(scratch), at.shift = take(scratch);
    finish_statistics(s_, found.data(), count, width_, at);
    specialized(s_, [&](auto x_bf16, auto y_bf16, auto rectified) {
      thread_pool::parallel_for(s_.rows, threads_, [&](int64_t begin, int64_t end) {
        normalize<decltype(x_bf16)::value, decltype(y_bf16)::value, decltype(rectified)::value>(s_, begin, end, x, residual, y, at);
      });
    });
  }

 private:
  // The rows of each device as a part.
  std::vector<Part> parts_of(const float* statistics, Scratch& scratch) const {
    std::vector<Part> found;
    for (int64_t i = 0; i < s_.devices; i++) {
      auto* vectors = reinterpret_cast<float*>(scratch.take(3 * vector()));
      load_part(s_, statistics + 2 * i * s_.channels, width_, vectors);
      found.push_back({s_.rows, vectors});
    }
    return found;
  }
};

class BatchNormGrad final : public NormBase<BackwardSpec, 2, 5> {
 public:
  BatchNormGrad(const BackwardSpec& spec, const thread_pool::Settings& settings) : NormBase(spec, settings) {
    operand_bytes_.push_back(s_.array(s_.x_type));
    operand_bytes_.insert(operand_bytes_.end(), static_cast<size_t>(s_.has_gamma + s_.has_beta), s_.vector());
    operand_bytes_.insert(operand_bytes_.end(), s_.passes == Passes::kSecond ? 2 : 1, 2 * s_.vector());
    operand_bytes_.insert(operand_bytes_.end(), static_cast<size_t>(s_.has_y + s_.gradients), s_.array(s_.y_type));
    if (s_.passes != Passes::kFirst) operand_bytes_.push_back(s_.array(s_.x_type));
    if (s_.keeps) operand_bytes_.push_back(s_.array(s_.y_type));
    operand_bytes_.push_back(2 * s_.vector());
  }

  void run(void* const* operands, Scratch& scratch) const override {
    const auto next = [&] { return *operands++; };
    const auto next_vector = [&] { return static_cast<float*>(next()); };
    BackwardArrays arrays{};
    BackwardVectors at{};
    arrays.x = next();
    at.gamma = s_.has_gamma ? next_vector() : nullptr, at.beta = s_.has_beta ? next_vector() : nullptr;
    at.statistics = next_vector();
    const float* others = s_.passes == Passes::kSecond ? next_vector() : nullptr;
    arrays.y = s_.has_y ? next() : nullptr;
    arrays.dy = next(), arrays.more = s_.gradients == 2 ? next() : nullptr;
    arrays.dx = s_.passes == Passes::kFirst ? nullptr : next();
    arrays.kept = s_.keeps ? next() : nullptr;
    at.results = next_vector();
    for (float** each : {&at.mean, &at.slope, &at.shift, &at.share, &at.tilt}) *each = take(scratch);
    load_vectors(s_, at);
    specialized(s_, [&](auto x_bf16, auto y_bf16, auto rectified) {
      constexpr bool kX = decltype(x_bf16)::value, kY = decltype(y_bf16)::value;
      constexpr bool kRectified = decltype(rectified)::value;
      const auto pass = s_.has_y ? differentiate<kX, kY, kRectified, true> : differentiate<kX, kY, kRectified, false>;
      const auto found = others ? part_of(others, scratch) : parts(scratch, [&](int64_t begin, int64_t end, float* vectors) {
        pass(s_, begin, end, arrays, at, vectors);
      });
      const auto count = static_cast<int>(found.size());
      if (s_.passes == Passes::kFirst) return store_sums(s_, found.data(), count, width_, at.results);
      finish_gradients(s_, found.data(), count, width_, at);
      thread_pool::parallel_for(s_.rows, threads_, [&](int64_t begin, int64_t end) {
        pass(s_, begin, end, arrays, at, nullptr);
      });
    });
  }

 private:
  // The rows of all devices as one part.
  std::vector<Part> part_of(const float* sums, Scratch& scratch) const {
    auto* vectors = reinterpret_cast<float*>(scratch.take(2 * vector()));
    for (int64_t i = 0; i < 2; i++) std::copy_n(sums + i * s_.channels, s_.channels, vectors + i * width_);
    return {{s_.all_rows(), vectors}};
  }
};

}  // namespace

std::unique_ptr<Operation> make_batch_norm(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<BatchNorm>(ForwardSpec(reader), settings);
}

std::unique_ptr<Operation> make_batch_norm_grad(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<BatchNormGrad>(BackwardSpec(reader), settings);
}

}  // namespace native
