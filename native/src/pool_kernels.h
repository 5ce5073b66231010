// Of pool.cc, for each instruction set (each_isa.h).

template <bool kBf16>
void pool_pixel(const PoolSpec& s, const void* data, const int64_t* pixels, const int* positions, int count, void* result,
                uint8_t* places) {
  using X = Elements<kBf16>;
  const auto* x = static_cast<const typename X::Number*>(data);
  auto* y = static_cast<typename X::Number*>(result);
  for (int64_t c = 0; c < s.channels; c += kLanes) {
    const Lanes present = first(s.channels - c);
    if (count == 0) {
      const float least = kBf16 ? -3.3895314e38f : std::numeric_limits<float>::lowest();
      X::store(y + c, present, all(least));
      store_bytes(places + c, present, integers(kNone));
      continue;
    }
    const Integers first_place = integers(positions[0]);
    Floats most = X::load(x + pixels[0] * s.channels + c, present);
    Integers place = first_place;
    for (int i = 1; i < count; i++) {
      const Floats value = X::load(x + pixels[i] * s.channels + c, present);
      const Lanes larger = greater(value, most), nan = is_nan(value);
      most = select(either(larger, nan), value, most);
      place = select(larger, integers(positions[i]), place);
      place = select(nan, first_place, place);
    }
    X::store(y + c, present, most);
    store_bytes(places + c, present, place);
  }
}

template <bool kBf16>
void gradient_of_pixel(const PoolSpec& s, const uint8_t* places, const void* data, const int64_t* pixels, const int* positions,
                       int count, void* result) {
  using Y = Elements<kBf16>;
  const auto* dy = static_cast<const typename Y::Number*>(data);
  auto* dx = static_cast<typename Y::Number*>(result);
  for (int64_t c = 0; c < s.channels; c += kLanes) {
    const Lanes present = first(s.channels - c);
    Floats sum = zero();
    for (int i = 0; i < count; i++) {
      const int64_t at = pixels[i] * s.channels + c;
      sum = sum + where(bytes_equal(places + at, present, positions[i]), Y::load(dy + at, present));
    }
    Y::store(dx + c, present, sum);
  }
}

template <bool kBf16>
Kernels kernels_of() {
  return {pool_pixel<kBf16>, gradient_of_pixel<kBf16>};
}

Kernels choose(bool is_bf16) {
  return is_bf16 ? kernels_of<true>() : kernels_of<false>();
}
