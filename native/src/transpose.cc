// Matrices transposed, as an XLA call: what brings channels last, and back. XLA would compute it together with what comes before,
// element by element in the order of the result. The attribute "spec": dtype, count, rows, columns.

#include <exception>
#include <stdexcept>
#include <string>

#include "common.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using namespace native;

constexpr double kWorkOfAnElement = 16;  // in floating point operations that take as long

struct Transpose {
  size_t count;
  int threads;
  size_t scratch = 0;
  dnnl::memory::desc from, to;
  dnnl::reorder primitive;

  Transpose(const int64_t* v, size_t size) {
    if (size != 4 || std::min({v[1], v[2], v[3]}) < 1) throw std::runtime_error("a spec is broken");
    const int64_t n = v[1], rows = v[2], columns = v[3];
    count = static_cast<size_t>(n) * rows * columns;
    threads = team::threads_for(kWorkOfAnElement * static_cast<double>(count));
    team::Pretend pretend(threads);
    from = dnnl::memory::desc({n, rows, columns}, type_of(v[0]), dims{rows * columns, columns, 1});
    to = dnnl::memory::desc({n, rows, columns}, type_of(v[0]), dims{rows * columns, 1, rows});
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const auto pd = dnnl::reorder::primitive_desc(engine(), from, engine(), to, attr);
    scratch = pd.scratchpad_desc().get_size();
    primitive = dnnl::reorder(pd);
  }
};

ffi::Error Run(ffi::AnyBuffer from, ffi::Result<ffi::AnyBuffer> to, ffi::Span<const int64_t> spec) {
  try {
    static auto* cache = new Cache<Transpose>;
    const auto made = cache->get(spec.begin(), spec.size(), [&] { return std::make_shared<const Transpose>(spec.begin(), spec.size()); });
    if (from.element_count() != made->count || to->element_count() != made->count) {
      return ffi::Error(ffi::ErrorCode::kInvalidArgument, "an operand's size is not the spec's");
    }
    team::Use use(made->threads);
    Scratch scratch(rounded(made->scratch));
    made->primitive.execute(stream(), {{DNNL_ARG_FROM, dnnl::memory(made->from, engine(), from.untyped_data())},
                                       {DNNL_ARG_TO, dnnl::memory(made->to, engine(), to->untyped_data())},
                                       {DNNL_ARG_SCRATCHPAD, scratch.pad(made->scratch)}});
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("oneDNN transposition: ") + error.what());
  }
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    oneflow_transpose, Run, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<ffi::Span<const int64_t>>("spec"));
