// Of row_weights.cc, for each instruction set (each_isa.h).

constexpr int kMostRows = kLanes == 16 ? 12 : 6;  // of sums in registers

// Sums of kRows channels of the input and kVectors vectors of those of the gradient, over some rows of pixels. kPartial: the last
// vector is not whole.
template <int kRows, int kVectors, bool kPartial>
void add_rows(const RowWeights::Rows* rows, const RowWeights::Rows* end, const Pixels& p, int64_t columns, float* sums,
              int64_t width) {
  const Lanes last = first(columns - (kVectors - 1) * kLanes);
  Floats made[kRows][kVectors];
  for (auto& of_row : made) {
    for (auto& sum : of_row) sum = zero();
  }
  for (; rows != end; rows++) {
    const float *x = p.input + rows->input, *dy = p.gradient + rows->gradient;
    for (int64_t i = 0; i < p.count; i++, x += p.input_step, dy += p.gradient_step) {
      Floats y[kVectors];
      for (int v = 0; v < kVectors; v++) {
        y[v] = kPartial && v + 1 == kVectors ? load(dy + kLanes * v, last) : load(dy + kLanes * v);
      }
      for (int r = 0; r < kRows; r++) {
        const Floats one = all(x[r]);
        for (int v = 0; v < kVectors; v++) made[r][v] = fma(one, y[v], made[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; r++) {
    for (int v = 0; v < kVectors; v++) {
      float* to = sums + r * width + kLanes * v;
      store(to, load(to) + made[r][v]);
    }
  }
}

template <int... kRows>
constexpr Kernels table_of(std::integer_sequence<int, kRows...>) {
  return {kMostRows,
          {{{add_rows<kRows + 1, 1, false>...}, {add_rows<kRows + 1, 2, false>...}},
           {{add_rows<kRows + 1, 1, true>...}, {add_rows<kRows + 1, 2, true>...}}}};
}
constexpr Kernels kKernels = table_of(std::make_integer_sequence<int, kMostRows>());
