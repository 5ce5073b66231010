#include "direct.h"

namespace native {

namespace {

dims channels_last(const dims& d) {
  dims strides(d.size());
  int64_t step = d[1];
  strides[1] = 1;
  for (size_t i = d.size() - 1; i >= 2; i--) strides[i] = step, step *= d[i];
  strides[0] = step;
  return strides;
}

dims weight_strides(const Spec& s) {
  const dims d = s.grouped_kernel();
  const size_t in = s.groups == 1 ? 1 : 2;  // where the input channels are
  dims strides(d.size());
  int64_t step = 1;
  auto put = [&](size_t i) { strides[i] = step, step *= d[i]; };
  if (s.flags & kWeightsChannelsLast) put(in);
  for (size_t i = d.size() - 1; i > in; i--) put(i);
  if (!(s.flags & kWeightsChannelsLast)) put(in);
  for (size_t i = in; i-- > 0;) put(i);
  return strides;
}

}  // namespace

void Direct::Operand::connect(bool inward) {
  differs = outer != inner;
  if (!differs) return;
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto pd = inward ? dnnl::reorder::primitive_desc(engine(), outer, engine(), inner, attr)
                         : dnnl::reorder::primitive_desc(engine(), inner, engine(), outer, attr);
  bridge_scratch = pd.scratchpad_desc().get_size();
  bridge = dnnl::reorder(pd);
}

Direct::Direct(const Spec& spec, int threads, bool only_described) : kind_(spec.kind) {
  team::Pretend pretend(threads);
  build(spec, only_described, false);
  if (is_slow()) build(spec, only_described, true);
}

// `freely`: oneDNN may choose the layout of data, too.
void Direct::build(const Spec& s, bool only_described, bool freely) {
  const auto any = dnnl::memory::format_tag::any;
  const dnnl::memory::desc x(s.source, s.type, channels_last(s.source)), y(s.result, s.type, channels_last(s.result));
  const dnnl::memory::desc w(s.grouped_kernel(), s.type, weight_strides(s));
  const auto xs = freely ? dnnl::memory::desc(s.source, s.type, any) : x, ys = freely ? dnnl::memory::desc(s.result, s.type, any) : y;
  const dnnl::memory::desc ws(s.grouped_kernel(), s.type, any);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto direct = dnnl::algorithm::convolution_direct;
  const auto training = dnnl::prop_kind::forward_training;
  const auto finish = [&](const auto& pd, const auto& make) {
    name_ = pd.impl_info_str();
    pad_ = pd.scratchpad_desc();
    if (!only_described && !(is_slow() && !freely)) primitive_ = make();
  };
  Operand first, second, third;
  const dnnl::convolution_forward::primitive_desc forward(
      engine(), training, direct, xs, ws, ys, s.strides, s.gaps, s.low, s.high, s.kind == kForward ? attr : dnnl::primitive_attr());
  if (s.kind == kForward) {
    first.outer = x, second.outer = w, third.outer = y;
    first.inner = forward.src_desc(), second.inner = forward.weights_desc(), third.inner = forward.dst_desc();
    finish(forward, [&] { return dnnl::convolution_forward(forward); });
  } else if (s.kind == kData) {
    const dnnl::convolution_backward_data::primitive_desc pd(
        engine(), direct, xs, ws, ys, s.strides, s.gaps, s.low, s.high, forward, attr);
    first.outer = y, second.outer = w, third.outer = x;
    first.inner = pd.diff_dst_desc(), second.inner = pd.weights_desc(), third.inner = pd.diff_src_desc();
    finish(pd, [&] { return dnnl::convolution_backward_data(pd); });
  } else {
    const dnnl::convolution_backward_weights::primitive_desc pd(
        engine(), direct, xs, ws, ys, s.strides, s.gaps, s.low, s.high, forward, attr);
    first.outer = x, second.outer = y, third.outer = w;
    first.inner = pd.src_desc(), second.inner = pd.diff_dst_desc(), third.inner = pd.diff_weights_desc();
    finish(pd, [&] { return dnnl::convolution_backward_weights(pd); });
  }
  if (!primitive_) return;
  first.connect(true), second.connect(true), third.connect(false);
  operands_[0] = first, operands_[1] = second, operands_[2] = third;
  scratch_ = rounded(pad_.get_size());
  for (const auto& o : operands_) scratch_ += o.extra();
}

void Direct::run(void* first, void* second, void* made, Scratch& scratch) const {
  const auto inside = [&](const Operand& o, void* data) {
    return dnnl::memory(o.inner, engine(), o.differs ? scratch.take(o.inner.get_size()) : data);
  };
  const auto bridged = [&](const Operand& o, const dnnl::memory& from, const dnnl::memory& to) {
    o.bridge.execute(stream(), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}, {DNNL_ARG_SCRATCHPAD, scratch.pad(o.bridge_scratch)}});
  };
  const auto brought = [&](const Operand& o, void* data) {
    const auto inner = inside(o, data);
    if (o.differs) bridged(o, dnnl::memory(o.outer, engine(), data), inner);
    return inner;
  };
  const int firsts[] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_SRC};
  const int seconds[] = {DNNL_ARG_WEIGHTS, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST};
  const int results[] = {DNNL_ARG_DST, DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_WEIGHTS};
  const Operand& last = operands_[2];
  const auto a = brought(operands_[0], first), b = brought(operands_[1], second), c = inside(last, made);
  const dnnl::memory pad(pad_, engine(), scratch.take(pad_.get_size()));
  primitive_.execute(stream(), {{firsts[kind_], a}, {seconds[kind_], b}, {results[kind_], c}, {DNNL_ARG_SCRATCHPAD, pad}});
  if (last.differs) bridged(last, c, dnnl::memory(last.outer, engine(), made));
}

}  // namespace native
