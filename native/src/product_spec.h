// The spec of a product whose weights were packed before, written by oneflow/compiler/packed_products.py: dtypes, the epilogue,
// then the geometry.
#pragma once

#include <algorithm>
#include <vector>

#include "conv_geometry.h"

namespace native {

enum class Activation : int64_t { kNone, kRelu, kGelu, kClip };

struct ProductSpec {
  explicit ProductSpec(SpecReader reader) {
    constexpr dt types[] = {dt::u8, dt::f32, dt::bf16};
    input_type = types[reader.next(0, 2)], output_type = types[reader.next(0, 2)];
    is_conv = reader.next_bool();
    has_residual = reader.next_bool();
    activation = static_cast<Activation>(reader.next(0, 3));
    factor = reader.next_float(), shift = reader.next_float(), low = reader.next_float(), high = reader.next_float();
    if (!is_integer() && output_type == dt::u8) throw std::invalid_argument("a result of 8 bits needs data of 8 bits");
    if (is_integer() && output_type == dt::bf16) throw std::invalid_argument("products of 8 bits have no result in bfloat16");
    if (is_integer() && has_residual && output_type != dt::u8) throw std::invalid_argument("a residual needs a result of 8 bits");
    if (low > high || (activation == Activation::kClip && (is_integer() || low != 0))) {
      throw std::invalid_argument("there is no such range");
    }
    if (is_conv) {
      set_conv(ConvGeometry(reader));
    } else {
      read_matmul(reader);
    }
    reader.finish();
  }

  // A convolution of float32 numbers that nothing follows.
  explicit ProductSpec(const ConvGeometry& geometry)
      : is_conv(true),
        has_residual(false),
        input_type(dt::f32),
        output_type(dt::f32),
        activation(Activation::kNone),
        factor(1),
        shift(0),
        low(0),
        high(0) {
    set_conv(geometry);
  }

  bool is_integer() const { return input_type == dt::u8; }
  dt weight_type() const { return is_integer() ? dt::s8 : input_type; }
  // As weights arrive: those of bfloat16 products are rounded while they are packed.
  dt given_weight_type() const { return is_integer() ? dt::s8 : dt::f32; }
  double flops() const { return 2.0 * element_count(output) * element_count(weights) / channels; }
  // Whether only some pixels are multiplied, each with all weights, and an image of the result has few.
  bool skips_pixels() const {
    constexpr int64_t kFewPixels = 16;
    bool is_strided = false;
    int64_t pixels = 1;
    for (size_t i = 0; i < strides.size(); i++) {
      if (weights[weights.size() - 1 - i] != 1 || pad_low[i] != 0 || pad_high[i] != 0) return false;
      is_strided |= strides[i] != 1, pixels *= output[2 + i];
    }
    return is_strided && pixels <= kFewPixels;
  }
  // The product that oneDNN computes: where pixels are skipped, the same of the others alone.
  ProductSpec computed() const {
    ProductSpec made = *this;
    if (!skips_pixels()) return made;
    std::copy(output.begin() + 2, output.end(), made.input.begin() + 2);
    made.strides.assign(strides.size(), 1);
    made.input_strides = data_strides(made.input);
    return made;
  }

  Windows windows() const {  // of a product of matrices: each row is a pixel
    Windows w{is_conv ? input[0] : 1, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}};
    if (!is_conv) w.input[2] = w.output[2] = input[0];
    for (size_t i = 0; i < strides.size(); i++) {
      const size_t axis = Windows::kAxes - strides.size() + i;
      w.input[axis] = input[2 + i], w.output[axis] = output[2 + i], w.kernel[axis] = weights[weights.size() - strides.size() + i];
      w.strides[axis] = strides[i], w.dilations[axis] = dilations[i] + 1, w.pads[axis] = pad_low[i];
    }
    return w;
  }

  dims vector() const { return is_conv ? dims{channels} : dims{1, channels}; }

  bool is_float32() const { return input_type == dt::f32 && output_type == dt::f32; }
  // In bytes, of a product of float32 numbers: data, packed weights, offset[, residual], result.
  std::vector<size_t> operand_bytes(size_t packed) const {
    const size_t result = element_count(output) * sizeof(float);
    std::vector<size_t> bytes = {element_count(input) * sizeof(float), packed, static_cast<size_t>(channels) * sizeof(float)};
    bytes.insert(bytes.end(), has_residual ? 2 : 1, result);
    return bytes;
  }
  // Whether it is a product of two matrices: of rows, or of pixels, each of which is multiplied with all weights.
  bool is_plain() const {
    const auto all = [](const dims& sizes, int64_t size) {
      return std::all_of(sizes.begin(), sizes.end(), [=](int64_t each) { return each == size; });
    };
    return !is_conv || (groups == 1 && depth() == input[1] && all(strides, 1) && all(pad_low, 0) && all(pad_high, 0));
  }
  // What each of the rows, or pixels, of the result is a sum of, without groups.
  int64_t rows() const { return static_cast<int64_t>(element_count(output)) / channels; }
  int64_t depth() const { return static_cast<int64_t>(element_count(weights)) / channels; }
  bool weights_are_transposed() const { return is_conv || weight_strides[0] == 1; }  // in memory: (channels, depth)

  bool is_conv, has_residual;
  dt input_type, output_type;
  Activation activation;
  float factor, shift;  // applied behind the activation
  float low, high;      // the range of a result of 8 bits, or that of kClip
  int64_t channels, groups = 1;
  dims input, weights, output;  // logical shapes: (N, C, ...), ([groups,] O, I, ...); (m, k), (k, n), (m, n)
  dims input_strides, weight_strides, output_strides;
  dims strides, dilations, pad_low, pad_high;

 private:
  // Weights arrive as (O, ..., I).
  void set_conv(const ConvGeometry& geometry) {
    groups = geometry.groups, channels = geometry.kernel[0];
    input = geometry.input, weights = geometry.kernel, output = geometry.output;
    strides = geometry.strides, dilations = geometry.dilations, pad_low = geometry.pad_low, pad_high = geometry.pad_high;
    for (auto& step : dilations) step -= 1;  // oneDNN's is the number of elements between two taps
    input_strides = data_strides(input), output_strides = data_strides(output), weight_strides = data_strides(weights);
    if (groups == 1) return;
    weights[0] /= groups, weights.insert(weights.begin(), groups);
    weight_strides.insert(weight_strides.begin(), weight_strides[0] * weights[1]);
  }

  void read_matmul(SpecReader& reader) {
    const int64_t m = reader.next(1), n = reader.next(1), k = reader.next(1);
    const bool is_transposed = reader.next_bool();
    channels = n;
    input = {m, k}, weights = {k, n}, output = {m, n};
    input_strides = {k, 1}, output_strides = {n, 1}, weight_strides = is_transposed ? dims{1, k} : dims{n, 1};
  }
};

// What follows the sums of a call in float32: what it reads, and where it writes.
struct Epilogue {
  Epilogue(const ProductSpec& of, void* const* operands)
      : spec(of),
        offset(static_cast<const float*>(operands[2])),
        residual(of.has_residual ? static_cast<const float*>(operands[3]) : nullptr),
        result(static_cast<float*>(operands[of.has_residual ? 4 : 3])) {}

  // That of the rows from this one on.
  Epilogue from(int64_t row) const {
    Epilogue rest = *this;
    rest.result += row * spec.channels;
    if (residual) rest.residual += row * spec.channels;
    return rest;
  }

  const ProductSpec& spec;
  const float *offset, *residual;  // no residual: null
  float* result;
};

}  // namespace native
