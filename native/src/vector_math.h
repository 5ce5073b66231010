// Functions of vectors, for each instruction set: vectors_avx2.h and vectors_avx512.h include this in their namespaces.

// exp(x) for x <= 0, or little more; zero below kLeastExponent; NaN stays NaN.
inline Floats exponential(Floats x) {
  const Lanes counts = not_less(x, all(kLeastExponent));
  const Floats whole = nearest(x * all(1.44269504f));
  Floats rest = fnma(whole, all(0.693145752f), x);
  rest = fnma(whole, all(1.42860677e-6f), rest);
  Floats sum = fma(all(1.0f / 720), rest, all(1.0f / 120));
  for (const float next : {1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) sum = fma(sum, rest, all(next));
  return where(counts, scaled(sum, whole));
}

inline Floats sigmoid(Floats x) {
  const Floats power = exponential(zero() - abs(x));
  return select(less(x, zero()), power, all(1)) * reciprocal(all(1) + power);
}

// A quotient of polynomials, which Eigen and XLA take, too. NaN stays NaN.
inline Floats hyperbolic_tangent(Floats x) {
  const Lanes tiny = less(abs(x), all(0.0004f));
  const Floats bounded = max(all(-7.99881172180175781f), min(all(7.99881172180175781f), x));
  const Floats square = bounded * bounded;
  Floats above = fma(square, all(-2.76076847742355e-16f), all(2.00018790482477e-13f));
  for (const float next :
       {-8.60467152213735e-11f, 5.12229709037114e-08f, 1.48572235717979e-05f, 6.37261928875436e-04f, 4.89352455891786e-03f}) {
    above = fma(above, square, all(next));
  }
  Floats below = fma(square, all(1.19825839466702e-06f), all(1.18534705686654e-04f));
  for (const float next : {2.26843463243900e-03f, 4.89352518554385e-03f}) below = fma(below, square, all(next));
  return select(tiny, x, bounded * above * reciprocal(below));
}

// The slopes of both, where their values are y.
inline Floats slope_of_sigmoid(Floats y) { return fnma(y, y, y); }
inline Floats slope_of_tangent(Floats y) { return fnma(y, y, all(1)); }
