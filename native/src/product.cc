// Products and convolutions whose weights were packed before, with what follows them in one pass: an offset per output channel, a
// residual, an activation. Of float32, of bfloat16, or of 8-bit integers: u8 data, s8 weights, sums in 32 bits (VNNI), a scale
// per output channel, requantization.
//
// Where windows of one element skip pixels and results are small, the pixels that are read are copied first: oneDNN's kernel is
// faster for adjacent ones.
//
// Two kinds of call share a spec:
//   product       data, packed weights, [scale of integers,] offset[, residual] -> result
//   pack_weights  weights -> packed weights, in the layout that the product's primitive wants

#include <cstring>

#include "few_rows.h"
#include "grouped_conv.h"
#include "integer_product.h"
#include "packed_product.h"
#include "winograd.h"

namespace native {

namespace {

void want_vnni() {
  if (!has_vnni()) throw std::runtime_error("this CPU has neither AVX2 nor VNNI");  // with AVX2, integer_product.cc computes them
}

dnnl::primitive_attr attributes(const ProductSpec& s) {
  auto attr = user_scratchpad();
  if (s.is_integer()) attr.set_scales_mask(DNNL_ARG_WEIGHTS, !s.is_conv ? 2 : s.groups == 1 ? 1 : 3);
  dnnl::post_ops after;
  if (s.has_residual) {
    after.append_binary(dnnl::algorithm::binary_add, {s.output, s.output_type, s.output_strides});
  }
  // max(x, 0) that keeps NaN, unlike oneDNN's own: x where it is positive, else x times a zero that run() passes.
  const auto rectify = [&] {
    s.is_integer() ? after.append_eltwise(dnnl::algorithm::eltwise_relu, 0, 0) : after.append_prelu(0);
  };
  if (s.activation == Activation::kRelu) rectify();
  if (s.activation == Activation::kClip) {  // min(max(x, 0), high), likewise
    for (int i = 0; i < 2; i++) rectify(), after.append_eltwise(dnnl::algorithm::eltwise_linear, -1, s.high);
  }
  if (s.activation == Activation::kGelu) after.append_eltwise(dnnl::algorithm::eltwise_gelu_erf, 0, 0);
  if (s.factor != 1 || s.shift != 0) after.append_eltwise(dnnl::algorithm::eltwise_linear, s.factor, s.shift);
  if (s.output_type == dt::u8 && (s.low > 0 || s.high < 255)) after.append_eltwise(dnnl::algorithm::eltwise_clip, s.low, s.high);
  attr.set_post_ops(after);
  return attr;
}

// The product's primitive, and the layouts of what it reads and writes.
struct Found {
  Found(const ProductSpec& given, int threads) {
    if (given.is_integer()) want_vnni();
    const thread_pool::ScopedMaxThreads scope(threads);
    const ProductSpec s = given.computed();
    const dnnl::memory::desc input(s.input, s.input_type, s.input_strides), output(s.output, s.output_type, s.output_strides);
    const dnnl::memory::desc any_weights(s.weights, s.weight_type(), dnnl::memory::format_tag::any);
    const dnnl::memory::desc offset(s.vector(), dt::f32, s.is_conv ? dims{1} : dims{s.channels, 1});
    if (s.is_conv) {
      descriptor = dnnl::convolution_forward::primitive_desc(
          engine(), dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, input, any_weights, offset, output,
          s.strides, s.dilations, s.pad_low, s.pad_high, attributes(s));
    } else {
      descriptor = dnnl::matmul::primitive_desc(engine(), input, any_weights, offset, output, attributes(s));
    }
    weights = descriptor.query_md(dnnl::query::exec_arg_md, DNNL_ARG_WEIGHTS);
  }

  std::string name() const { return descriptor.impl_info_str(); }
  // Slow ones call a function for each number that an activation follows, too.
  bool is_for_blocks(const ProductSpec& s) const { return s.is_conv && is_slow_implementation(name()) && can_be_packed_gemm(s); }

  dnnl::primitive_desc descriptor;
  dnnl::memory::desc weights;
};

class Product final : public Operation {
 public:
  Product(const ProductSpec& s, int threads, const Found& found, bool describe_only) : spec_(s) {
    threads_ = threads;
    name_ = found.name();
    if (describe_only) return;
    const thread_pool::ScopedMaxThreads scope(threads);  // else oneDNN's cache has one made for another number, and layout of weights
    primitive_ = dnnl::primitive(found.descriptor);
    const ProductSpec inner = s.computed();
    input_ = {inner.input, s.input_type, inner.input_strides}, output_ = {s.output, s.output_type, s.output_strides};
    residual_ = {s.output, s.output_type, s.output_strides};
    weights_ = found.weights;
    offset_ = {s.vector(), dt::f32, s.is_conv ? dims{1} : dims{s.channels, 1}};
    zero_ = {dims(s.output.size(), 1), dt::f32, dims(s.output.size(), 1)};
    const auto after = found.descriptor.get_primitive_attr().get_post_ops();
    for (int i = 0; i < after.len(); i++) {
      if (after.kind(i) == dnnl::primitive::kind::prelu) rectifiers_.push_back(i);
    }
    scratchpad_ = found.descriptor.scratchpad_desc().get_size();
    if (s.skips_pixels()) pixels_bytes_ = input_.get_size();
    scratch_size_ = aligned(scratchpad_) + aligned(pixels_bytes_);
    const size_t count = static_cast<size_t>(s.channels) * sizeof(float);
    const size_t result = element_count(s.output) * bytes_of(s.output_type);
    operand_bytes_ = {element_count(s.input) * bytes_of(s.input_type), weights_.get_size(), count};
    if (s.is_integer()) operand_bytes_.push_back(count);
    if (s.has_residual) operand_bytes_.push_back(result);
    operand_bytes_.push_back(result);
  }

  std::string name() const override { return name_; }

  void run(void* const* operands, Scratch& scratch) const override {
    const auto memory = [](const dnnl::memory::desc& layout, void* data) { return dnnl::memory(layout, engine(), data); };
    void* input = pixels_bytes_ > 0 ? copy_pixels(operands[0], scratch.take(pixels_bytes_)) : operands[0];
    std::unordered_map<int, dnnl::memory> arguments = {{DNNL_ARG_SRC, memory(input_, input)},
                                                       {DNNL_ARG_WEIGHTS, memory(weights_, operands[1])},
                                                       {DNNL_ARG_SCRATCHPAD, take_scratchpad(scratch, scratchpad_)}};
    int next = 2;
    if (spec_.is_integer()) {
      arguments[DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS] = memory({{spec_.channels}, dt::f32, dims{1}}, operands[next++]);
    }
    arguments[DNNL_ARG_BIAS] = memory(offset_, operands[next++]);
    if (spec_.has_residual) {
      arguments[DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1] = memory(residual_, operands[next++]);
    }
    static const float zero = 0;
    for (const int position : rectifiers_) {
      arguments[DNNL_ARG_ATTR_MULTIPLE_POST_OP(position) | DNNL_ARG_WEIGHTS] = memory(zero_, const_cast<float*>(&zero));
    }
    arguments[DNNL_ARG_DST] = memory(output_, operands[next]);
    primitive_.execute(stream(), arguments);
  }

 private:
  void* copy_pixels(const void* data, char* to) const {
    const ProductSpec& s = spec_;
    const int64_t bytes = s.input[1] * static_cast<int64_t>(bytes_of(s.input_type));
    const int64_t pixels = static_cast<int64_t>(element_count(s.output)) / s.channels;
    const auto copy = [&](int64_t begin, int64_t end) {
      for (; begin < end; begin++) {
        int64_t rest = begin, at = 0;
        for (size_t i = s.output.size(); i-- > 2; rest /= s.output[i])
          at += rest % s.output[i] * s.strides[i - 2] * s.input_strides[i];
        at += rest * s.input_strides[0];
        std::memcpy(to + begin * bytes, static_cast<const char*>(data) + at * static_cast<int64_t>(bytes_of(s.input_type)),
                    static_cast<size_t>(bytes));
      }
    };
    if (threads_ == 1) {
      copy(0, pixels);
    } else {
      thread_pool::parallel_for(pixels, threads_, copy);
    }
    return to;
  }

  ProductSpec spec_;
  std::string name_;
  dnnl::primitive primitive_;
  dnnl::memory::desc input_, weights_, offset_, residual_, output_, zero_;
  std::vector<int> rectifiers_;               // positions of post-ops that take a zero
  size_t scratchpad_ = 0, pixels_bytes_ = 0;  // of the pixels that are read, where others are skipped
};

// Its name is the size of the packed weights in bytes.
class Pack final : public Operation {
 public:
  Pack(const ProductSpec& s, const Found& found, bool describe_only) {
    threads_ = 1;
    outer_ = {s.weights, s.given_weight_type(), s.weight_strides}, inner_ = found.weights;
    name_ = std::to_string(inner_.get_size());
    if (describe_only) return;
    const thread_pool::ScopedMaxThreads scope(threads_);
    reorder_ = Reorder(outer_, inner_);
    scratch_size_ = reorder_.scratch_size();
    operand_bytes_ = {element_count(s.weights) * bytes_of(s.given_weight_type()), inner_.get_size()};
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

std::unique_ptr<Operation> make_product(SpecReader reader, thread_pool::Settings settings, bool describe_only) {
  const ProductSpec spec(reader);
  if (has_few_rows(spec)) return make_few_rows(spec, settings);
  if (is_for_winograd(spec)) return make_winograd(spec, settings);
  if (is_for_integers(spec)) return make_integer_product(spec, settings);
  if (is_for_packed_gemm(spec)) return make_packed_product(spec, settings);
  const int threads = settings.threads_for(spec.flops());
  const Found found(spec, threads);
  if (is_for_grouped_conv(spec, found.name())) return make_grouped_product(spec, settings);
  if (found.is_for_blocks(spec)) return make_packed_product(spec, settings);
  return std::make_unique<Product>(spec, threads, found, describe_only);
}

std::unique_ptr<Operation> make_pack(SpecReader reader, thread_pool::Settings settings, bool describe_only) {
  const ProductSpec spec(reader);
  if (has_few_rows(spec)) return make_few_rows_pack(spec);
  if (is_for_winograd(spec)) return make_winograd_pack(spec, settings);
  if (is_for_integers(spec)) return make_integer_pack(spec);
  if (is_for_packed_gemm(spec)) return make_packed_product_pack(spec);
  const Found found(spec, settings.threads_for(spec.flops()));
  if (is_for_grouped_conv(spec, found.name())) return make_grouped_product_pack(spec);
  if (found.is_for_blocks(spec)) return make_packed_product_pack(spec);
  return std::make_unique<Pack>(spec, found, describe_only);
}

}  // namespace native
