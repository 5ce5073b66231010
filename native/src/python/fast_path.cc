// An extension module of CPython: calls of steps as oneflow/runtime/fast_path.py makes them, or for those that keep state
// oneflow/runtime/calling.py and launching.py, and as oneflow/runtime/delivery.py passes them, with the same objects and in the
// same order, without an interpreter between.
//
// Whatever is unusual is left to the Python code: arguments that do not fit, settings that have changed, errors to be raised.
// It runs with Python's lock held, which JAX lets go of while it computes and waits, and long copies while they copy.

#include "types.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#include <sched.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

extern "C" PyObject* PyObject_Vectorcall(PyObject*, PyObject* const*, size_t, PyObject*);  // 3.11 has it, and does not declare it

namespace {

constexpr size_t kOffset = size_t(1) << 63;  // PY_VECTORCALL_ARGUMENTS_OFFSET
constexpr int kMostInputs = 16;
constexpr int kMostKept = 4;  // copies of an argument
constexpr npy_intp kAlignment = 64;  // bytes: XLA uses memory in place where it begins at a multiple of this
constexpr size_t kLongCopy = 1 << 16;  // bytes
constexpr double kPatience = 100e-6;  // seconds that a call looks again and again whether its value is there
constexpr int kImpatient = 32;        // calls that do not, after one that looked in vain

struct Names {
  PyObject *is_ready, *value, *values, *seconds, *has_room, *wait_for_room, *tell, *done, *prepared, *call_checked, *failed;
} names;
PyTypeObject *state_type, *record_type, *deliveries_type, *callable_type;

PyObject* call(PyObject* function) { return PyObject_Vectorcall(function, nullptr, 0, nullptr); }

PyObject* call(PyObject* function, PyObject* argument) {
  PyObject* arguments[] = {nullptr, argument};
  return PyObject_Vectorcall(function, arguments + 1, 1 | kOffset, nullptr);
}

bool done(PyObject* returned) {  // of a call whose value nobody wants
  Py_XDECREF(returned);
  return returned != nullptr;
}

// Answers are 1, 0, or -1 with an exception set.
int is_same(PyObject* object, PyObject* name, PyObject* wanted) {
  Ref value(PyObject_GetAttr(object, name));
  return value ? value.get() == wanted : -1;
}

class KeptError {  // puts the error back that was set, whatever happens meanwhile
 public:
  KeptError() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~KeptError() {
    if (type_ != nullptr) PyErr_Restore(type_, value_, traceback_);
  }

 private:
  PyObject *type_, *value_, *traceback_;
};

struct Spec {
  PyObject* dtype = nullptr;  // owned by what the state holds
  std::vector<npy_intp> shape;

  bool read(PyObject* pair) {  // (shape, dtype)
    PyObject* sizes = PyTuple_GetItem(pair, 0);
    dtype = PyTuple_GetItem(pair, 1);
    if (sizes == nullptr || dtype == nullptr) return false;
    if (!PyArray_DescrCheck(dtype)) return PyErr_SetString(PyExc_TypeError, "not a NumPy dtype"), false;
    for (Py_ssize_t i = 0; i < PyTuple_Size(sizes); ++i) shape.push_back(PyLong_AsSsize_t(PyTuple_GetItem(sizes, i)));
    return !PyErr_Occurred();
  }

  bool fits(PyObject* object) const {
    if (Py_TYPE(object) != &PyArray_Type) return false;
    auto* array = reinterpret_cast<PyArrayObject*>(object);
    if (PyArray_NDIM(array) != int(shape.size())) return false;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (PyArray_DIM(array, int(i)) != shape[i]) return false;
    }
    auto *own = PyArray_DESCR(array), *wanted = reinterpret_cast<PyArray_Descr*>(dtype);
    return own == wanted || PyArray_EquivTypes(own, wanted);
  }
};

// What a function of this module was made with: attributes of ``Parts`` in fast_path.py.
enum { FUNCTION, WRITTEN, READ, PREPARED, OUTPUTS, LAUNCHER, DELIVERIES, NANS_NOW, NANS, INFS_NOW, INFS, DELIVERY, CONVERT,
       OTHERWISE, ENTER, LEAVE, ACQUIRE, RELEASE, PENDING, APPEND, NUMBERS, NEWEST, RESULT, WAKE, INPUTS, OUTPUT, LOOK_AT_FEEDS,
       LOOK, PARTS };
const char* const kParts[PARTS] = {
    "function", "written", "read", "prepared", "outputs", "launcher", "deliveries", "nans_now", "nans", "infs_now", "infs",
    "delivery", "convert", "otherwise", "enter", "leave", "acquire", "release", "pending", "append", "numbers", "newest",
    "result", "wake", "inputs", "output", "look_at_feeds", "look"};

struct State {
  PyObject_HEAD
  PyObject* parts[PARTS];
  bool is_single, keeps_state, gives_handles, reads_buffers;
  double interruptible_from, ended;
  int impatient;  // calls to come that wait at once
  std::vector<Spec>* inputs;
  Spec* output;
  PyObject* kept[kMostInputs][kMostKept];  // memory for copies of arguments, of earlier calls
  unsigned long thread;                    // that called last
  PyObject* thread_number;                 // the same for Python
};

State* state_of(PyObject* self) { return reinterpret_cast<State*>(self); }

int clear(PyObject* self) {
  for (PyObject*& part : state_of(self)->parts) Py_CLEAR(part);
  for (auto& arrays : state_of(self)->kept) {
    for (PyObject*& array : arrays) Py_CLEAR(array);
  }
  Py_CLEAR(state_of(self)->thread_number);
  return 0;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (PyObject* part : state_of(self)->parts) Py_VISIT(part);
  return 0;
}

void deallocate(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PyTypeObject* type = Py_TYPE(self);
  clear(self);
  delete state_of(self)->inputs;
  delete state_of(self)->output;
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

// A garbage collector may have emptied it while something else of the same cycle still calls.
bool is_alive(const State* s) {
  if (s->parts[CONVERT] == nullptr) PyErr_SetString(PyExc_RuntimeError, "the job of this call has been collected");
  return s->parts[CONVERT] != nullptr;
}

bool fits(const State* s, PyObject* arguments) {
  if (s->inputs == nullptr || !PyTuple_Check(arguments) || PyTuple_Size(arguments) != Py_ssize_t(s->inputs->size())) return false;
  for (size_t i = 0; i < s->inputs->size(); ++i) {
    if (!(*s->inputs)[i].fits(PyTuple_GetItem(arguments, Py_ssize_t(i)))) return false;
  }
  return true;
}

// With the lock held where the step keeps state.
int may_run(const State* s) {
  if (deliveries_of(s->parts[DELIVERIES])->attention) return 0;
  if (s->keeps_state && PyList_Size(s->parts[OUTPUTS]) != 0) return 0;  // an interrupted step's, not bound yet
  int same = is_same(s->parts[LAUNCHER], names.is_ready, Py_True);
  if (same == 1) same = is_same(s->parts[NANS_NOW], names.value, s->parts[NANS]);
  if (same == 1) same = is_same(s->parts[INFS_NOW], names.value, s->parts[INFS]);
  return same;
}

PyObject* empty_array(const Spec& spec) {
  Py_INCREF(spec.dtype);  // the array takes it
  auto* dtype = reinterpret_cast<PyArray_Descr*>(spec.dtype);
  return PyArray_NewFromDescr(&PyArray_Type, dtype, int(spec.shape.size()), spec.shape.data(), nullptr, nullptr, 0, nullptr);
}

// An array whose memory XLA can use in place.
PyObject* aligned_array(const Spec& spec, npy_intp bytes) {
  npy_intp size = bytes + kAlignment;
  Ref memory(PyArray_SimpleNew(1, &size, NPY_UINT8));
  if (!memory) return nullptr;
  auto* start = static_cast<char*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(memory.get())));
  start += -reinterpret_cast<uintptr_t>(start) % kAlignment;
  Py_INCREF(spec.dtype);  // the array takes it
  auto* dtype = reinterpret_cast<PyArray_Descr*>(spec.dtype);
  Ref made(PyArray_NewFromDescr(&PyArray_Type, dtype, int(spec.shape.size()), spec.shape.data(), nullptr, start, NPY_ARRAY_CARRAY,
                                nullptr));
  if (!made || PyArray_SetBaseObject(reinterpret_cast<PyArrayObject*>(made.get()), memory.release()) != 0) return nullptr;
  return made.release();
}

// Whether nobody else has an array of ``aligned_array``. JAX lets go of one when the device has read it.
bool is_unused(PyObject* array) {
  return Py_REFCNT(array) == 1 && Py_REFCNT(PyArray_BASE(reinterpret_cast<PyArrayObject*>(array))) == 1;
}

void copy_bytes(void* to, const void* from, size_t bytes) {  // `to` is nobody else's yet
  PyThreadState* others = bytes > kLongCopy ? PyEval_SaveThread() : nullptr;
  std::memcpy(to, from, bytes);
  if (others != nullptr) PyEval_RestoreThread(others);
}

// The array that a call is made with instead of one that fits, which the caller may change: a copy. To make a new one each time
// would take longer.
PyObject* copy_of(State* s, size_t i, PyArrayObject* array) {
  PyObject* made = nullptr;
  for (PyObject*& kept : s->kept[i]) {
    if (made == nullptr && kept != nullptr && is_unused(kept)) std::swap(made, kept);
  }
  if (made == nullptr) made = aligned_array((*s->inputs)[i], PyArray_NBYTES(array));
  if (made == nullptr) return nullptr;
  auto* copy = reinterpret_cast<PyArrayObject*>(made);
  if (PyArray_IS_C_CONTIGUOUS(array)) {
    copy_bytes(PyArray_DATA(copy), PyArray_DATA(array), size_t(PyArray_NBYTES(array)));
  } else if (PyArray_CopyInto(copy, array) != 0) {
    Py_DECREF(made);
    return nullptr;
  }
  return made;
}

void keep(State* s, size_t i, PyObject* copy) {
  for (PyObject*& kept : s->kept[i]) {
    if (kept == nullptr) std::swap(kept, copy);
  }
  Py_XDECREF(copy);
}

// A fresh, writable array of what was fetched; null without an exception where that has to be found otherwise.
PyObject* read_buffer(State* s, PyObject* fetched) {
  Py_buffer view;
  if (PyObject_GetBuffer(fetched, &view, PyBUF_C_CONTIGUOUS) != 0) {
    if (PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_Clear();
    return nullptr;
  }
  Ref made(empty_array(*s->output));
  auto* array = reinterpret_cast<PyArrayObject*>(made.get());
  const bool is_whole = array != nullptr && PyArray_NBYTES(array) == view.len;
  if (is_whole) copy_bytes(PyArray_DATA(array), view.buf, size_t(view.len));
  PyBuffer_Release(&view);
  return is_whole ? made.release() : nullptr;
}

bool look(PyObject* function, PyObject* at) { return function == Py_None || done(call(function, at)); }

// The value of what was fetched, of which `array` is the one array that is copied.
PyObject* value_of(State* s, PyObject* fetched, PyObject* array) {
  Ref made(s->reads_buffers ? read_buffer(s, array) : nullptr);
  if (!made) {
    if (PyErr_Occurred()) return nullptr;
    Ref converted(call(s->parts[CONVERT], fetched));
    if (!converted || !look(s->parts[LOOK], converted.get())) return nullptr;
    s->reads_buffers = false;  // it was not a failed computation that could not be read
    return converted.release();
  }
  return look(s->parts[LOOK], made.get()) ? made.release() : nullptr;
}

// The present values of cells, and behind them what is prepared.
PyObject* values_of(PyObject* cells, PyObject* prepared) {
  Ref more(prepared == Py_None ? Py_NewRef(nothing) : PyObject_CallMethodObjArgs(prepared, names.values, nullptr));
  if (!more) return nullptr;
  const Py_ssize_t count = PyTuple_Size(cells), added = PyTuple_Size(more.get());
  Ref made(added < 0 ? nullptr : PyTuple_New(count + added));
  for (Py_ssize_t i = 0; made && i < count + added; ++i) {
    PyObject* value =
        i < count ? PyObject_GetAttr(PyTuple_GetItem(cells, i), names.value) : Py_XNewRef(PyTuple_GetItem(more.get(), i - count));
    if (value == nullptr || PyTuple_SetItem(made.get(), i, value) != 0) return nullptr;
  }
  return made.release();
}

// Runs a step that keeps state, with the lock held, and makes its new state that of the session: as ``launch`` of launching.py.
// Returns what it fetches, and two empty tuples. Between its outputs and their place in the cells no Python code runs, so that no
// interrupt can lose them.
PyObject* step(const State* s, PyObject* feeds) {
  Ref reads(values_of(s->parts[READ], s->parts[PREPARED]));
  Ref state(reads ? values_of(s->parts[WRITTEN], Py_None) : nullptr);
  if (!state) return nullptr;
  PyObject* given[] = {nullptr, state.get(), reads.get(), feeds};
  Ref outputs(PyObject_Vectorcall(s->parts[FUNCTION], given + 1, 3 | kOffset, nullptr));
  if (!outputs) return nullptr;
  PyObject* written = PyTuple_GetItem(outputs.get(), 0);
  if (written == nullptr || PyTuple_Size(written) != PyTuple_Size(s->parts[WRITTEN])) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a step has given another number of values than it replaces");
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(written); ++i) {
    PyObject* cell = PyTuple_GetItem(s->parts[WRITTEN], i);
    if (PyObject_SetAttr(cell, names.value, PyTuple_GetItem(written, i)) != 0) return nullptr;
  }
  return PyTuple_GetSlice(outputs.get(), 1, PyTuple_Size(outputs.get()));
}

// What a step without state fetches.
PyObject* fetch(const State* s, PyObject** arguments) {  // there is room for one more in front of them
  return PyObject_Vectorcall(s->parts[FUNCTION], arguments, s->inputs->size() | kOffset, nullptr);
}

void release(const State* s) {  // whatever error is set
  KeptError kept;
  if (!done(call(s->parts[RELEASE]))) PyErr_Clear();  // it is held
}

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) + 1e-9 * double(time.tv_nsec);
}

PyObject* run_now(State* s, PyObject* arguments) {
  PyObject* given[1 + kMostInputs];
  for (size_t i = 0; i < s->inputs->size(); ++i) given[1 + i] = PyTuple_GetItem(arguments, Py_ssize_t(i));
  Ref fetched(fetch(s, given + 1));
  return fetched ? value_of(s, fetched.get(), fetched.get()) : nullptr;
}

// A short step is awaited without sleeping: a thread takes 30 microseconds to wake, and meanwhile XLA's own falls asleep.
void await(State* s, PyObject* array) {
  if (s->impatient > 0) {
    --s->impatient;
    return;
  }
  const double end = now() + kPatience;
  do {
    Ref is_ready(PyObject_CallMethodObjArgs(array, names.is_ready, nullptr));
    if (!is_ready) return PyErr_Clear();  // it is none that can be asked; or its computation has failed, which is found out below
    if (is_ready.get() == Py_True) return;
    sched_yield();  // XLA's thread may have been woken on this core
  } while (now() < end);
  s->impatient = kImpatient;
}

// As ``run_now`` for a step that keeps state. `may` becomes what ``may_run`` says.
PyObject* run_state_now(State* s, PyObject* arguments, int* may) {
  if (!look(s->parts[LOOK_AT_FEEDS], arguments)) return nullptr;
  if (!done(call(s->parts[ACQUIRE]))) return nullptr;
  *may = may_run(s);
  Ref results(*may == 1 ? step(s, arguments) : nullptr);
  release(s);
  PyObject* fetched = results ? PyTuple_GetItem(results.get(), 0) : nullptr;
  if (fetched == nullptr) return nullptr;
  PyObject* first = PyTuple_Size(fetched) > 0 ? PyTuple_GetItem(fetched, 0) : nullptr;
  PyErr_Clear();
  if (first != nullptr) await(s, first);
  return value_of(s, fetched, first);
}

bool note_end(State* s) {
  const double time = now(), since = time - s->ended;
  s->ended = time;
  if (since <= s->interruptible_from) return true;
  Ref seconds(PyFloat_FromDouble(s->interruptible_from));  // this call may have taken as long: the next one is timed
  return seconds && PyObject_SetAttr(s->parts[DELIVERY], names.seconds, seconds.get()) == 0;
}

// As ``synchronous`` of fast_path.py
PyObject* call_synchronously(PyObject* self, PyObject* arguments) {
  State* s = state_of(self);
  if (!is_alive(s)) return nullptr;
  if (!fits(s, arguments)) return call(s->parts[OTHERWISE], arguments);
  if (!done(call(s->parts[ENTER], Py_None))) return nullptr;
  int may = may_run(s);
  if (may == 1) {
    Ref seconds(PyObject_GetAttr(s->parts[DELIVERY], names.seconds));
    may = seconds ? PyFloat_AsDouble(seconds.get()) < s->interruptible_from : -1;
  }
  Ref value(may != 1 ? nullptr : s->keeps_state ? run_state_now(s, arguments, &may) : run_now(s, arguments));
  const bool is_made = value && note_end(s);
  {
    KeptError kept;
    if (!done(call(s->parts[LEAVE]))) PyErr_Clear();  // it has an entry: its own
  }
  if (may == 0) return call(s->parts[OTHERWISE], arguments);
  return is_made ? value.release() : nullptr;
}

PyObject* tuple_of(PyObject** objects, size_t count) {
  PyObject* made = PyTuple_New(Py_ssize_t(count));
  for (size_t i = 0; made != nullptr && i < count; ++i) PyTuple_SetItem(made, Py_ssize_t(i), Py_NewRef(objects[i]));
  return made;
}

int has_room(const State* s) {
  const Deliveries* deliveries = deliveries_of(s->parts[DELIVERIES]);
  if (PyObject_Size(s->parts[PENDING]) + deliveries->busy < deliveries->window) return 1;
  Ref answer(PyObject_CallMethodObjArgs(s->parts[DELIVERIES], names.has_room, nullptr));
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

// Runs the step and queues its Result: as ``dispatcher``, or ``submit``, of delivery.py and ``queued`` of result.py
PyObject* run_later(State* s, PyObject** arguments) {
  Ref feeds(s->keeps_state ? tuple_of(arguments, s->inputs->size()) : nullptr);
  if (s->keeps_state && !feeds) return nullptr;
  Ref fetched(s->keeps_state ? step(s, feeds.get()) : fetch(s, arguments));
  if (!fetched) return nullptr;
  const bool is_whole = s->keeps_state;  // what delivery is given, and not one array
  Ref results(is_whole       ? fetched.release()
              : s->is_single ? nullptr
                             : PyTuple_Pack(3, fetched.get(), nothing, nothing));
  Ref made(results || s->is_single ? PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(s->parts[RESULT]), 0) : nullptr);
  Ref number(made ? PyIter_Next(s->parts[NUMBERS]) : nullptr);
  if (!number) return nullptr;
  Record* record = record_of(made.get());
  record->delivery = Py_NewRef(s->parts[DELIVERY]);
  if (s->is_single) record->fetched = fetched.release();
  record->results = results.release();
  record->sequence = PyLong_AsLongLong(number.get());
  if (s->gives_handles) {
    record->thread = PyThread_get_thread_ident();
    if (record->thread != s->thread || s->thread_number == nullptr) {
      Ref before(s->thread_number);
      s->thread = record->thread;
      s->thread_number = PyLong_FromUnsignedLong(s->thread);
    }
    if (s->thread_number == nullptr || PyDict_SetItem(s->parts[NEWEST], s->thread_number, number.get()) != 0) return nullptr;
  }
  if (!done(call(s->parts[APPEND], made.get()))) return nullptr;
  if (deliveries_of(s->parts[DELIVERIES])->asleep && !done(call(s->parts[WAKE]))) return nullptr;
  return made.release();
}

// As ``asynchronous`` of fast_path.py
PyObject* call_asynchronously(PyObject* self, PyObject* arguments) {
  State* s = state_of(self);
  if (!is_alive(s)) return nullptr;
  if (!fits(s, arguments)) return call(s->parts[OTHERWISE], arguments);
  PyObject* copies[1 + kMostInputs];
  size_t count = 0;
  for (; count < s->inputs->size(); ++count) {
    copies[1 + count] = copy_of(s, count, reinterpret_cast<PyArrayObject*>(PyTuple_GetItem(arguments, Py_ssize_t(count))));
    if (copies[1 + count] == nullptr) break;
  }
  PyObject* made = nullptr;
  int may = count == s->inputs->size() && look(s->parts[LOOK_AT_FEEDS], arguments) ? 1 : -1, room = 0;
  while (may == 1 && room == 0) {
    if (!done(call(s->parts[ACQUIRE]))) {
      may = -1;
      break;
    }
    may = may_run(s);
    room = may == 1 ? has_room(s) : -1;
    if (room == 1) made = run_later(s, copies + 1);
    if (may == 1 && room < 0) may = -1;
    release(s);
    if (room == 0 && !done(PyObject_CallMethodObjArgs(s->parts[DELIVERIES], names.wait_for_room, nullptr))) may = -1;
  }
  for (; count > 0; --count) keep(s, count - 1, copies[count]);
  return may == 0 ? call(s->parts[OTHERWISE], arguments) : made;
}

PyObject* call_converter(PyObject* self, PyObject* results) {
  State* s = state_of(self);
  if (!is_alive(s)) return nullptr;
  if (!PyTuple_Check(results) || PyTuple_Size(results) == 0) return call(s->parts[CONVERT], results);
  return value_of(s, results, PyTuple_GetItem(results, 0));
}

PyMethodDef synchronous = {"synchronous", call_synchronously, METH_O, nullptr};
PyMethodDef asynchronous = {"asynchronous", call_asynchronously, METH_O, nullptr};
PyMethodDef conversion = {"converter", call_converter, METH_O, nullptr};

PyObject* function_of(PyMethodDef* method, PyObject* parts) {
  Ref made(PyType_GenericAlloc(state_type, 0));
  if (!made) return nullptr;
  State* s = state_of(made.get());
  const bool calls = method != &conversion;
  for (int i = 0; i < PARTS; ++i) {
    if (!calls && i != CONVERT && i != OUTPUT && i != LOOK) continue;
    s->parts[i] = PyObject_GetAttrString(parts, kParts[i]);
    if (s->parts[i] == nullptr) return nullptr;
  }
  if (s->parts[OUTPUT] != Py_None) {
    s->output = new Spec;
    if (!s->output->read(s->parts[OUTPUT])) return nullptr;
    s->reads_buffers = true;
  }
  if (!calls) return PyCFunction_NewEx(method, made.get(), nullptr);
  Ref single(PyObject_GetAttrString(parts, "is_single")), seconds(PyObject_GetAttrString(parts, "interruptible_from"));
  Ref handles(single && seconds ? PyObject_GetAttrString(s->parts[DELIVERY], "gives_handles") : nullptr);
  if (!handles) return nullptr;
  s->is_single = single.get() == Py_True;
  s->keeps_state = s->parts[WRITTEN] != Py_None;
  s->gives_handles = handles.get() == Py_True;
  s->interruptible_from = PyFloat_AsDouble(seconds.get());
  const Py_ssize_t count = PyTuple_Size(s->parts[INPUTS]);
  if (count > kMostInputs) PyErr_SetString(PyExc_ValueError, "too many inputs");
  PyObject* result = s->parts[RESULT];
  if (!PyType_Check(result) || !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(result), record_type)) {
    PyErr_SetString(PyExc_TypeError, "the results are no Records of this module");
  }
  if (!PyObject_TypeCheck(s->parts[DELIVERIES], deliveries_type)) {
    PyErr_SetString(PyExc_TypeError, "the deliveries are no Deliveries of this module");
  }
  if (count < 0 || PyErr_Occurred()) return nullptr;
  s->inputs = new std::vector<Spec>(size_t(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!(*s->inputs)[size_t(i)].read(PyTuple_GetItem(s->parts[INPUTS], i))) return nullptr;
  }
  return PyCFunction_NewEx(method, made.get(), nullptr);
}

PyObject* make_synchronous(PyObject*, PyObject* parts) { return function_of(&synchronous, parts); }
PyObject* make_asynchronous(PyObject*, PyObject* parts) { return function_of(&asynchronous, parts); }
PyObject* make_converter(PyObject*, PyObject* parts) { return function_of(&conversion, parts); }

// The arrays that ``calls`` wait for; null where they are of several jobs, or not just arrays.
PyObject* awaited_of(PyObject* calls) {
  Ref arrays(PyList_New(0));
  const PyObject* delivery = nullptr;
  for (Py_ssize_t i = 0; arrays && i < PyList_Size(calls); ++i) {
    PyObject* one = PyList_GetItem(calls, i);
    const Record* record = PyObject_TypeCheck(one, record_type) ? record_of(one) : nullptr;
    if (record == nullptr) return nullptr;
    if (delivery == nullptr) delivery = record->delivery;
    if (record->delivery != delivery) return nullptr;
    if (record->fetched != nullptr) {
      if (PyList_Append(arrays.get(), record->fetched) != 0) return nullptr;
      continue;
    }
    PyObject* found = record->results != nullptr ? PyTuple_GetItem(record->results, 0) : nullptr;
    if (found == nullptr || !PyTuple_Check(found) || PyTuple_Size(found) == 0) return nullptr;
    for (Py_ssize_t k = 0; k < PyTuple_Size(found); ++k) {
      PyObject* array = PyTuple_GetItem(found, k);
      if (PyTuple_Check(array) || PyList_Append(arrays.get(), array) != 0) return nullptr;
    }
  }
  return arrays.release();
}

// Whether a call is over, as ``done`` of result.py: a call of a step without state is when its array is.
int is_over(PyObject* one) {
  PyObject* fetched = PyObject_TypeCheck(one, record_type) ? record_of(one)->fetched : nullptr;
  Ref held(Py_XNewRef(fetched));
  Ref answer(PyObject_CallMethodObjArgs(held ? held.get() : one, held ? names.is_ready : names.done, nullptr));
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

// ``ended(pending, block_until_ready)``: the calls in the queue where all have ended well, [] where one has not, None where
// Python has to look: as ``_ended_together`` of delivery.py and ``have_ended`` of result.py
PyObject* ended(PyObject*, PyObject* arguments) {
  PyObject *pending, *block;
  if (!PyArg_ParseTuple(arguments, "OO", &pending, &block)) return nullptr;
  Ref calls(PySequence_List(pending));  // nobody appends meanwhile: Python's lock is held
  if (!calls || PyList_Size(calls.get()) == 0) return calls.release();
  PyObject* last = PyList_GetItem(calls.get(), PyList_Size(calls.get()) - 1);
  const int over = is_over(last);
  if (over != 1) return over == 0 ? PyList_New(0) : nullptr;
  Ref arrays(awaited_of(calls.get()));
  if (!arrays) {
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
  }
  if (done(call(block, arrays.get()))) return calls.release();
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
  PyErr_Clear();  // each is waited for by itself then, and keeps its own error
  return PyList_New(0);
}

// ``pass_on(calls, expecting, finished, deliveries, popleft)``: the loop of ``_deliver_here`` in delivery.py
PyObject* pass_on(PyObject*, PyObject* arguments) {
  PyObject *calls, *expecting, *finished, *deliveries, *popleft;
  if (!PyArg_ParseTuple(arguments, "O!OOO!O", &PyList_Type, &calls, &expecting, &finished, deliveries_type, &deliveries, &popleft)) {
    return nullptr;
  }
  Py_ssize_t count = 0;  // of those that nothing is to be run for
  for (int stops = 0; count < PyList_Size(calls); ++count) {
    const Record* record = record_of(PyList_GetItem(calls, count));
    if (record->has_callbacks) break;
    if (PySet_Size(expecting) > 0) {
      Ref sequence(PyLong_FromLongLong(record->sequence));
      stops = sequence ? PySet_Contains(expecting, sequence.get()) : -1;
    }
    if (stops < 0) return nullptr;
    if (stops == 1) break;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* result = PyList_GetItem(calls, i);
    Record* record = record_of(result);
    if (record->has_callbacks) break;  // one was registered meanwhile
    // others may have counted the call; steps without state never are
    Ref results(Py_XNewRef(record->results));
    if (results && !done(call(finished, results.get()))) return nullptr;
    record->passed = 1;
    if (record->is_touched) {
      if (!done(PyObject_CallMethodObjArgs(result, names.tell, nullptr))) return nullptr;
      if (record->has_callbacks) break;
    }
    deliveries_of(deliveries)->last_begun = deliveries_of(deliveries)->last_delivered = record->sequence;
    if (!done(call(popleft))) return nullptr;
  }
  Py_RETURN_NONE;
}

// Whether the call that has raised the present error has to be made again: ``_failed`` of the job is asked, which may change the
// error's traceback. An error stays set.
bool must_be_made_again(PyObject* job) {
  PyObject *type, *error, *traceback;
  PyErr_Fetch(&type, &error, &traceback);
  PyErr_NormalizeException(&type, &error, &traceback);
  if (traceback != nullptr) PyException_SetTraceback(error, traceback);
  Py_XDECREF(traceback);
  Ref answer(PyObject_CallMethodObjArgs(job, names.failed, error, nullptr));
  if (answer) {
    PyErr_Restore(type, error, PyException_GetTraceback(error));
    return answer.get() == Py_True;
  }
  Py_DECREF(type);
  Py_DECREF(error);
  return false;
}

// ``__call__`` of ``Prepared`` in prepared.py
PyObject* call_job(PyObject* self, PyObject* arguments, PyObject* keywords) {
  if (PyErr_CheckSignals() != 0) return nullptr;  // as a Python function does: a loop in C, as of ``map``, asks nobody else
  const bool has_keywords = keywords != nullptr && PyDict_Size(keywords) > 0;
  if (has_keywords && !PyArg_ValidateKeywordArguments(keywords)) return nullptr;
  Ref prepared(PyObject_GetAttr(self, names.prepared));
  if (!prepared) return nullptr;
  if (prepared.get() != Py_None && !has_keywords) {
    PyObject* value = call(prepared.get(), arguments);
    if (value != nullptr || !must_be_made_again(self)) return value;
    PyErr_Clear();
  }
  Ref given(has_keywords ? Py_NewRef(keywords) : PyDict_New());
  PyObject* value = given ? PyObject_CallMethodObjArgs(self, names.call_checked, arguments, given.get(), nullptr) : nullptr;
  if (value == nullptr) must_be_made_again(self);
  return value;
}

PyMethodDef functions[] = {
    {"synchronous", make_synchronous, METH_O, "A function that makes one call and returns its value."},
    {"asynchronous", make_asynchronous, METH_O, "A function that makes one call and returns its Result."},
    {"converter", make_converter, METH_O, "A function from a tuple with one fetched array to a fresh NumPy array."},
    {"ended", ended, METH_VARARGS, "The calls in a queue where all have ended well."},
    {"pass_on", pass_on, METH_VARARGS, "Delivers calls that nothing is to be run for."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "fast_path", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {0, nullptr}};
PyType_Spec spec = {"oneflow_native.State", sizeof(State), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

PyType_Slot record_slots[] = {{Py_tp_members, record_members},
                              {Py_tp_getset, record_properties},
                              {Py_tp_traverse, reinterpret_cast<void*>(traverse_record)},
                              {Py_tp_clear, reinterpret_cast<void*>(clear_record)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(deallocate_record)},
                              {0, nullptr}};
PyType_Spec record_spec = {"oneflow_native.Record", sizeof(Record), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, record_slots};

PyType_Slot deliveries_slots[] = {{Py_tp_members, deliveries_members},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(deallocate_plainly)},
                                  {0, nullptr}};
PyType_Spec deliveries_spec = {"oneflow_native.Deliveries", sizeof(Deliveries), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                               deliveries_slots};

PyType_Slot callable_slots[] = {{Py_tp_call, reinterpret_cast<void*>(call_job)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(deallocate_plainly)},
                                {0, nullptr}};
PyType_Spec callable_spec = {"oneflow_native.Prepared", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, callable_slots};

bool intern() {
  const std::pair<PyObject**, const char*> all[] = {
      {&names.is_ready, "is_ready"}, {&names.value, "value"}, {&names.values, "values"}, {&names.seconds, "seconds"},
      {&names.has_room, "has_room"}, {&names.wait_for_room, "wait_for_room"}, {&names.tell, "tell"}, {&names.done, "done"},
      {&names.prepared, "_call"}, {&names.call_checked, "_call_checked"}, {&names.failed, "_failed"}};
  for (auto& [name, text] : all) {
    if ((*name = PyUnicode_InternFromString(text)) == nullptr) return false;
  }
  return (nothing = PyTuple_New(0)) != nullptr;
}

bool make_types(PyObject* module) {  // those with a name are its attributes
  const struct {
    PyTypeObject** type;
    PyType_Spec* spec;
    const char* name;
  } all[] = {{&state_type, &spec, nullptr},
             {&record_type, &record_spec, "Record"},
             {&deliveries_type, &deliveries_spec, "Deliveries"},
             {&callable_type, &callable_spec, "Prepared"}};
  for (auto& [type, of, name] : all) {
    PyObject* made = PyType_FromSpec(of);
    *type = reinterpret_cast<PyTypeObject*>(made);
    if (made == nullptr || (name != nullptr && PyModule_AddObjectRef(module, name, made) != 0)) return false;
  }
  return true;
}
}  // namespace

PyMODINIT_FUNC PyInit_fast_path() {
  import_array();
  if (!intern()) return nullptr;
  Ref made(PyModule_Create(&definition));
  if (!made || !make_types(made.get())) return nullptr;
  return made.release();
}
