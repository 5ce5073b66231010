// Of lstm_cell.cc, for each instruction set (each_isa.h).

// Calls body(row, column, the lanes whose columns exist) for the blocks of columns from `begin` to `end`.
template <class Body>
inline void for_blocks(const LstmCellSpec& s, int64_t begin, int64_t end, const Body& body) {
  const int64_t blocks = (s.width + kLanes - 1) / kLanes;
  int64_t row = begin / blocks, column = begin % blocks * kLanes;
  for (; begin < end; begin++) {
    body(row, column, first(s.width - column));
    column += kLanes;
    if (column >= s.width) column = 0, row++;
  }
}

void cells(const LstmCellSpec& s, void* const* operands, int64_t begin, int64_t end) {
  const auto array = [&](int i) { return static_cast<float*>(operands[i]); };
  const float *gates = array(0), *before = s.has_cell ? array(1) : nullptr;
  float *hidden = array(1 + s.has_cell), *cell = array(2 + s.has_cell), *activated = array(3 + s.has_cell);
  for_blocks(s, begin, end, [&](int64_t row, int64_t column, Lanes present) {
    const int64_t at = row * s.width + column, of_gates = row * 4 * s.width + column;
    const auto gate = [&](int which) { return load(gates + of_gates + s.quarters.of[which] * s.width, present); };
    const auto keep = [&](int which, Floats x) { store(activated + of_gates + s.quarters.of[which] * s.width, present, x); };
    const Floats i = sigmoid(gate(0)), g = hyperbolic_tangent(gate(2)), o = sigmoid(gate(3));
    Floats f = zero(), c = i * g;
    if (before) {
      f = sigmoid(gate(1));
      c = fma(f, load(before + at, present), c);
    }
    keep(0, i), keep(1, f), keep(2, g), keep(3, o);
    store(cell + at, present, c);
    store(hidden + at, present, o * hyperbolic_tangent(c));
  });
}

void gradients(const LstmCellSpec& s, void* const* operands, int64_t begin, int64_t end) {
  const auto array = [&](int i) { return static_cast<float*>(operands[i]); };
  const float *activated = array(0), *before = s.has_cell ? array(1) : nullptr;
  const float *cell = array(1 + s.has_cell), *to_hidden = array(2 + s.has_cell), *to_cell = array(3 + s.has_cell);
  float *to_gates = array(4 + s.has_cell), *to_before = s.has_cell ? array(6) : nullptr;
  for_blocks(s, begin, end, [&](int64_t row, int64_t column, Lanes present) {
    const int64_t at = row * s.width + column, of_gates = row * 4 * s.width + column;
    const auto gate = [&](int which) { return load(activated + of_gates + s.quarters.of[which] * s.width, present); };
    const auto keep = [&](int which, Floats x) { store(to_gates + of_gates + s.quarters.of[which] * s.width, present, x); };
    const Floats i = gate(0), g = gate(2), o = gate(3);
    const Floats dh = load(to_hidden + at, present), tangent = hyperbolic_tangent(load(cell + at, present));
    const Floats dc = fma(dh * o, slope_of_tangent(tangent), load(to_cell + at, present));
    keep(0, dc * g * slope_of_sigmoid(i));
    keep(2, dc * i * slope_of_tangent(g));
    keep(3, dh * tangent * slope_of_sigmoid(o));
    if (before) {
      const Floats f = gate(1);
      keep(1, dc * load(before + at, present) * slope_of_sigmoid(f));
      store(to_before + at, present, dc * f);
    } else {
      keep(1, zero());
    }
  });
}

constexpr Kernels kKernels = {cells, gradients};
