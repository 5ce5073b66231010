// Of update.cc, for each instruction set (each_isa.h).

inline Floats prepared(const UpdateSpec& spec, const Scalars& s, Floats x, Floats g) {
  for (int i = 0; i < spec.before; i++) g = g * all(s.before[i]);
  if (spec.l1 != 0 || spec.l2 != 0) {
    Floats penalty = zero();
    if (spec.l1 != 0) penalty = select(greater_or_equal(x, penalty), all(spec.l1), all(-spec.l1));
    if (spec.l2 != 0) penalty = fma(all(spec.l2), x, penalty);
    g = g + penalty;
  }
  for (int i = 0; i < spec.after; i++) g = g * all(s.after[i]);
  return g;
}

// What nobody reads soon is written past the caches, where it may be.
template <Copies copies>
inline void store_copy(float* to, Lanes present, Floats value) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(to) % sizeof(Floats) == 0;
  if (copies == Copies::kStreamed && is_all(present) && is_aligned) return stream(to, value);
  store(to, present, value);
}

template <Rule rule, Copies copies>
inline void update_vector(const UpdateSpec& spec, const Scalars& s, const Arrays& a, const Others& others, int64_t i,
                          Lanes present) {
  const auto write = [&](float* to, int result, Floats value) {
    store(to + i, present, value);
    if constexpr (copies != Copies::kNone) {
      for (int k = 0; k < others.count; k++) store_copy<copies>(others.results[result][k] + i, present, value);
    }
  };
  const Floats x = load(a.x + i, present), rate = all(s.rate);
  Floats g = load(a.g + i, present);
  if constexpr (copies != Copies::kNone) {
    for (int k = 0; k < others.count; k++) g = g + load(others.g[k] + i, present);
  }
  g = prepared(spec, s, x, g);
  Floats moved;
  if constexpr (rule == Rule::kSgd) {
    moved = fnma(rate, g, x);
  } else if constexpr (rule == Rule::kMomentum) {
    const Floats m = fms(all(spec.beta1), load(a.m + i, present), rate * g);
    moved = x + m;
    write(a.new_m, 1, m);
  } else {
    const Floats old_m = load(a.m + i, present);
    const Floats m = fma(all(spec.beta1), old_m, all(spec.gain1) * g);
    const Floats square = all(spec.gain2) * (g * g);
    const Floats v = fma(all(spec.beta2), load(a.v + i, present), square);
    const Floats root = fma(all(s.root), sqrt(v), all(spec.epsilon));
    moved = fnma(rate, m / root, x);
    write(a.new_m, 1, m);
    write(a.new_v, 2, v);
  }
  if (spec.decays) moved = fnma(all(s.decay), x, moved);
  write(a.new_x, 0, moved);
}

template <Rule rule, Copies copies>
void update(const UpdateSpec& spec, const Scalars& scalars, const Arrays& arrays, const Others& others, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) update_vector<rule, copies>(spec, scalars, arrays, others, i, first(kLanes));
  if (i < count) update_vector<rule, copies>(spec, scalars, arrays, others, i, first(count - i));
  if (copies == Copies::kStreamed) _mm_sfence();
}

template <Rule rule>
Run* choose(Copies copies) {
  switch (copies) {
    case Copies::kNone:
      return update<rule, Copies::kNone>;
    case Copies::kCached:
      return update<rule, Copies::kCached>;
    default:
      return update<rule, Copies::kStreamed>;
  }
}

Run* choose(Rule rule, Copies copies) {
  switch (rule) {
    case Rule::kSgd:
      return choose<Rule::kSgd>(copies);
    case Rule::kMomentum:
      return choose<Rule::kMomentum>(copies);
    default:
      return choose<Rule::kAdam>(copies);
  }
}
