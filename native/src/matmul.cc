// Matrix products as XLA calls. The attribute "spec": dtype, batch, m, n, k, whether A lies transposed, whether B does (see
// oneflow/ops/_native_matmul.py, which writes it).

#include <exception>
#include <stdexcept>
#include <string>

#include "product.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using native::Product;

struct Call {
  Product::Sizes sizes;
  int threads;
  Product product;

  explicit Call(const int64_t* v, size_t size, bool only_described = false) {
    if (size != 7) throw std::runtime_error("a spec is broken");
    sizes = {native::type_of(v[0]), v[1], v[2], v[3], v[4], v[5] != 0, v[6] != 0};
    if (std::min({sizes.batch, sizes.m, sizes.n, sizes.k}) < 1) throw std::runtime_error("a spec is of an empty array");
    threads = team::threads_for(sizes.work());
    product = Product(sizes, threads, only_described);
  }

  void run(const void* a, const void* b, void* c) const {
    team::Use use(threads);
    native::Scratch scratch(product.scratch());
    product.run(a, b, c, scratch);
  }
};

std::shared_ptr<const Call> call_of(const int64_t* spec, size_t size) {
  static auto* cache = new native::Cache<Call>;
  return cache->get(spec, size, [&] { return std::make_shared<const Call>(spec, size); });
}

ffi::Error Run(ffi::AnyBuffer a, ffi::AnyBuffer b, ffi::Result<ffi::AnyBuffer> c, ffi::Span<const int64_t> spec) {
  try {
    const auto call = call_of(spec.begin(), spec.size());
    const auto& s = call->sizes;
    const auto is = [&](const ffi::AnyBuffer& v, int64_t rows, int64_t columns) {
      return static_cast<int64_t>(v.element_count()) == s.batch * rows * columns;
    };
    if (!is(a, s.m, s.k) || !is(b, s.k, s.n) || !is(*c, s.m, s.n)) {
      return ffi::Error(ffi::ErrorCode::kInvalidArgument, "an operand's size is not the spec's");
    }
    call->run(a.untyped_data(), b.untyped_data(), c->untyped_data());
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("oneDNN matrix product: ") + error.what());
  }
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    oneflow_matmul, Run, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<ffi::Span<const int64_t>>("spec"));

extern "C" {

// As those of convolutions.
__attribute__((visibility("default"))) int oneflow_describe_matmul(const int64_t* spec, int size, char* text, int room) {
  std::string name;
  try {
    name = Call(spec, static_cast<size_t>(size), true).product.name();
  } catch (const std::exception& error) {
    name = std::string("! ") + error.what();
  }
  return native::told(name, text, room);
}

__attribute__((visibility("default"))) int oneflow_execute_matmul(const int64_t* spec, int size, void* a, void* b, void* c) {
  try {
    call_of(spec, static_cast<size_t>(size))->run(a, b, c);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}
}
