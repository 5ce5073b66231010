// Products and convolutions of 8-bit integers: u8 data, s8 weights, sums in 32 bits (VNNI), and what follows them in one pass:
// a scale and an offset per output channel, a residual, an activation, requantization.
//
// The spec (written by oneflow/compiler/int8_kernels.py): the epilogue, then the geometry. Two kinds of call share it:
//   int8_product  data, packed weights, scale, offset[, residual] -> result
//   int8_pack     weights -> packed weights, in the layout that the product's primitive wants
#include <cstring>

#include "operation.h"

namespace native {

namespace {

enum class Activation : int64_t { kNone, kRelu, kGelu };

struct Int8Spec {
  explicit Int8Spec(SpecReader reader) {
    is_conv = reader.next_bool();
    output_type = reader.next_bool() ? dt::u8 : dt::f32;
    has_residual = reader.next_bool();
    activation = static_cast<Activation>(reader.next(0, 2));
    factor = next_float(reader), shift = next_float(reader);
    low = reader.next(0, 255), high = reader.next(low, 255);
    if (has_residual && output_type != dt::u8) throw std::invalid_argument("a residual needs a result of 8 bits");
    is_conv ? read_conv(reader) : read_matmul(reader);
    reader.finish();
  }

  double flops() const { return 2.0 * element_count(output) * element_count(weights) / channels; }
  dims vector() const { return is_conv ? dims{channels} : dims{1, channels}; }

  bool is_conv, has_residual;
  dt output_type;
  Activation activation;
  float factor, shift;  // applied behind the activation
  int64_t low, high;    // the range of a result of 8 bits
  int64_t channels, groups = 1;
  dims input, weights, output;  // logical shapes: (N, C, ...), ([groups,] O, I, ...); (m, k), (k, n), (m, n)
  dims input_strides, weight_strides, output_strides;
  dims strides, dilations, pad_low, pad_high;

 private:
  static float next_float(SpecReader& reader) {
    const auto bits = static_cast<uint32_t>(reader.next(0, 0xffffffffll));
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

  static dims channels_last(const dims& shape) {
    dims found(shape.size());
    found[1] = 1;
    int64_t step = shape[1];
    for (size_t i = shape.size(); i-- > 2; step *= shape[i]) found[i] = step;
    found[0] = step;
    return found;
  }

  // Weights arrive as (O, ..., I).
  void read_conv(SpecReader& reader) {
    const int n = static_cast<int>(reader.next(1, 3));
    groups = reader.next(1);
    input = reader.next_dims(n + 2, 1), weights = reader.next_dims(n + 2, 1), output = reader.next_dims(n + 2, 1);
    strides = reader.next_dims(n, 1), dilations = reader.next_dims(n, 1);
    pad_low = reader.next_dims(n, 0), pad_high = reader.next_dims(n, 0);
    channels = weights[0];
    if (input[0] != output[0] || input[1] != weights[1] * groups || output[1] != channels || channels % groups != 0) {
      throw std::invalid_argument("the shapes do not belong together");
    }
    for (int i = 0; i < n; i++) {
      const int64_t room = input[i + 2] + pad_low[i] + pad_high[i] - ((weights[i + 2] - 1) * dilations[i] + 1);
      if (room < 0 || room / strides[i] + 1 != output[i + 2]) {
        throw std::invalid_argument("the output's size is not that of the windows");
      }
      dilations[i] -= 1;  // oneDNN's is the number of elements between two taps
    }
    input_strides = channels_last(input), output_strides = channels_last(output), weight_strides = channels_last(weights);
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

void want_vnni() {
  const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto has = [&](dnnl::cpu_isa needed) { return (isa & static_cast<unsigned>(needed)) == static_cast<unsigned>(needed); };
  if (!has(dnnl::cpu_isa::avx512_core_vnni) && !has(dnnl::cpu_isa::avx2_vnni)) {
    throw std::runtime_error("this CPU has no VNNI instructions");  // sums would saturate at 16 bits
  }
}

dnnl::primitive_attr attributes(const Int8Spec& s) {
  auto attr = user_scratchpad();
  attr.set_scales_mask(DNNL_ARG_WEIGHTS, !s.is_conv ? 2 : s.groups == 1 ? 1 : 3);
  dnnl::post_ops after;
  if (s.has_residual) {
    after.append_binary(dnnl::algorithm::binary_add, {s.output, dt::u8, s.output_strides});
  }
  if (s.activation == Activation::kRelu) after.append_eltwise(dnnl::algorithm::eltwise_relu, 0, 0);
  if (s.activation == Activation::kGelu) after.append_eltwise(dnnl::algorithm::eltwise_gelu_erf, 0, 0);
  if (s.factor != 1 || s.shift != 0) after.append_eltwise(dnnl::algorithm::eltwise_linear, s.factor, s.shift);
  if (s.output_type == dt::u8 && (s.low > 0 || s.high < 255)) {
    after.append_eltwise(dnnl::algorithm::eltwise_clip, static_cast<float>(s.low), static_cast<float>(s.high));
  }
  attr.set_post_ops(after);
  return attr;
}

// The product's primitive, and the layouts of what it reads and writes.
struct Found {
  Found(const Int8Spec& s, int threads) {
    want_vnni();
    const thread_pool::ScopedMaxThreads scope(threads);
    const dnnl::memory::desc input(s.input, dt::u8, s.input_strides), output(s.output, s.output_type, s.output_strides);
    const dnnl::memory::desc any_weights(s.weights, dt::s8, dnnl::memory::format_tag::any);
    const dnnl::memory::desc vector(s.vector(), dt::f32, s.is_conv ? dims{1} : dims{s.channels, 1});
    if (s.is_conv) {
      descriptor = dnnl::convolution_forward::primitive_desc(
          engine(), dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, input, any_weights, vector, output,
          s.strides, s.dilations, s.pad_low, s.pad_high, attributes(s));
    } else {
      descriptor = dnnl::matmul::primitive_desc(engine(), input, any_weights, vector, output, attributes(s));
    }
    weights = descriptor.query_md(dnnl::query::exec_arg_md, DNNL_ARG_WEIGHTS);
  }

  dnnl::primitive_desc descriptor;
  dnnl::memory::desc weights;
};

size_t size_of(dt type) { return type == dt::f32 ? 4 : 1; }

class Int8Product final : public Operation {
 public:
  Int8Product(const Int8Spec& s, const thread_pool::Settings& settings, bool describe_only) : spec_(s) {
    threads_ = settings.threads_for(s.flops());
    const Found found(s, threads_);
    name_ = found.descriptor.impl_info_str();
    if (describe_only) return;
    primitive_ = dnnl::primitive(found.descriptor);
    input_ = {s.input, dt::u8, s.input_strides}, output_ = {s.output, s.output_type, s.output_strides};
    residual_ = {s.output, dt::u8, s.output_strides};
    weights_ = found.weights;
    offset_ = {s.vector(), dt::f32, s.is_conv ? dims{1} : dims{s.channels, 1}};
    scratchpad_ = found.descriptor.scratchpad_desc().get_size();
    scratch_size_ = aligned(scratchpad_);
    const size_t count = static_cast<size_t>(s.channels) * sizeof(float), result = element_count(s.output);
    operand_bytes_ = {element_count(s.input), weights_.get_size(), count, count};
    if (s.has_residual) operand_bytes_.push_back(result);
    operand_bytes_.push_back(result * size_of(s.output_type));
  }

  std::string name() const override { return name_; }

  void run(void* const* operands, Scratch& scratch) const override {
    const auto memory = [](const dnnl::memory::desc& layout, void* data) { return dnnl::memory(layout, engine(), data); };
    std::unordered_map<int, dnnl::memory> arguments = {
        {DNNL_ARG_SRC, memory(input_, operands[0])},
        {DNNL_ARG_WEIGHTS, memory(weights_, operands[1])},
        {DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS, memory({{spec_.channels}, dt::f32, dims{1}}, operands[2])},
        {DNNL_ARG_BIAS, memory(offset_, operands[3])},
        {DNNL_ARG_SCRATCHPAD, take_scratchpad(scratch, scratchpad_)}};
    int next = 4;
    if (spec_.has_residual) {
      arguments[DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1] = memory(residual_, operands[next++]);
    }
    arguments[DNNL_ARG_DST] = memory(output_, operands[next]);
    primitive_.execute(stream(), arguments);
  }

 private:
  Int8Spec spec_;
  std::string name_;
  dnnl::primitive primitive_;
  dnnl::memory::desc input_, weights_, offset_, residual_, output_;
  size_t scratchpad_ = 0;
};

// Its name is the size of the packed weights in bytes.
class Int8Pack final : public Operation {
 public:
  Int8Pack(const Int8Spec& s, const thread_pool::Settings& settings, bool describe_only) {
    const Found found(s, settings.threads_for(s.flops()));
    threads_ = 1;
    outer_ = {s.weights, dt::s8, s.weight_strides}, inner_ = found.weights;
    name_ = std::to_string(inner_.get_size());
    if (describe_only) return;
    const thread_pool::ScopedMaxThreads scope(threads_);
    reorder_ = Reorder(outer_, inner_);
    scratch_size_ = reorder_.scratch_size();
    operand_bytes_ = {element_count(s.weights), inner_.get_size()};
  }

  std::string name() const override { return name_; }

  void run(void* const* operands, Scratch& scratch) const override {
    reorder_.run(dnnl::memory(outer_, engine(), operands[0]), dnnl::memory(inner_, engine(), operands[1]), scratch);
  }

 private:
  dnnl::memory::desc outer_, inner_;
  std::string name_;
  Reorder reorder_;
};

}  // namespace

std::unique_ptr<Operation> make_int8_product(SpecReader reader, thread_pool::Settings settings, bool describe_only) {
  return std::make_unique<Int8Product>(Int8Spec(reader), settings, describe_only);
}

std::unique_ptr<Operation> make_int8_pack(SpecReader reader, thread_pool::Settings settings, bool describe_only) {
  return std::make_unique<Int8Pack>(Int8Spec(reader), settings, describe_only);
}

}  // namespace native
