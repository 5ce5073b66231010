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

void transform_tile(const Call& call, int64_t tile, int64_t begin, int64_t end, float* to) {  // of these channels
  const Place place(call, tile);
  const float* pixels[kSide][kSide];
  for (int i = 0; i < kSide; i++) {
    for (int j = 0; j < kSide; j++) {
      const float* found = pixel_at(call, place.sample, place.row + i, place.column + j);
      pixels[i][j] = found ? found : call.zeros;
    }
  }
  for (int64_t c = begin; c < end; c += kLanes) {
    const Lanes present = first(end - c);
    Floats half[kSide][kSide];
    for (int j = 0; j < kSide; j++) {
      Floats column[kSide], made[kSide];
      for (int i = 0; i < kSide; i++) column[i] = load(pixels[i][j] + c, present);
      transform_input(column, made);
      for (int i = 0; i < kSide; i++) half[i][j] = made[i];
    }
    float* place_of = to + c;
    for (int i = 0; i < kSide; i++) {
      Floats made[kSide];
      transform_input(half[i], made);
      for (int j = 0; j < kSide; j++, place_of += call.place_step) store(place_of, made[j]);
    }
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

// From sums, [place][tile][kPanel], to the result in the columns of one panel.
void write_tile(const Call& call, int64_t tile, int64_t panel, const float* sums, int64_t step) {
  const ProductSpec& s = call.spec();
  const Place place(call, tile);
  const float* direct = call.weights + (panels_of(s) * kPlaces + panel * kTaps) * s.input[1] * kPanel;
  const int64_t corner = ((place.sample * s.output[2] + place.row) * s.output[3] + place.column) * s.channels;
  for (int64_t v = 0; v < kPanel && panel * kPanel + v < s.channels; v += kLanes) {
    const int64_t channel = panel * kPanel + v;
    const Lanes present = first(s.channels - channel);
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
    const bool is_finite = !any(is_nan(residue));
    const Floats offset = load(call.after.offset + channel, present);
    for (int64_t i = 0; i < place.rows; i++) {
      for (int64_t j = 0; j < place.columns; j++) {
        const int64_t at = corner + (i * s.output[3] + j) * s.channels + channel;
        const Floats sum = is_finite ? made[i][j] : direct_sum(call, place, i, j, direct + v);
        Floats x = sum + offset;
        if (call.after.residual) x = x + load(call.after.residual + at, present);
        store(call.after.result + at, present, activated(s, x));
      }
    }
  }
}

// Weights of a panel at one input channel, [tap][kPanel], transformed in double precision.
void transform_weights(const float (&taps)[kTaps][kPanel], float* to, int64_t step) {
  constexpr double matrix[kSide][3] = {{-1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
  double half[kSide][3][kPanel];
  for (int i = 0; i < kSide; i++) {
    for (int j = 0; j < 3; j++) {
      for (int64_t o = 0; o < kPanel; o++) {
        half[i][j][o] = matrix[i][0] * taps[j][o] + matrix[i][1] * taps[3 + j][o] + matrix[i][2] * taps[6 + j][o];
      }
    }
  }
  for (int i = 0; i < kSide; i++) {
    for (int j = 0; j < kSide; j++, to += step) {
      for (int64_t o = 0; o < kPanel; o++) {
        to[o] = static_cast<float>(half[i][0][o] * matrix[j][0] + half[i][1][o] * matrix[j][1] + half[i][2][o] * matrix[j][2]);
      }
    }
  }
}

void pack_panels(const ProductSpec& s, const float* weights, float* packed, int64_t begin, int64_t end) {
  constexpr int64_t kBlock = 16;  // input channels that are read at a time, a cache line
  const int64_t depth = s.input[1], step = depth * kPanel;
  for (int64_t panel = begin; panel < end; panel++) {
    float* transformed = packed + panel * kPlaces * step;
    float* direct = packed + (panels_of(s) * kPlaces + panel * kTaps) * step;
    const int64_t present = std::min(kPanel, s.channels - panel * kPanel);
    for (int64_t first = 0; first < depth; first += kBlock) {
      const int64_t channels = std::min(kBlock, depth - first);
      float taps[kBlock][kTaps][kPanel] = {};
      for (int64_t o = 0; o < present; o++) {
        const float* from = weights + (panel * kPanel + o) * kTaps * depth + first;
        for (int64_t tap = 0; tap < kTaps; tap++, from += depth) {
          for (int64_t c = 0; c < channels; c++) taps[c][tap][o] = from[c];
        }
      }
      for (int64_t c = 0; c < channels; c++) {
        const int64_t at = (first + c) * kPanel;
        transform_weights(taps[c], transformed + at, step);
        for (int64_t tap = 0; tap < kTaps; tap++) std::copy_n(taps[c][tap], kPanel, direct + tap * step + at);
      }
    }
  }
}

template <int... kRows>
constexpr Kernels table_of(std::integer_sequence<int, kRows...>) {
  return {kMostRows, transform_tile, {multiply<kRows + 1>...}, write_tile, pack_panels};
}
constexpr Kernels kKernels = table_of(std::make_integer_sequence<int, kMostRows>());
