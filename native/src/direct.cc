#include "direct.h"

namespace native {

namespace {

// (O, I, ...), or (groups, O / groups, I, ...) where there are several.
dims weight_shape(const ConvSpec& s) {
  if (s.groups == 1) return s.kernel;
  dims shape{s.groups, s.kernel[0] / s.groups};
  shape.insert(shape.end(), s.kernel.begin() + 1, s.kernel.end());
  return shape;
}

dims weight_strides(const ConvSpec& s) {
  const dims shape = weight_shape(s);
  const size_t in = s.groups == 1 ? 1 : 2;  // the axis of the input's channels
  dims strides(shape.size());
  int64_t step = 1;
  const auto place = [&](size_t axis) { strides[axis] = step, step *= shape[axis]; };
  if (s.weights_channels_last()) place(in);
  for (size_t axis = shape.size() - 1; axis > in; axis--) place(axis);
  if (!s.weights_channels_last()) place(in);
  for (size_t axis = in; axis-- > 0;) place(axis);
  return strides;
}

struct Layouts {
  dnnl::memory::desc input, weights, output;
};

// `dtypes`: of the operands in the order of the call.
Layouts callers_layouts(const ConvSpec& s, const dt (&dtypes)[3]) {
  constexpr int kPositions[3][3] = {{0, 1, 2}, {2, 1, 0}, {0, 2, 1}};  // of the input, weights and output
  const int* at = kPositions[s.kind];
  return {{s.input, dtypes[at[0]], data_strides(s.input)},
          {weight_shape(s), dtypes[at[1]], weight_strides(s)},
          {s.output, dtypes[at[2]], data_strides(s.output)}};
}

// The same for oneDNN to choose, in all but the dtypes.
dnnl::memory::desc any_layout(const dnnl::memory::desc& desc) {
  return {desc.get_dims(), desc.get_data_type(), dnnl::memory::format_tag::any};
}

// oneDNN's implementation for these layouts, of which `any` ones are for it to choose.
dnnl::primitive_desc find(const ConvSpec& s, const Layouts& l) {
  const auto training = dnnl::prop_kind::forward_training;
  const auto direct = dnnl::algorithm::convolution_direct;
  dims dilation = s.dilations;  // oneDNN's dilation is the number of elements between two taps
  for (auto& size : dilation) size -= 1;
  const auto attr = user_scratchpad();
  if (s.kind == ConvSpec::kForward) {
    return dnnl::convolution_forward::primitive_desc(engine(), training, direct, l.input, l.weights, l.output, s.strides,
                                                     dilation, s.pad_low, s.pad_high, attr);
  }
  const auto hinted = [&](dnnl::memory::desc desc) {  // the gradients' implementations ask what the forward one's dtypes were
    const auto dtype = desc.get_data_type();
    return dtype == s.dtypes.compute ? desc : dnnl::memory::desc(desc.get_dims(), s.dtypes.compute, dnnl::memory::format_tag::any);
  };
  const dnnl::convolution_forward::primitive_desc forward(engine(), training, direct, hinted(l.input), hinted(l.weights),
                                                          hinted(l.output), s.strides, dilation, s.pad_low, s.pad_high);
  switch (s.kind) {
    case ConvSpec::kBackwardData:
      return dnnl::convolution_backward_data::primitive_desc(engine(), direct, l.input, l.weights, l.output, s.strides,
                                                             dilation, s.pad_low, s.pad_high, forward, attr);
    default:
      return dnnl::convolution_backward_weights::primitive_desc(engine(), direct, l.input, l.weights, l.output, s.strides,
                                                                dilation, s.pad_low, s.pad_high, forward, attr);
  }
}

// The implementation for the caller's layouts of data, or, where it is a slow one, for layouts that oneDNN chooses.
dnnl::primitive_desc best(const ConvSpec& s) {
  const dt compute = s.dtypes.compute;
  // The result is summed in float32 and may be stored so; the inputs are converted before.
  Layouts inner = callers_layouts(s, {compute, compute, compute == dt::f32 ? dt::f32 : s.dtypes.operands[2]});
  inner.weights = any_layout(inner.weights);
  const auto found = find(s, inner);
  if (!is_slow_implementation(found.impl_info_str())) return found;
  return find(s, {any_layout(inner.input), inner.weights, any_layout(inner.output)});
}

// The gradient to strided data of narrow groups: 8.3 ms in bfloat16, 0.09 in float32, for 96 groups of one channel on 32 x 32.
bool is_slow_in_bfloat16(const ConvSpec& s, const dnnl::primitive_desc& found) {
  constexpr int64_t kNarrow = 16;
  const bool is_narrow = s.groups > 1 && s.kernel[1] < kNarrow && s.kind == ConvSpec::kBackwardData;
  return s.dtypes.compute == dt::bf16 && is_narrow &&
         std::string(found.impl_info_str()).find("brgconv_strided") != std::string::npos;
}

}  // namespace

DirectConv::DirectConv(const ConvSpec& spec, int threads, bool describe_only) {
  const thread_pool::ScopedMaxThreads scope(threads);
  ConvSpec s = spec;
  // oneDNN's gradient to weights from bfloat16 arrays is wrong where windows are larger than the image (2023.2).
  if (s.kind == ConvSpec::kBackwardWeights && s.window_exceeds_image()) s.dtypes.compute = dt::f32;
  const Layouts outer = callers_layouts(s, s.dtypes.operands);
  auto found = best(s);
  if (is_slow_in_bfloat16(s, found)) {
    s.dtypes.compute = dt::f32;
    found = best(s);
  }
  name_ = found.impl_info_str();
  if (describe_only) return;

  primitive_ = dnnl::primitive(found);
  scratchpad_ = found.scratchpad_desc().get_size();
  scratch_size_ = aligned(scratchpad_);
  const auto set = [&](Operand& operand, const dnnl::memory::desc& layout, int argument) {
    operand.outer = layout;
    operand.inner = found.query_md(dnnl::query::exec_arg_md, argument);
    operand.argument = argument;
    operand.is_reordered = operand.outer != operand.inner;
    if (!operand.is_reordered) return;
    const bool is_result = &operand == &result_;
    operand.reorder = is_result ? Reorder(operand.inner, operand.outer) : Reorder(operand.outer, operand.inner);
    scratch_size_ += operand.scratch_size();
  };
  switch (s.kind) {
    case ConvSpec::kForward:
      set(first_, outer.input, DNNL_ARG_SRC);
      set(second_, outer.weights, DNNL_ARG_WEIGHTS);
      set(result_, outer.output, DNNL_ARG_DST);
      break;
    case ConvSpec::kBackwardData:
      set(first_, outer.output, DNNL_ARG_DIFF_DST);
      set(second_, outer.weights, DNNL_ARG_WEIGHTS);
      set(result_, outer.input, DNNL_ARG_DIFF_SRC);
      break;
    case ConvSpec::kBackwardWeights:
      set(first_, outer.input, DNNL_ARG_SRC);
      set(second_, outer.output, DNNL_ARG_DIFF_DST);
      set(result_, outer.weights, DNNL_ARG_DIFF_WEIGHTS);
      break;
  }
}

bool DirectConv::is_slow() const { return is_slow_implementation(name_); }

void DirectConv::run(const void* first, const void* second, void* result, Scratch& scratch) const {
  const auto inner = [&](const Operand& operand, const void* data) {
    void* place = operand.is_reordered ? scratch.take(operand.inner.get_size()) : const_cast<void*>(data);
    return dnnl::memory(operand.inner, engine(), place);
  };
  const auto read = [&](const Operand& operand, const void* data) {
    const auto memory = inner(operand, data);
    if (operand.is_reordered) {
      operand.reorder.run(dnnl::memory(operand.outer, engine(), const_cast<void*>(data)), memory, scratch);
    }
    return memory;
  };
  const auto a = read(first_, first), b = read(second_, second), c = inner(result_, result);
  primitive_.execute(stream(), {{first_.argument, a},
                                {second_.argument, b},
                                {result_.argument, c},
                                {DNNL_ARG_SCRATCHPAD, take_scratchpad(scratch, scratchpad_)}});
  if (result_.is_reordered) result_.reorder.run(c, dnnl::memory(result_.outer, engine(), result), scratch);
}

}  // namespace native
