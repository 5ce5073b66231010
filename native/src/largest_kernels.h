// Of largest.cc, for each instruction set (each_isa.h).

template <bool kBf16>
int32_t place_of_nan(const typename Elements<kBf16>::Number* x, int64_t width) {
  for (int64_t i = 0; i < width; i += kLanes) {
    const unsigned found = bits_of(is_nan(Elements<kBf16>::load(x + i, first(width - i))));
    if (found != 0) return static_cast<int32_t>(i + __builtin_ctz(found));
  }
  return 0;
}

// The first place of the largest number. Each lane of two vectors keeps its own largest one, and where it was.
template <bool kBf16>
int32_t place_of_largest(const typename Elements<kBf16>::Number* x, int64_t width) {
  using X = Elements<kBf16>;
  const Floats least = all(-std::numeric_limits<float>::infinity());
  Floats top[2] = {least, least};
  Integers where_top[2] = {integers(0), integers(0)};
  Lanes nans = first(0);
  const auto take = [&](int j, Floats found, int64_t i) {
    const Lanes is_larger = greater(found, top[j]);
    nans = either(nans, is_nan(found));
    top[j] = select(is_larger, found, top[j]);
    where_top[j] = select(is_larger, integers(static_cast<int>(i)), where_top[j]);
  };
  int64_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes) {
    take(0, X::load(x + i), i);
    take(1, X::load(x + i + kLanes), i + kLanes);
  }
  for (; i < width; i += kLanes) take(0, X::load(x + i, first(width - i), least), i);
  if (any(nans)) return place_of_nan<kBf16>(x, width);
  const Floats largest_of_all = all(largest(max(top[0], top[1])));
  if (!any(greater(largest_of_all, least))) return 0;  // minus infinity alone
  int32_t found = std::numeric_limits<int32_t>::max();
  for (int j = 0; j < 2; j++) {
    int32_t places[kLanes];
    store_integers(places, where_top[j]);
    for (unsigned lanes = bits_of(equal(top[j], largest_of_all)); lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      found = std::min(found, places[lane] + lane);
    }
  }
  return found;
}

template <bool kBf16>
void places_of_largest(const LargestSpec& s, void* const* operands, int64_t begin, int64_t end) {
  const auto* x = static_cast<const typename Elements<kBf16>::Number*>(operands[0]);
  auto* places = static_cast<int32_t*>(operands[1]);
  for (int64_t row = begin; row < end; row++) places[row] = place_of_largest<kBf16>(x + row * s.width, s.width);
}

// What may be among the `count` largest numbers of a row: all that are not known to be smaller than as many others.
class Candidates {
 public:
  explicit Candidates(int64_t count) : count_(count), room_(std::min(kRoom, std::max(kLeastRoom, 4 * count))) {}

  // Of the numbers x, which begin at place i, those in these lanes.
  void add(Lanes lanes, Floats x, int64_t i) {
    float numbers[kLanes];
    store(numbers, x);
    for (unsigned bits = bits_of(lanes); bits != 0; bits &= bits - 1) {
      const int lane = __builtin_ctz(bits);
      found_[size_++] = ranked(numbers[lane], i + lane);
    }
    if (size_ > room_ - kLanes) reduce();
  }

  bool is_bounded() const { return is_bounded_; }

  // Later ones have to be larger. NaN where none is.
  float bound() const { return bound_; }

  // Writes the places. There have been `count` numbers.
  void finish(int32_t* places) { write_places(found_, count_, size_, places); }

 private:
  void reduce() {
    bound_ = keep_largest(found_, count_, size_);
    size_ = count_, is_bounded_ = true;
  }

  const int64_t count_, room_;
  int64_t size_ = 0;
  bool is_bounded_ = false;
  float bound_ = 0;
  uint64_t found_[kRoom];
};

template <bool kBf16>
void several_places(const LargestSpec& s, void* const* operands, int64_t begin, int64_t end) {
  using X = Elements<kBf16>;
  for (int64_t row = begin; row < end; row++) {
    const auto* x = static_cast<const typename X::Number*>(operands[0]) + row * s.width;
    Candidates candidates(s.count);
    int64_t i = 0;
    while (i < s.width) {
      const Floats bound = all(candidates.bound());
      if (candidates.is_bounded()) {
        if (any(is_nan(bound))) break;
        for (; i + 4 * kLanes <= s.width; i += 4 * kLanes) {
          const Lanes halves[2] = {
              either(not_less_or_equal(X::load(x + i), bound), not_less_or_equal(X::load(x + i + kLanes), bound)),
              either(not_less_or_equal(X::load(x + i + 2 * kLanes), bound),
                     not_less_or_equal(X::load(x + i + 3 * kLanes), bound))};
          if (any(either(halves[0], halves[1]))) break;
        }
      }
      // the numbers of one vector, and with them perhaps a new bound
      if (i >= s.width) break;
      const Lanes present = first(s.width - i);
      const Floats numbers = X::load(x + i, present);
      const Lanes chosen = candidates.is_bounded() ? both(present, not_less_or_equal(numbers, bound)) : present;
      if (any(chosen)) candidates.add(chosen, numbers, i);
      i += kLanes;
    }
    candidates.finish(static_cast<int32_t*>(operands[1]) + row * s.count);
  }
}

Run* choose(int64_t count, bool is_bf16) {
  if (count == 1) return is_bf16 ? places_of_largest<true> : places_of_largest<false>;
  return is_bf16 ? several_places<true> : several_places<false>;
}
