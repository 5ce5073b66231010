// Of cross_entropy.cc, for each instruction set (each_isa.h).

constexpr int64_t kMany = 4 * kLanes;

// The greatest element that is not NaN, and `least`.
template <bool kBf16>
float greatest(const typename Elements<kBf16>::Number* x, int64_t count, float least) {
  using X = Elements<kBf16>;
  const Floats none = all(least);
  Floats found[4] = {none, none, none, none};
  int64_t i = 0;
  for (; i + kMany <= count; i += kMany) {  // maxima keep their second operand where one is NaN
    for (int j = 0; j < 4; j++) found[j] = max(X::load(x + i + kLanes * j), found[j]);
  }
  for (; i < count; i += kLanes) found[0] = max(X::load(x + i, first(count - i), none), found[0]);
  return largest(max(max(found[0], found[1]), max(found[2], found[3])));
}

// The sum of exp(x - shift).
template <bool kBf16>
float sum_of_exponentials(const typename Elements<kBf16>::Number* x, int64_t count, float shift) {
  using X = Elements<kBf16>;
  const Floats by = all(shift), none = all(-kInfinity);
  Floats sums[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + kMany <= count; i += kMany) {
    for (int j = 0; j < 4; j++) sums[j] = sums[j] + exponential(X::load(x + i + kLanes * j) - by);
  }
  for (; i < count; i += kLanes) {
    const Lanes present = first(count - i);
    sums[0] = sums[0] + where(present, exponential(X::load(x + i, present, none) - by));
  }
  return sum(sums[0] + sums[1] + (sums[2] + sums[3]));
}

// log(sum(exp(x))). The logarithm is NaN where x has NaN or infinity, or minus infinity alone.
template <bool kBf16>
Normalizer normalizer(const typename Elements<kBf16>::Number* x, int64_t count) {
  float top = -kInfinity, total = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    const float before = top;
    top = greatest<kBf16>(x + begin, size, top);
    const float shift = top == -kInfinity ? 0 : top;  // -inf so far; a NaN is still to be seen
    if (top > before) total *= std::exp(before - shift);
    total += sum_of_exponentials<kBf16>(x + begin, size, shift);
  }
  return {top, top == -kInfinity ? std::numeric_limits<float>::quiet_NaN() : std::log(total)};
}

template <bool kBf16>
void losses(const CrossEntropySpec& s, void* const* operands, int64_t begin, int64_t end) {
  using X = Elements<kBf16>;
  const auto* logits = static_cast<const typename X::Number*>(operands[0]);
  const auto* labels = static_cast<const int32_t*>(operands[1]);
  for (int64_t row = begin; row < end; row++) {
    const auto* x = logits + row * s.classes;
    const Normalizer total = normalizer<kBf16>(x, s.classes);
    const int64_t label = labels[row];
    const bool known = label >= 0 && label < s.classes;
    const float loss = known ? total.log + (total.top - first_of(X::load(x + label, first(1)))) : s.largest;
    static_cast<float*>(operands[2])[row] = loss > s.largest ? s.largest : loss;  // NaN stays NaN
    static_cast<Normalizer*>(operands[3])[row] = total;
  }
}

template <bool kBf16>
void gradients(const CrossEntropySpec& s, void* const* operands, int64_t begin, int64_t end) {
  using X = Elements<kBf16>;
  using Number = typename X::Number;
  const auto* labels = static_cast<const int32_t*>(operands[1]);
  for (int64_t row = begin; row < end; row++) {
    const auto* x = static_cast<const Number*>(operands[0]) + row * s.classes;
    auto* result = static_cast<Number*>(operands[4]) + row * s.classes;
    const int64_t label = labels[row];
    const bool known = label >= 0 && label < s.classes;
    const Normalizer total = static_cast<const Normalizer*>(operands[2])[row];
    const Floats top = all(total.top), log = all(total.log);
    const auto probability = [&](Floats logit) { return exponential(logit - top - log); };
    const Floats dy = all(known ? static_cast<const float*>(operands[3])[row] : 0);
    const Floats at_label = known ? X::load(x + label, first(1), top) : top;  // before it is overwritten
    int64_t i = 0;
    for (; i + kLanes <= s.classes; i += kLanes) X::store(result + i, probability(X::load(x + i)) * dy);
    if (i < s.classes) {
      const Lanes present = first(s.classes - i);
      X::store(result + i, present, probability(X::load(x + i, present, top)) * dy);
    }
    if (known) X::store(result + label, first(1), (probability(at_label) - all(1)) * dy);
  }
}

Run* choose(bool is_grad, bool is_bf16) {
  if (is_bf16) return is_grad ? gradients<true> : losses<true>;
  return is_grad ? gradients<false> : losses<false>;
}
