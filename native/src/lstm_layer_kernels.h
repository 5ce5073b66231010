// Of lstm_layer.cc, for each instruction set (each_isa.h).

constexpr int kMostRows = 6, kAtOnce = kLanes == 16 ? 4 : 2;  // vectors: so many sums stay in registers
constexpr int64_t kPanel = kVectors * kLanes;

// Adds the products of kRows rows of `left` and a panel to the sums.
template <int kRows>
inline void multiply(const float* left, int64_t depth, const float* panel, Floats (&sums)[kRows][kVectors]) {
  for (int begin = 0; begin < kVectors; begin += kAtOnce) {
    Floats made[kRows][kAtOnce];
    for (int r = 0; r < kRows; r++) std::copy_n(sums[r] + begin, kAtOnce, made[r]);
    for (int64_t i = 0; i < depth; i++, panel += kAtOnce * kLanes) {
      Floats w[kAtOnce];
      for (int v = 0; v < kAtOnce; v++) w[v] = load(panel + kLanes * v);
      for (int r = 0; r < kRows; r++) {
        const Floats x = all(left[r * depth + i]);
        for (int v = 0; v < kAtOnce; v++) made[r][v] = fma(x, w[v], made[r][v]);
      }
    }
    for (int r = 0; r < kRows; r++) std::copy_n(made[r], kAtOnce, sums[r] + begin);
  }
}

// Fetches the lines of a vector's columns of kRows rows, which are read, or written, behind a product: their distance in memory
// is too large for the processor to foresee them.
template <int kRows>
inline void fetch(const float* from, int64_t stride) {
  for (int r = 0; r < kRows; r++) _mm_prefetch(reinterpret_cast<const char*>(from + r * stride), _MM_HINT_T0);
}

template <int kRows>
void forward_block(const Forward& c, int64_t step, int64_t row, int64_t panel) {
  const LstmLayerSpec& s = c.s;
  const bool follows = step > 0 || s.has_state;
  const int64_t column = panel * kLanes, stride = s.at(0, 1, s.width), begin = s.at(step, row, s.width),
                next = s.at(step + 1, row, s.width);
  const Lanes present = first(s.width - column);
  Floats sums[kRows][kVectors];
  for (int v = 0; v < kVectors; v++) {
    const Floats bias = s.has_bias ? load(c.bias + s.quarters.of[v] * s.width + column, present) : zero();
    for (auto& of_row : sums) of_row[v] = bias;
  }
  for (const int64_t quarter : s.quarters.of) {
    const int64_t offset = 4 * begin + quarter * s.width + column;
    fetch<kRows>(c.gates + offset, 4 * stride);
    if (s.keeps) fetch<kRows>(c.activated + offset, 4 * stride);
  }
  fetch<kRows>(c.hidden + begin + column, stride);
  if (s.keeps) {
    fetch<kRows>(c.cells + (step * s.rows + row) * s.width + column, s.width);
    if (step + 1 < s.steps) fetch<kRows>(c.before + next + column, stride);
  }
  if (follows) multiply<kRows>(c.states[(step + 1) % 2] + row * s.width, s.width, c.packed + panel * s.width * kPanel, sums);
  for (int r = 0; r < kRows; r++) {
    const int64_t at = (row + r) * s.width + column, of_gates = s.at(step, row + r, 4 * s.width) + column;
    const auto gate = [&](int which) {
      return sums[r][which] + load(c.gates + of_gates + s.quarters.of[which] * s.width, present);
    };
    const Floats i = sigmoid(gate(0)), g = hyperbolic_tangent(gate(2)), o = sigmoid(gate(3));
    Floats f = zero(), cell = i * g;
    if (follows) {
      f = sigmoid(gate(1));
      cell = fma(f, load(c.cell + at, present), cell);
    }
    const Floats hidden = o * hyperbolic_tangent(cell);
    store(c.hidden + s.at(step, row + r, s.width) + column, present, hidden);
    store(c.states[step % 2] + at, present, hidden);
    store(c.cell + at, present, cell);
    if (step == s.steps - 1) store(c.last_cell + at, present, cell);
    if (!s.keeps) continue;
    const Floats kept[] = {i, f, g, o};
    for (int v = 0; v < 4; v++) store(c.activated + of_gates + s.quarters.of[v] * s.width, present, kept[v]);
    store(c.cells + step * s.rows * s.width + at, present, cell);
    if (step + 1 < s.steps) store(c.before + s.at(step + 1, row + r, s.width) + column, present, hidden);
    if (step == 0) {
      const Floats first_hidden = s.has_state ? load(c.first_hidden + at, present) : zero();
      store(c.before + s.at(0, row + r, s.width) + column, present, first_hidden);
    }
  }
}

// Step -1 computes the gradients to the state before the first one.
template <int kRows>
void backward_block(const Backward& c, int64_t step, int64_t row, int64_t panel) {
  const LstmLayerSpec& s = c.s;
  Floats sums[kRows][kVectors];
  for (auto& of_row : sums) {
    for (auto& sum : of_row) sum = zero();
  }
  for (int64_t column = panel * kPanel; step >= 0 && column < std::min(s.width, (panel + 1) * kPanel); column += kLanes) {
    const int64_t stride = s.at(0, 1, s.width), begin = s.at(step, row, s.width);
    for (const int64_t quarter : s.quarters.of) {
      const int64_t offset = 4 * begin + quarter * s.width + column;
      fetch<kRows>(c.activated + offset, 4 * stride);
      fetch<kRows>(c.to_gates + offset, 4 * stride);
    }
    fetch<kRows>(c.to_hidden + begin + column, stride);
    if (step > 0)
      fetch<kRows>(c.cells + ((step - 1) * s.rows + row) * s.width + column, s.width);  // the step's own came with the one after
  }
  if (step + 1 < s.steps) {
    multiply<kRows>(c.slopes[(step + 2) % 2] + row * 4 * s.width, 4 * s.width, c.packed + panel * 4 * s.width * kPanel, sums);
  }
  for (int v = 0; v < kVectors; v++) {
    const int64_t column = panel * kPanel + v * kLanes;
    if (column >= s.width) return;
    const Lanes present = first(s.width - column);
    for (int r = 0; r < kRows; r++) {
      const int64_t at = (row + r) * s.width + column;
      if (step < 0) {
        store(c.to_first_hidden + at, present, sums[r][v]);
        store(c.to_first_cell + at, present, load(c.to_cell + at, present));
        continue;
      }
      const bool follows = step > 0 || s.has_state;
      const int64_t of_gates = s.at(step, row + r, 4 * s.width) + column;
      const auto gate = [&](int which) { return load(c.activated + of_gates + s.quarters.of[which] * s.width, present); };
      const Floats i = gate(0), f = gate(1), g = gate(2), o = gate(3);
      const Floats tangent = hyperbolic_tangent(load(c.cells + step * s.rows * s.width + at, present));
      const Floats dh = sums[r][v] + load(c.to_hidden + s.at(step, row + r, s.width) + column, present);
      const Floats later = load((step + 1 < s.steps ? c.to_cell : c.to_last_cell) + at, present);
      const Floats dc = fma(dh * o, slope_of_tangent(tangent), later);
      Floats to_f = zero();
      if (follows) {
        const float* before = step > 0 ? c.cells + (step - 1) * s.rows * s.width : c.first_cell;
        to_f = dc * load(before + at, present) * slope_of_sigmoid(f);
      }
      const Floats made[] = {dc * g * slope_of_sigmoid(i), to_f, dc * i * slope_of_tangent(g),
                             dh * tangent * slope_of_sigmoid(o)};
      for (int which = 0; which < 4; which++) {
        const int64_t offset = s.quarters.of[which] * s.width + column;
        store(c.to_gates + s.at(step, row + r, 4 * s.width) + offset, present, made[which]);
        store(c.slopes[(step + 1) % 2] + (row + r) * 4 * s.width + offset, present, made[which]);
      }
      store(c.to_cell + at, present, dc * f);
    }
  }
}

template <int... kRows>
constexpr Kernels table_of(std::integer_sequence<int, kRows...>) {
  return {kMostRows, kAtOnce, {forward_block<kRows + 1>...}, {backward_block<kRows + 1>...}};
}
constexpr Kernels kKernels = table_of(std::make_integer_sequence<int, kMostRows>());
