// Of winograd.cc, for each instruction set (each_isa.h).

#include "epilogue.h"

constexpr int kMostRows = kLanes == 16 ? 8 : 6;  // whose sums for a panel stay in registers
constexpr int64_t kPanel = kVectors * kLanes;

// Both along one axis. The points that polynomials are evaluated at are 0, 1, -1 and infinity.
inline void transform_input(const Floats* x, Floats* to) {
  to[0] = x[2] - x[0], to[3] = x[3] - x[1];
  to[1] = x[2] + x[1], to[2] = x[2] - x[1];
}

inline void transform_sums(const Floats* x, Floats* to) {
  to[0] = x[0] + (x[1] + x[2]);
  to[1] = x[3] + (x[1] - x[2]);
}

// Of a tile, a vector of channels from `c` on; `present` of them are read where it is not whole.
template <bool kWhole>
inline void transform_vector(const float* const (&pixels)[kSide][kSide], int64_t c, Lanes present, int64_t place_step,
                             float* to) {
  Floats half[kSide][kSide];
  for (int j = 0; j < kSide; j++) {
    Floats column[kSide], made[kSide];
    for (int i = 0; i < kSide; i++) column[i] = kWhole ? load(pixels[i][j] + c) : load(pixels[i][j] + c, present);
    transform_input(column, made);
    for (int i = 0; i < kSide; i++) half[i][j] = made[i];
  }
  to += c;
  for (int i = 0; i < kSide; i++) {
    Floats made[kSide];
    transform_input(half[i], made);
    for (int j = 0; j < kSide; j++, to += place_step) store(to, made[j]);
  }
}

// Of `count` tiles from `tile` on, these channels.
void transform_tiles(const Call& call, int64_t tile, int64_t count, int64_t begin, int64_t end, float* to) {
  Place place(call, tile);
  for (; count > 0; count--, place.advance(call), to += call.tile_step) {
    const float* pixels[kSide][kSide];
    for (int i = 0; i < kSide; i++) {
      for (int j = 0; j < kSide; j++) {
        const float* found = pixel_at(call, place.sample, place.row + i, place.column + j);
        pixels[i][j] = found ? found : call.zeros;
      }
    }
    const Lanes present = first((end - begin) % kLanes);
    int64_t c = begin;
    for (; c + kLanes <= end; c += kLanes) transform_vector<true>(pixels, c, present, call.place_step, to);
    if (c < end) transform_vector<false>(pixels, c, present, call.place_step, to);
  }
}

// Sums of some tiles and a panel at one place. Weights that are needed next are fetched meanwhile.
template <int kRows>
void multiply(const float* tiles, int64_t step, const float* weights, int64_t depth, const float* ahead, float* to) {
  Floats sums[kRows][2];
  for (auto& of_row : sums) of_row[0] = of_row[1] = zero();
  for (int64_t c = 0; c < depth; c++, weights += kPanel) {
    const Floats w[] = {load(weights), load(weights + kLanes)};
    if (ahead) {
      _mm_prefetch(reinterpret_cast<const char*>(ahead + c * kPanel), _MM_HINT_T1);
      if (kPanel > 16) _mm_prefetch(reinterpret_cast<const char*>(ahead + c * kPanel + 16), _MM_HINT_T1);
    }
    for (int i = 0; i < kRows; i++) {
      const Floats x = all(tiles[i * step + c]);
      for (int j = 0; j < 2; j++) sums[i][j] = fma(x, w[j], sums[i][j]);
    }
  }
  for (int i = 0; i < kRows; i++, to += kPanel) {
    for (int j = 0; j < 2; j++) store(to + kLanes * j, sums[i][j]);
  }
}

// The sum for one pixel and a vector of channels, tap by tap. `weights`: those of the first tap.
inline Floats direct_sum(const Call& call, const Place& place, int64_t row, int64_t column, const float* weights) {
  const int64_t depth = call.spec().input[1];
  Floats sum = zero();
  for (int64_t tap = 0; tap < kTaps; tap++, weights += depth * kPanel) {
    const float* pixel = pixel_at(call, place.sample, place.row + row + tap / 3, place.column + column + tap % 3);
    if (!pixel) continue;
    for (int64_t c = 0; c < depth; c++) sum = fma(all(pixel[c]), load(weights + c * kPanel), sum);
  }
  return sum;
}

// From sums, [place][tile][kPanel], to the result in the columns of one panel, for `count` tiles from `tile` on.
template <Activation kActivation, bool kHasResidual>
void write_as(const Call& call, int64_t tile, int64_t count, int64_t panel, const float* sums, int64_t step) {
  const ProductSpec& s = call.spec();
  const float* direct = call.weights + (panels_of(s) * kPlaces + panel * kTaps) * s.input[1] * kPanel;
  const int64_t first_channel = panel * kPanel, width = std::min(kPanel, s.channels - first_channel);
  const int64_t row_step = s.output[3] * s.channels;
  const bool is_scaled = s.factor != 1 || s.shift != 0;
  Place place(call, tile);
  for (; count > 0; count--, place.advance(call), sums += kPanel) {
    const int64_t corner = (place.sample * s.output[2] + place.row) * row_step + place.column * s.channels + first_channel;
    for (int64_t v = 0; v < width; v += kLanes) {
      Floats half[kSize][kSide], made[kSize][kSize], residue = zero();
      for (int j = 0; j < kSide; j++) {
        Floats column[kSide], two[kSize];
        for (int i = 0; i < kSide; i++) column[i] = load(sums + (i * kSide + j) * step + v);
        transform_sums(column, two);
        for (int i = 0; i < kSize; i++) half[i][j] = two[i];
      }
      for (int i = 0; i < kSize; i++) {
        transform_sums(half[i], made[i]);
        for (int j = 0; j < kSize; j++) residue = fma(made[i][j], zero(), residue);
      }
      if (any(is_nan(residue))) {
        if (call.is_infinite) return call.is_infinite->store(true, std::memory_order_relaxed);
        for (int64_t i = 0; i < place.rows; i++) {
          for (int64_t j = 0; j < place.columns; j++) made[i][j] = direct_sum(call, place, i, j, direct + v);
        }
      }
      const bool is_whole = width - v >= kLanes;
      const Lanes present = first(width - v);
      Floats offset = zero();
      if (call.after.offset) offset = load(call.after.offset + first_channel + v, present);
      for (int64_t i = 0; i < kSize; i++) {
        for (int64_t j = 0; j < kSize; j++) {
          if (i >= place.rows || j >= place.columns) continue;
          const int64_t at = corner + i * row_step + j * s.channels + v;
          Floats x = made[i][j] + offset;
          if (kHasResidual) x = x + load(call.after.residual + at, present);
          x = activated<kActivation>(s.high, x);
          if (is_scaled) x = fma(x, all(s.factor), all(s.shift));
          is_whole ? store(call.after.result + at, x) : store(call.after.result + at, present, x);
        }
      }
    }
  }
}

void write_tiles(const Call& call, int64_t tile, int64_t count, int64_t panel, const float* sums, int64_t step) {
  with_constant(call.spec().activation, [&](auto activation) {
    constexpr Activation kActivation = decltype(activation)::value;
    call.after.residual ? write_as<kActivation, true>(call, tile, count, panel, sums, step)
                        : write_as<kActivation, false>(call, tile, count, panel, sums, step);
  });
}

constexpr int64_t kBlock = kLanes;  // input channels that are packed at a time

// The weights of a panel at `count` input channels from `begin` on: [input channel][tap][output channel].
void gather(const Weights& w, int64_t channel, int64_t channels, int64_t begin, int64_t count,
            float (&to)[kBlock][kTaps][kPanel]) {
  for (int64_t tap = 0; tap < kTaps; tap++) {
    const float* from = w.first + channel * w.output_step + begin * w.input_step + tap * w.tap_step;
    if (w.output_step == 1) {
      for (int64_t c = 0; c < count; c++) {
        for (int64_t v = 0; v < kPanel; v += kLanes)
          store(to[c][tap] + v, load(from + c * w.input_step + v, first(channels - v)));
      }
    } else if (w.input_step == 1 && count == kBlock) {
      for (int64_t v = 0; v < kPanel; v += kLanes) {
        turn(from + v * w.output_step, w.output_step, std::clamp<int64_t>(channels - v, 0, kLanes), kBlock, to[0][tap] + v,
             kTaps * kPanel);
      }
    } else {
      for (int64_t o = 0; o < kPanel; o++) {
        for (int64_t c = 0; c < count; c++) to[c][tap][o] = o < channels ? from[o * w.output_step + c * w.input_step] : 0;
      }
    }
  }
}

// Along one axis.
inline void transform_weights(const Floats* x, Floats* to) {
  const Floats half = all(0.5f), ends = (x[0] + x[2]) * half, middle = x[1] * half;
  to[0] = zero() - x[0], to[1] = ends + middle, to[2] = ends - middle, to[3] = x[2];
}

void pack_panels(const ProductSpec& s, const Weights& weights, float* packed, bool direct, int64_t begin, int64_t end) {
  const int64_t depth = s.input[1], step = depth * kPanel;
  for (int64_t panel = begin; panel < end; panel++) {
    float* transformed = packed + panel * kPlaces * step;
    float* as_they_are = packed + (panels_of(s) * kPlaces + panel * kTaps) * step;
    for (int64_t first = 0; first < depth; first += kBlock) {
      const int64_t count = std::min(kBlock, depth - first);
      float taps[kBlock][kTaps][kPanel], made[kPlaces][kBlock][kPanel];
      gather(weights, panel * kPanel, std::min(kPanel, s.channels - panel * kPanel), first, count, taps);
      for (int64_t c = 0; c < count; c++) {
        for (int64_t v = 0; v < kPanel; v += kLanes) {
          Floats half[3][kSide];  // transformed from row to row
          for (int j = 0; j < 3; j++) {
            const Floats column[] = {load(taps[c][j] + v), load(taps[c][3 + j] + v), load(taps[c][6 + j] + v)};
            transform_weights(column, half[j]);
          }
          for (int i = 0; i < kSide; i++) {
            const Floats row[] = {half[0][i], half[1][i], half[2][i]};
            Floats places[kSide];
            transform_weights(row, places);
            for (int j = 0; j < kSide; j++) store(made[i * kSide + j][c] + v, places[j]);
          }
        }
      }
      for (int64_t place = 0; place < kPlaces; place++) {
        std::copy_n(made[place][0], count * kPanel, transformed + place * step + first * kPanel);
      }
      for (int64_t tap = 0; direct && tap < kTaps; tap++) {
        for (int64_t c = 0; c < count; c++) std::copy_n(taps[c][tap], kPanel, as_they_are + tap * step + (first + c) * kPanel);
      }
    }
  }
}

// What reads the sums of an axis gets of the gradient to them.
inline void transform_gradient(const Floats* x, Floats* to) {
  to[0] = x[0], to[3] = x[1];
  to[1] = x[0] + x[1], to[2] = x[0] - x[1];
}

// Of the gradient to `count` tiles from `tile` on. Pixels beside the image have none.
void transform_gradients(const Call& call, int64_t tile, int64_t count, float* to) {
  const ProductSpec& s = call.spec();
  Place place(call, tile);
  for (; count > 0; count--, place.advance(call), to += call.tile_step) {
    const float* pixels[kSize][kSize];
    for (int i = 0; i < kSize; i++) {
      for (int j = 0; j < kSize; j++) {
        const int64_t at = ((place.sample * s.output[2] + place.row + i) * s.output[3] + place.column + j) * s.channels;
        pixels[i][j] = i < place.rows && j < place.columns ? call.data + at : call.zeros;
      }
    }
    for (int64_t c = 0; c < s.channels; c += kLanes) {
      const Lanes present = first(s.channels - c);
      Floats half[kSize][kSide];
      for (int j = 0; j < kSize; j++) {
        const Floats column[] = {load(pixels[0][j] + c, present), load(pixels[1][j] + c, present)};
        transform_gradient(column, half[j]);
      }
      float* place_of = to + c;
      for (int i = 0; i < kSide; i++) {
        const Floats row[] = {half[0][i], half[1][i]};
        Floats made[kSide];
        transform_gradient(row, made);
        for (int j = 0; j < kSide; j++, place_of += call.place_step) store(place_of, made[j]);
      }
    }
  }
}

// Adds the products of kRows columns of `left` and a panel's columns of `right`, over their rows.
template <int kRows>
void add_products(const float* left, int64_t left_step, const float* right, int64_t right_step, int64_t rows, bool is_first,
                  float* to, int64_t to_step) {
  Floats sums[kRows][2];
  for (auto& of_row : sums) of_row[0] = of_row[1] = zero();
  for (int64_t row = 0; row < rows; row++, left += left_step, right += right_step) {
    const Floats x[] = {load(right), load(right + kLanes)};
    for (int i = 0; i < kRows; i++) {
      const Floats one = all(left[i]);
      for (int j = 0; j < 2; j++) sums[i][j] = fma(one, x[j], sums[i][j]);
    }
  }
  for (int i = 0; i < kRows; i++, to += to_step) {
    for (int j = 0; j < 2; j++) store(to + kLanes * j, is_first ? sums[i][j] : load(to + kLanes * j) + sums[i][j]);
  }
}

// Of the gradient to transformed weights, that to the weights: the transpose of `transform_weights`.
inline void transform_back(const Floats* x, Floats* to) {
  const Floats half = all(0.5f), ends = (x[1] + x[2]) * half;
  to[0] = ends - x[0], to[1] = (x[1] - x[2]) * half, to[2] = ends + x[3];
}

// The gradient to the weights of one output channel, of [place][output channel][width]. False: it is not finite.
bool write_weights(const float* sums, int64_t place_step, int64_t inputs, int64_t input_step, int64_t tap_step, float* to) {
  Floats residue = zero();
  for (int64_t c = 0; c < inputs; c += kLanes) {
    Floats half[kSide][3], made[3][3];
    for (int j = 0; j < kSide; j++) {
      Floats column[kSide];
      for (int i = 0; i < kSide; i++) column[i] = load(sums + (i * kSide + j) * place_step + c);
      transform_back(column, half[j]);
    }
    for (int i = 0; i < 3; i++) {
      const Floats row[] = {half[0][i], half[1][i], half[2][i], half[3][i]};
      transform_back(row, made[i]);
      for (int j = 0; j < 3; j++) {
        residue = fma(made[i][j], zero(), residue);
        float* tap = to + (3 * i + j) * tap_step;
        if (input_step == 1) {
          store(tap + c, first(inputs - c), made[i][j]);
          continue;
        }
        float numbers[kLanes];
        store(numbers, made[i][j]);
        for (int64_t k = 0; k < std::min<int64_t>(kLanes, inputs - c); k++) tap[(c + k) * input_step] = numbers[k];
      }
    }
  }
  return !any(is_nan(residue));
}

template <int... kRows>
constexpr Kernels table_of(std::integer_sequence<int, kRows...>) {
  return {kMostRows,   transform_tiles,     {multiply<kRows + 1>...},     write_tiles,
          pack_panels, transform_gradients, {add_products<kRows + 1>...}, write_weights};
}
constexpr Kernels kKernels = table_of(std::make_integer_sequence<int, kMostRows>());
