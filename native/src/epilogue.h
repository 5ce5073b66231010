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

inline Floats activated(const ProductSpec& s, Floats x) {
  switch (s.activation) {
    case Activation::kRelu: x = bounded_below(0, x); break;
    case Activation::kClip: x = bounded_above(s.high, bounded_below(0, x)); break;
    case Activation::kGelu: x = gelu(x); break;
    case Activation::kNone: break;
  }
  return s.factor == 1 && s.shift == 0 ? x : fma(x, all(s.factor), all(s.shift));
}
