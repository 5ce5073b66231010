// Of depthwise.cc, for each instruction set (each_isa.h).

// Adds the products of one pixel of the output's gradient with pixels of the input to the sums at their positions, rows of
// `width`.
template <bool kXBf16, bool kYBf16>
void add_products(const void* input, const void* gradient, int64_t channels, int64_t width, int64_t begin, int64_t end,
                  const int64_t* pixels, const int* positions, int count, float* sums) {
  using X = Elements<kXBf16>;
  using Y = Elements<kYBf16>;
  const auto* x = static_cast<const typename X::Number*>(input);
  const auto* dy = static_cast<const typename Y::Number*>(gradient);
  for (int64_t c = begin; c < end; c += kLanes) {
    const Lanes present = first(channels - c);
    const Floats g = Y::load(dy + c, present);
    for (int i = 0; i < count; i++) {
      float* sum = sums + positions[i] * width + c;
      store(sum, fma(X::load(x + pixels[i] * channels + c, present), g, load(sum)));
    }
  }
}

// From rows of `width` to columns, for some of the channels.
template <bool kBf16>
void write_columns(const float* sums, int64_t width, int64_t taps, int64_t begin, int64_t end, void* result) {
  using To = Elements<kBf16>;
  auto* to = static_cast<typename To::Number*>(result);
  for (int64_t c = begin; c < end; c++) {
    for (int64_t tap = 0; tap < taps; tap++) {
      const float sum = sums[tap * width + c];
      if constexpr (kBf16) {
        To::store(to + c * taps + tap, first(1), all(sum));
      } else {
        to[c * taps + tap] = sum;
      }
    }
  }
}

Add* choose_add(bool x_is_bf16, bool y_is_bf16) {
  if (x_is_bf16) return y_is_bf16 ? add_products<true, true> : add_products<true, false>;
  return y_is_bf16 ? add_products<false, true> : add_products<false, false>;
}

Write* choose_write(bool is_bf16) { return is_bf16 ? write_columns<true> : write_columns<false>; }
