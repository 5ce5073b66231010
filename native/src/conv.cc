// Convolutions of oneDNN as XLA calls: forward, gradient to the data, gradient to the weights.
//
// A call is described by one vector of integers, the attribute "spec" (see oneflow/ops/_native_conv.py, which writes it).
// Data is channels-last in memory whatever its logical axes are called; weights are as the caller has them. Primitives are
// cached by spec; they keep nothing of a call.

#include <exception>
#include <string>

#include "columns.h"
#include "direct.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using namespace native;

constexpr int64_t kFewRows = 160;

// Products win where weights are many beside what they are applied to: there bringing them into blocks costs more than the
// convolution does. Measured with two threads, AVX-512 (docs/performance.md).
bool is_for_products(const Spec& s) {
  if (s.groups != 1 || s.flags & kNeverAsProduct || !(s.type == dt::f32 || s.is_plain())) return false;
  return s.flags & kAlwaysAsProduct || s.taps() == 1 || s.rows() <= kFewRows;
}

class Conv {
 public:
  explicit Conv(const Spec& s, bool only_described = false) : spec(s), threads(team::threads_for(s.work())) {
    if (is_for_products(s)) columns_ = std::make_unique<Columns>(s, threads, only_described);
    if (columns_ && columns_->is_slow()) columns_.reset();
    if (!columns_) direct_ = std::make_unique<Direct>(s, threads, only_described);
  }

  std::string name() const { return columns_ ? columns_->name() : direct_->name(); }

  void run(void* first, void* second, void* made) const {
    team::Use use(threads);
    Scratch scratch(columns_ ? columns_->scratch() : direct_->scratch());
    columns_ ? columns_->run(first, second, made, scratch) : direct_->run(first, second, made, scratch);
  }

  const Spec spec;
  const int threads;

 private:
  std::unique_ptr<Columns> columns_;
  std::unique_ptr<Direct> direct_;
};

std::shared_ptr<const Conv> conv_of(const int64_t* spec, size_t size) {
  static auto* cache = new Cache<Conv>;
  return cache->get(spec, size, [&] { return std::make_shared<const Conv>(Spec(spec, size)); });
}

ffi::Error Run(ffi::AnyBuffer first, ffi::AnyBuffer second, ffi::Result<ffi::AnyBuffer> made, ffi::Span<const int64_t> spec) {
  try {
    const auto conv = conv_of(spec.begin(), spec.size());
    const Spec& s = conv->spec;
    const size_t x = product_of(s.source), w = product_of(s.kernel), y = product_of(s.result);
    const size_t sizes[3][3] = {{x, w, y}, {y, w, x}, {x, y, w}};
    const auto& want = sizes[s.kind];
    if (first.element_count() != want[0] || second.element_count() != want[1] || made->element_count() != want[2]) {
      return ffi::Error(ffi::ErrorCode::kInvalidArgument, "an operand's size is not the spec's");
    }
    conv->run(first.untyped_data(), second.untyped_data(), made->untyped_data());
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("oneDNN convolution: ") + error.what());
  }
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    oneflow_conv, Run, ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<ffi::Span<const int64_t>>("spec"));

extern "C" {

// The name of what computes a spec, or "! " and why nothing does. Gives its length.
__attribute__((visibility("default"))) int oneflow_describe_conv(const int64_t* spec, int size, char* text, int room) {
  std::string name;
  try {
    name = Conv(Spec(spec, static_cast<size_t>(size)), true).name();
  } catch (const std::exception& error) {
    name = std::string("! ") + error.what();
  }
  return told(name, text, room);
}

// One call outside XLA, for measuring. Gives 0 where it worked.
__attribute__((visibility("default"))) int oneflow_execute_conv(const int64_t* spec, int size, void* first, void* second, void* made) {
  try {
    conv_of(spec, static_cast<size_t>(size))->run(first, second, made);
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}
}
