// What follows the sums of a product with packed weights, for each instruction set: headers of kernels include this.

// NaN stays NaN, as the second operand.
inline Floats bounded_above(float bound, Floats x) { return min(all(bound), x); }
inline Floats bounded_below(float bound, Floats x) { return max(all(bound), x); }

// x / 2 (1 + erf(x / sqrt 2)). The error function is a quotient of polynomials in x up to the bound where it rounds to 1.
inline Floats gelu(Floats x) {
  constexpr float bound = 3.7439211627767994f;
  const Floats v = bounded_above(bound, bounded_below(-bound, x * all(0.70710678f)));
  const Floats square = v * v;
  constexpr float over[] = {2.123732201653183e-06f, 2.861979592125863e-04f, 3.658048342913389e-03f,
                            5.243302136659622e-02f, 1.8741607666015625e-01f, 1.1283791542053223f};
  constexpr float under[] = {3.8918573409318924e-05f, 1.1432960163801908e-03f, 1.4752088114619255e-02f,
                             1.1294567584991455e-01f, 4.9942579865455627e-01f, 1.0f};
  Floats p = all(over[0]), q = all(under[0]);
  for (int i = 1; i < 6; i++) {
    p = fma(p, square, all(over[i]));
    q = fma(q, square, all(under[i]));
  }
  Floats erf = v * p / q;  // 1 - 2^-23 at the bound, which a large x would magnify
  erf = select(greater_or_equal(v, all(bound)), all(1), erf);
  erf = select(less_or_equal(v, all(-bound)), all(-1), erf);
  const Floats half = x * all(0.5f);
  return fma(half, erf, half);
}

template <Activation kActivation>
Floats activated(float high, Floats x) {
  if constexpr (kActivation == Activation::kRelu) return bounded_below(0, x);
  if constexpr (kActivation == Activation::kClip) return bounded_above(high, bounded_below(0, x));
  if constexpr (kActivation == Activation::kGelu) return gelu(x);
  return x;
}

// use(activation), with a constant of that type.
template <class Use>
auto with_constant(Activation activation, const Use& use) {
  switch (activation) {
    case Activation::kRelu: return use(std::integral_constant<Activation, Activation::kRelu>());
    case Activation::kClip: return use(std::integral_constant<Activation, Activation::kClip>());
    case Activation::kGelu: return use(std::integral_constant<Activation, Activation::kGelu>());
    case Activation::kNone: break;
  }
  return use(std::integral_constant<Activation, Activation::kNone>());
}

inline Floats activated(const ProductSpec& s, Floats x) {
  x = with_constant(s.activation, [&](auto activation) { return activated<decltype(activation)::value>(s.high, x); });
  return s.factor == 1 && s.shift == 0 ? x : fma(x, all(s.factor), all(s.shift));
}

template <Activation kActivation, bool kHasResidual>
void finish_as(const Epilogue& after, const float* sums, int64_t step, int64_t row, int64_t rows, int64_t column, int64_t end) {
  const int64_t columns = after.spec.channels;
  const float factor = after.spec.factor, shift = after.spec.shift, high = after.spec.high;
  const bool is_scaled = factor != 1 || shift != 0;
  for (; column < end; column += kLanes, sums += kLanes) {
    const Lanes present = first(end - column);
    const bool is_whole = end - column >= kLanes;
    const Floats offset = load(after.offset + column, present);
    const float* residual = kHasResidual ? after.residual + row * columns + column : nullptr;
    float* to = after.result + row * columns + column;
    for (int64_t r = 0; r < rows; r++, to += columns) {
      Floats x = (is_whole ? load(sums + r * step) : load(sums + r * step, present)) + offset;
      if (kHasResidual) x = x + (is_whole ? load(residual) : load(residual, present)), residual += columns;
      x = activated<kActivation>(high, x);
      if (is_scaled) x = fma(x, all(factor), all(shift));
      is_whole ? store(to, x) : store(to, present, x);
    }
  }
}

// Rows of the result from `row` on, and columns from `column` to `end`, of whole vectors of sums, rows of which lie `step` apart.
inline void finish(const Epilogue& after, const float* sums, int64_t step, int64_t row, int64_t rows, int64_t column, int64_t end) {
  with_constant(after.spec.activation, [&](auto activation) {
    constexpr Activation kActivation = decltype(activation)::value;
    after.residual ? finish_as<kActivation, true>(after, sums, step, row, rows, column, end)
                   : finish_as<kActivation, false>(after, sums, step, row, rows, column, end);
  });
}
