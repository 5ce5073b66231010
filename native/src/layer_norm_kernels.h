// Of layer_norm.cc, for each instruction set (each_isa.h).

// Calls body(column, the lanes whose columns exist, the number of an accumulator) for all columns of a row.
template <class Body>
inline void for_columns(int64_t width, const Body& body) {
  constexpr int64_t kMany = 4 * kLanes;
  const Lanes every = first(kLanes);
  int64_t column = 0;
  for (; column + kMany <= width; column += kMany) {
    for (int i = 0; i < 4; i++) body(column + i * kLanes, every, i);
  }
  for (int i = 0; column < width; column += kLanes, i++) body(column, first(width - column), i);
}

// Calls body(the first column, how many there are) for blocks of columns.
template <class Body>
inline void for_blocks(int64_t width, const Body& body) {
  for (int64_t begin = 0; begin < width; begin += kColumns) body(begin, std::min(kColumns, width - begin));
}

// Calls body(its first column, its element of gamma and beta) for the spans of a row.
template <class Body>
inline void for_spans(const LayerNormSpec& s, int64_t row, const Body& body) {
  int64_t parameter = row * (s.width / s.span) % s.parameters;
  for (int64_t begin = 0; begin < s.width; begin += s.span) {
    body(begin, parameter);
    if (++parameter == s.parameters) parameter = 0;
  }
}

inline float sum_of_four(const Floats (&x)[4]) { return sum((x[0] + x[1]) + (x[2] + x[3])); }

template <bool kBf16>
void normalize(const LayerNormSpec& s, const Forward& at, int64_t begin, int64_t end) {
  using X = Elements<kBf16>;
  using Number = typename X::Number;
  const auto width = static_cast<double>(s.width);
  for (int64_t row = begin; row < end; row++) {
    const auto* x = static_cast<const Number*>(at.x) + row * s.width;
    auto* y = static_cast<Number*>(at.y) + row * s.width;
    double total = 0, rest = 0, spread = 0;
    for_blocks(s.width, [&](int64_t first, int64_t count) {
      Floats sums[4] = {zero(), zero(), zero(), zero()};
      for_columns(count, [&](int64_t i, Lanes present, int j) { sums[j] = sums[j] + X::load(x + first + i, present); });
      total += sum_of_four(sums);
    });
    const Floats near = all(static_cast<float>(total / width));
    for_blocks(s.width, [&](int64_t first, int64_t count) {
      Floats sums[4] = {zero(), zero(), zero(), zero()}, squares[4] = {zero(), zero(), zero(), zero()};
      for_columns(count, [&](int64_t i, Lanes present, int j) {
        const Floats centred = where(present, X::load(x + first + i, present) - near);
        sums[j] = sums[j] + centred, squares[j] = fma(centred, centred, squares[j]);
      });
      rest += sum_of_four(sums), spread += sum_of_four(squares);
    });
    rest /= width;  // by which the mean was wrong: far from zero that counts
    const float mean = first_of(near) + static_cast<float>(rest);
    const auto variance = static_cast<float>(std::max(spread / width - rest * rest, 0.0));
    const float inverse = 1.0f / std::sqrt(variance + s.epsilon);
    const Floats middle = all(mean);
    const Floats scale = all(inverse);
    if (s.span == 1) {
      for_columns(s.width, [&](int64_t column, Lanes present, int) {
        Floats normal = (X::load(x + column, present) - middle) * scale;
        if (at.gamma) normal = normal * load(at.gamma + column, present);
        if (at.beta) normal = normal + load(at.beta + column, present);
        X::store(y + column, present, normal);
      });
    } else {
      for_spans(s, row, [&](int64_t begin, int64_t parameter) {
        const Floats gamma = all(at.gamma ? at.gamma[parameter] : 1), beta = all(at.beta ? at.beta[parameter] : 0);
        for_columns(s.span, [&](int64_t column, Lanes present, int) {
          const Floats normal = (X::load(x + begin + column, present) - middle) * scale;
          X::store(y + begin + column, present, fma(normal, gamma, beta));
        });
      });
    }
    at.statistics[2 * row] = mean, at.statistics[2 * row + 1] = inverse;
  }
}

// Of kCount rows from `row` on, each of whose columns has an element of gamma.
template <bool kBf16, int kCount>
void differentiate_columns(const LayerNormSpec& s, const Backward& at, int64_t row, float* sums) {
  using X = Elements<kBf16>;
  using Number = typename X::Number;
  const auto* x = static_cast<const Number*>(at.x) + row * s.width;
  const auto* dy = static_cast<const Number*>(at.dy) + row * s.width;
  auto* dx = static_cast<Number*>(at.dx) + row * s.width;
  Floats mean[kCount], scale[kCount];
  double slopes[kCount] = {}, tilts[kCount] = {};
  for (int r = 0; r < kCount; r++) mean[r] = all(at.statistics[2 * (row + r)]), scale[r] = all(at.statistics[2 * (row + r) + 1]);
  for_blocks(s.width, [&](int64_t begin, int64_t count) {
    Floats slope[kCount], tilt[kCount];
    for (int r = 0; r < kCount; r++) slope[r] = tilt[r] = zero();
    for_columns(count, [&](int64_t at_column, Lanes present, int) {
      const int64_t column = begin + at_column;
      const Floats gamma = at.gamma ? load(at.gamma + column, present) : all(1);
      Floats to_gamma = zero(), to_beta = zero();
      for (int r = 0; r < kCount; r++) {
        const int64_t i = r * s.width + column;
        const Floats gradient = X::load(dy + i, present), normal = where(present, (X::load(x + i, present) - mean[r]) * scale[r]);
        const Floats product = gradient * gamma;
        slope[r] = slope[r] + where(present, product), tilt[r] = fma(product, normal, tilt[r]);
        to_gamma = fma(gradient, normal, to_gamma), to_beta = to_beta + gradient;
      }
      if (sums) {
        store(sums + column, present, load(sums + column, present) + to_gamma);
        store(sums + s.width + column, present, load(sums + s.width + column, present) + to_beta);
      }
    });
    for (int r = 0; r < kCount; r++) slopes[r] += sum(slope[r]), tilts[r] += sum(tilt[r]);
  });
  const auto width = static_cast<double>(s.width);
  for (int r = 0; r < kCount; r++) {
    const Floats slope = all(static_cast<float>(slopes[r] / width)), tilt = all(static_cast<float>(tilts[r] / width));
    for_columns(s.width, [&](int64_t column, Lanes present, int) {
      const int64_t i = r * s.width + column;
      const Floats normal = (X::load(x + i, present) - mean[r]) * scale[r], gradient = X::load(dy + i, present);
      const Floats product = at.gamma ? gradient * load(at.gamma + column, present) : gradient;
      X::store(dx + i, present, (product - slope - normal * tilt) * scale[r]);
    });
  }
}

// Of one row, made of spans.
template <bool kBf16>
void differentiate_spans(const LayerNormSpec& s, const Backward& at, int64_t row, float* sums) {
  using X = Elements<kBf16>;
  using Number = typename X::Number;
  const auto* x = static_cast<const Number*>(at.x) + row * s.width;
  const auto* dy = static_cast<const Number*>(at.dy) + row * s.width;
  auto* dx = static_cast<Number*>(at.dx) + row * s.width;
  const Floats mean = all(at.statistics[2 * row]), scale = all(at.statistics[2 * row + 1]);
  const auto normal = [&](int64_t i, Lanes present) { return where(present, (X::load(x + i, present) - mean) * scale); };
  double slope = 0, tilt = 0;
  for_spans(s, row, [&](int64_t begin, int64_t parameter) {
    double to_beta = 0, to_gamma = 0;
    for_blocks(s.span, [&](int64_t first, int64_t count) {
      Floats plain[4] = {zero(), zero(), zero(), zero()}, tilted[4] = {zero(), zero(), zero(), zero()};
      for_columns(count, [&](int64_t column, Lanes present, int j) {
        const int64_t i = begin + first + column;
        const Floats gradient = X::load(dy + i, present);
        plain[j] = plain[j] + gradient, tilted[j] = fma(gradient, normal(i, present), tilted[j]);
      });
      to_beta += sum_of_four(plain), to_gamma += sum_of_four(tilted);
    });
    const double gamma = at.gamma ? at.gamma[parameter] : 1;
    slope += gamma * to_beta, tilt += gamma * to_gamma;
    if (sums) sums[parameter] += static_cast<float>(to_gamma), sums[s.parameters + parameter] += static_cast<float>(to_beta);
  });
  const auto width = static_cast<double>(s.width);
  const Floats less = all(static_cast<float>(slope / width)), tilted = all(static_cast<float>(tilt / width));
  for_spans(s, row, [&](int64_t begin, int64_t parameter) {
    const Floats gamma = all(at.gamma ? at.gamma[parameter] : 1);
    for_columns(s.span, [&](int64_t column, Lanes present, int) {
      const int64_t i = begin + column;
      const Floats rest = fms(X::load(dy + i, present), gamma, less);
      X::store(dx + i, present, fnma(normal(i, present), tilted, rest) * scale);
    });
  });
}

template <bool kBf16>
void differentiate(const LayerNormSpec& s, const Backward& at, int64_t begin, int64_t end, float* sums) {
  float* block = sums ? sums + 2 * s.parameters : nullptr;
  while (begin < end) {
    const int64_t last = std::min(end, begin + kBlock);
    if (block) std::fill_n(block, 2 * s.parameters, 0.0f);
    if (s.span > 1) {
      for (; begin < last; begin++) differentiate_spans<kBf16>(s, at, begin, block);
    }
    for (; begin + kRows <= last; begin += kRows) differentiate_columns<kBf16, kRows>(s, at, begin, block);
    for (; begin < last; begin++) differentiate_columns<kBf16, 1>(s, at, begin, block);
    if (block) std::transform(sums, sums + 2 * s.parameters, block, sums, std::plus<float>());
  }
}

Kernels kernels(bool is_bf16) {
  if (is_bf16) return {normalize<true>, differentiate<true>};
  return {normalize<false>, differentiate<false>};
}
