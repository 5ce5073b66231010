// What the library exports: one XLA handler per kind of call, and the same calls for Python. The one file that knows XLA.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <initializer_list>

#include "bf16_speed.h"
#include "cache.h"
#include "meeting.h"
#include "operation.h"
#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using namespace native;

using Spec = ffi::Span<const int64_t>;
using Input = ffi::AnyBuffer;
using Output = ffi::Result<ffi::AnyBuffer>;

// A spec may begin with a negative number: of the devices of this process that the program runs on.
int devices_of(Spec& spec) {
  if (spec.size() == 0 || *spec.begin() >= 0) return 1;
  const auto devices = std::min<int64_t>(-*spec.begin(), 1 << 20);
  spec = Spec(spec.begin() + 1, spec.size() - 1);
  return static_cast<int>(devices);
}

template <MakeOperation& make>
std::shared_ptr<const Operation> find(Spec spec, const thread_pool::Settings& settings) {
  static auto* cache = new Cache<Operation>;  // never destroyed: threads may outlive the end of main
  Key key(spec.begin(), spec.end());
  key.push_back(settings.size);
  key.push_back(static_cast<int64_t>(settings.min_parallel_work));
  return cache->get(key, [&] { return make(SpecReader(spec.begin(), spec.size()), settings, false); });
}

// `bytes`: the operands' sizes, where they are known, and `count` their number.
template <MakeOperation& make>
void execute(Spec spec, void* const* operands, const size_t* bytes, size_t count) {
  const int devices = devices_of(spec);
  for (;;) {
    const auto operation = find<make>(spec, thread_pool::settings(devices));
    const auto& expected = operation->operand_bytes();
    if (bytes && !std::equal(expected.begin(), expected.end(), bytes, bytes + count)) {
      throw std::invalid_argument("an operand's size is not that of the spec");
    }
    const thread_pool::OwnCore core(devices);
    const thread_pool::Lock lock(operation->threads(), devices);
    if (lock.threads() < operation->threads()) continue;  // the pool has shrunk: take one for fewer threads
    Scratch scratch(operation->scratch_size());
    return operation->run(operands, scratch);
  }
}

constexpr size_t kMaxOperands = 10;

template <class Body>
ffi::Error guarded(const Body& body) {
  try {
    body();
    return ffi::Error::Success();
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("oneflow-jax-native: ") + error.what());
  }
}

template <MakeOperation& make>
ffi::Error handle(Spec spec, std::initializer_list<ffi::AnyBuffer> buffers) {
  void* operands[kMaxOperands];
  size_t bytes[kMaxOperands], i = 0;
  for (const auto& buffer : buffers) operands[i] = buffer.untyped_data(), bytes[i++] = buffer.size_bytes();
  return guarded([&] { execute<make>(spec, operands, bytes, i); });
}

template <MakeOperation& make>
ffi::Error unary(Input x, Output y, Spec spec) {
  return handle<make>(spec, {x, *y});
}

template <MakeOperation& make>
ffi::Error binary(Input a, Input b, Output c, Spec spec) {
  return handle<make>(spec, {a, b, *c});
}

// As many inputs as the spec says.
ffi::Error product(ffi::RemainingArgs inputs, Output y, Spec spec) {
  void* operands[kMaxOperands];
  size_t bytes[kMaxOperands], i = 0;
  if (inputs.size() >= kMaxOperands) return ffi::Error(ffi::ErrorCode::kInvalidArgument, "oneflow-jax-native: too many inputs");
  for (; i < inputs.size(); i++) {
    const auto buffer = inputs.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return buffer.error();
    operands[i] = buffer->untyped_data(), bytes[i] = buffer->size_bytes();
  }
  operands[i] = y->untyped_data(), bytes[i++] = y->size_bytes();
  return guarded([&] { execute<make_product>(spec, operands, bytes, i); });
}

// Queries, keys, values and a mask to the result and the statistics of its weights.
ffi::Error attention(Input q, Input k, Input v, Input mask, Output y, Output statistics, Spec spec) {
  return handle<make_attention>(spec, {q, k, v, mask, *y, *statistics});
}

// The same, their results and the gradient to the first of these, to the gradients to q, k and v.
ffi::Error attention_grad(Input q, Input k, Input v, Input mask, Input y, Input statistics, Input dy, Output dq, Output dk,
                          Output dv, Spec spec) {
  return handle<make_attention_grad>(spec, {q, k, v, mask, y, statistics, dy, *dq, *dk, *dv});
}

// Logits and labels to losses and the logarithms of the sums of exponentials.
ffi::Error cross_entropy(Input logits, Input labels, Output losses, Output normalizers, Spec spec) {
  return handle<make_cross_entropy>(spec, {logits, labels, *losses, *normalizers});
}

// The same inputs, the second result and the gradient to the first, to the gradient to the logits.
ffi::Error cross_entropy_grad(Input logits, Input labels, Input normalizers, Input dy, Output dx, Spec spec) {
  return handle<make_cross_entropy_grad>(spec, {logits, labels, normalizers, dy, *dx});
}

// The addresses and sizes of all inputs and results.
ffi::Error collect(ffi::RemainingArgs inputs, ffi::RemainingRets results, std::vector<void*>& operands, std::vector<size_t>& bytes) {
  const auto add = [&](const ffi::AnyBuffer& buffer) {
    operands.push_back(buffer.untyped_data());
    bytes.push_back(buffer.size_bytes());
  };
  for (size_t i = 0; i < inputs.size(); i++) {
    const auto buffer = inputs.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return buffer.error();
    add(*buffer);
  }
  for (size_t i = 0; i < results.size(); i++) {
    auto buffer = results.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return buffer.error();
    add(**buffer);
  }
  return ffi::Error::Success();
}

// As many inputs and results as the spec says.
template <MakeOperation& make>
ffi::Error several(ffi::RemainingArgs inputs, ffi::RemainingRets results, Spec spec) {
  std::vector<void*> operands;
  std::vector<size_t> bytes;
  if (auto error = collect(inputs, results, operands, bytes); error.failure()) return error;
  return guarded([&] { execute<make>(spec, operands.data(), bytes.data(), bytes.size()); });
}

Meetings& meetings() {
  static auto* shared = new Meetings;  // never destroyed: threads may outlive the end of main
  return *shared;
}

// Computes for all participants; returns what went wrong, "" for nothing.
template <MakeOperation& make>
std::string execute_together(Spec spec, const Participants& all) {
  try {
    std::vector<void*> operands;
    std::vector<size_t> bytes;
    for (const auto& each : all) {
      operands.insert(operands.end(), each.operands.begin(), each.operands.end());
      bytes.insert(bytes.end(), each.bytes.begin(), each.bytes.end());
    }
    execute<make>(spec, operands.data(), bytes.data(), bytes.size());
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// How long a device waits for the others in its thread, where each has a core of its own: to sleep and be woken takes as long.
constexpr std::chrono::microseconds kShortWait{200};

// A call that the devices of a run make together, with the operands and results of each. A spec begins with the number of devices
// and with that of the call among those of its program. `waits`: the devices go on at once, when the last one has come.
template <MakeOperation& make, bool waits>
ffi::Future together(ffi::RunId run, int32_t device, ffi::ThreadPool threads, ffi::RemainingArgs inputs, ffi::RemainingRets results,
                     Spec spec) {
  ffi::Promise promise;
  ffi::Future future(promise);
  const auto arrival = std::make_shared<Arrival>([promise](const std::string& error) mutable {
    if (error.empty()) {
      promise.SetAvailable();
    } else {
      promise.SetError(ffi::Error(ffi::ErrorCode::kInternal, "oneflow-jax-native: " + error));
    }
  });
  Participant participant{device, {}, {}, arrival};
  if (auto error = collect(inputs, results, participant.operands, participant.bytes); error.failure()) {
    promise.SetError(std::move(error));
    return future;
  }
  if (spec.size() < 2 || spec.begin()[0] < 1) {
    promise.SetError(ffi::Error(ffi::ErrorCode::kInternal, "oneflow-jax-native: the spec is too short"));
    return future;
  }
  const auto devices = static_cast<size_t>(spec.begin()[0]);
  Participants all;
  try {
    all = meetings().join({run.run_id, spec.begin()[1]}, devices, std::move(participant));
  } catch (const std::exception& error) {
    promise.SetError(ffi::Error(ffi::ErrorCode::kResourceExhausted, error.what()));
    return future;
  }
  if (all.empty()) {
    const bool has_cores = devices <= static_cast<size_t>(thread_pool::settings(1).size);
    const thread_pool::OwnCore core(waits ? static_cast<int>(devices) : 1);
    arrival->wait(waits && has_cores ? kShortWait : kShortWait.zero());
    return future;
  }
  const std::string error = execute_together<make>(spec, all);
  for (auto& each : all) {
    if (each.arrival == arrival || each.arrival->tell(error)) continue;
    try {  // not here: what its program does next, such as a collective, must not keep this device from going on
      threads.Schedule([other = each.arrival]() { other->finish(); });
    } catch (const std::exception&) {
      each.arrival->finish();
    }
  }
  arrival->tell(error);
  arrival->finish();
  return future;
}

}  // namespace

#define UNARY ffi::Ffi::Bind().Arg<Input>().Ret<ffi::AnyBuffer>().Attr<Spec>("spec")
#define BINARY ffi::Ffi::Bind().Arg<Input>().Arg<Input>().Ret<ffi::AnyBuffer>().Attr<Spec>("spec")

XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_conv, binary<make_conv>, BINARY);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_matmul, binary<make_matmul>, BINARY);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_transpose, unary<make_transpose>, UNARY);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_pack_weights, unary<make_pack>, UNARY);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_largest, unary<make_largest>, UNARY);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_product, product,
                              ffi::Ffi::Bind().RemainingArgs().Ret<ffi::AnyBuffer>().Attr<Spec>("spec"));

#define SEVERAL ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<Spec>("spec")
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_update, several<make_update>, SEVERAL);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_product_update, several<make_product_update>, SEVERAL);
#define TOGETHER \
  ffi::Ffi::Bind().Ctx<ffi::RunId>().Ctx<ffi::DeviceOrdinal>().Ctx<ffi::ThreadPool>().RemainingArgs().RemainingRets().Attr<Spec>( \
      "spec")
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_summed_update, (together<make_summed_update, false>), TOGETHER);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_exchange, (together<make_exchange, true>), TOGETHER);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_batch_norm, several<make_batch_norm>, SEVERAL);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_batch_norm_grad, several<make_batch_norm_grad>, SEVERAL);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_max_pool, several<make_max_pool>, SEVERAL);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_max_pool_grad, several<make_max_pool_grad>, SEVERAL);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_layer_norm, several<make_layer_norm>, SEVERAL);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_layer_norm_grad, several<make_layer_norm_grad>, SEVERAL);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_group_norm, several<make_group_norm>, SEVERAL);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_group_norm_grad, several<make_group_norm_grad>, SEVERAL);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_lstm_cell, several<make_lstm_cell>, SEVERAL);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_lstm_cell_grad, several<make_lstm_cell_grad>, SEVERAL);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_lstm_layer, several<make_lstm_layer>, SEVERAL);
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_lstm_layer_grad, several<make_lstm_layer_grad>, SEVERAL);

#define FOUR ffi::Ffi::Bind().Arg<Input>().Arg<Input>().Arg<Input>().Arg<Input>()
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_attention, attention,
                              FOUR.Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<Spec>("spec"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_attention_grad, attention_grad,
                              FOUR.Arg<Input>().Arg<Input>().Arg<Input>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>().Attr<Spec>("spec"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    oneflow_cross_entropy, cross_entropy,
    ffi::Ffi::Bind().Arg<Input>().Arg<Input>().Ret<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>().Attr<Spec>("spec"));
XLA_FFI_DEFINE_HANDLER_SYMBOL(oneflow_cross_entropy_grad, cross_entropy_grad,
                              FOUR.Ret<ffi::AnyBuffer>().Attr<Spec>("spec"));

// --- for Python

namespace {

struct Call {
  const char* name;
  MakeOperation* make;
  void (*execute)(Spec, void* const*, const size_t*, size_t);
};

constexpr Call kCalls[] = {{"conv", make_conv, execute<make_conv>},
                           {"matmul", make_matmul, execute<make_matmul>},
                           {"transpose", make_transpose, execute<make_transpose>},
                           {"product", make_product, execute<make_product>},
                           {"pack_weights", make_pack, execute<make_pack>},
                           {"largest", make_largest, execute<make_largest>},
                           {"attention", make_attention, execute<make_attention>},
                           {"attention_grad", make_attention_grad, execute<make_attention_grad>},
                           {"update", make_update, execute<make_update>},
                           {"product_update", make_product_update, execute<make_product_update>},
                           {"summed_update", make_summed_update, execute<make_summed_update>},
                           {"exchange", make_exchange, execute<make_exchange>},
                           {"batch_norm", make_batch_norm, execute<make_batch_norm>},
                           {"batch_norm_grad", make_batch_norm_grad, execute<make_batch_norm_grad>},
                           {"max_pool", make_max_pool, execute<make_max_pool>},
                           {"max_pool_grad", make_max_pool_grad, execute<make_max_pool_grad>},
                           {"layer_norm", make_layer_norm, execute<make_layer_norm>},
                           {"layer_norm_grad", make_layer_norm_grad, execute<make_layer_norm_grad>},
                           {"group_norm", make_group_norm, execute<make_group_norm>},
                           {"group_norm_grad", make_group_norm_grad, execute<make_group_norm_grad>},
                           {"lstm_cell", make_lstm_cell, execute<make_lstm_cell>},
                           {"lstm_cell_grad", make_lstm_cell_grad, execute<make_lstm_cell_grad>},
                           {"lstm_layer", make_lstm_layer, execute<make_lstm_layer>},
                           {"lstm_layer_grad", make_lstm_layer_grad, execute<make_lstm_layer_grad>},
                           {"cross_entropy", make_cross_entropy, execute<make_cross_entropy>},
                           {"cross_entropy_grad", make_cross_entropy_grad, execute<make_cross_entropy_grad>}};

// Runs body(call) and writes a text of at most `room` bytes: its result, or "! " and the error.
template <class Body>
void write_text(const char* name, char* text, int room, const Body& body) {
  std::string result = "! there is no such call";
  try {
    for (const Call& call : kCalls) {
      if (std::strcmp(call.name, name) == 0) result = body(call);
    }
  } catch (const std::exception& error) {
    result = std::string("! ") + error.what();
  }
  const size_t size = std::min(result.size(), static_cast<size_t>(room - 1));
  std::copy_n(result.data(), size, text);
  text[size] = 0;
}

}  // namespace

extern "C" {

// The version of XLA's FFI that the handlers were built for. XLA takes handlers of its own version and of older ones.
__attribute__((visibility("default"))) void oneflow_ffi_version(int* major, int* minor) {
  *major = XLA_FFI_API_MAJOR;
  *minor = XLA_FFI_API_MINOR;
}

// Whether the machine multiplies bfloat16 numbers (AVX-512 BF16, or AMX), and does not only emulate it: 2 if faster than float32, 1 if not.
__attribute__((visibility("default"))) int oneflow_bfloat16() { return static_cast<int>(native::bf16_speed()); }

// How many seconds a call that devices make together waits for the last of them.
__attribute__((visibility("default"))) void oneflow_set_patience(int seconds) { meetings().set_patience(seconds); }

// The name of the implementation that a spec takes.
__attribute__((visibility("default"))) void oneflow_describe(const char* name, const int64_t* spec, int size, char* text,
                                                             int room) {
  write_text(name, text, room, [&](const Call& call) {
    return call.make(SpecReader(spec, static_cast<size_t>(size)), thread_pool::settings(1), true)->name();
  });
}

// One call outside XLA, for measuring and for tests: the inputs, then the result. The text is "" where it worked.
__attribute__((visibility("default"))) void oneflow_execute(const char* name, const int64_t* spec, int size,
                                                            void* const* operands, char* text, int room) {
  write_text(name, text, room, [&](const Call& call) {
    call.execute(Spec(spec, static_cast<size_t>(size)), operands, nullptr, 0);
    return std::string();
  });
}

}  // extern "C"
