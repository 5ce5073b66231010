// An extension module of CPython: the calls of steps without state as oneflow/runtime/stateless_calls.py makes them, and
// oneflow/runtime/delivery.py passes them, with the same objects and in the same order, without an interpreter between.
//
// Whatever is unusual is left to the Python code: arguments that do not fit, settings that have changed, errors to be raised.
// It runs with Python's lock held, which JAX lets go of while it computes and waits, and long copies while they copy.

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

extern "C" PyObject* PyObject_Vectorcall(PyObject*, PyObject* const*, size_t, PyObject*);  // 3.11 has it, and does not declare it

namespace {

constexpr size_t kOffset = size_t(1) << 63;  // PY_VECTORCALL_ARGUMENTS_OFFSET
constexpr int kMostInputs = 16;
constexpr Py_ssize_t kLongCopy = 1 << 16;  // bytes

class Ref {  // a reference that is owned
 public:
  explicit Ref(PyObject* object = nullptr) : object_(object) {}
  ~Ref() { Py_XDECREF(object_); }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

struct Names {
  PyObject *is_ready, *attention, *value, *seconds, *busy, *window, *asleep, *thread, *delivery, *results, *sequence, *has_room,
      *wait_for_room, *has_callbacks, *is_touched, *passed, *tell, *done, *last_begun, *last_delivered;
} names;
PyObject* nothing;  // an empty tuple
PyTypeObject* state_type;

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

int is_true(PyObject* object, PyObject* name) {
  Ref value(PyObject_GetAttr(object, name));
  return value ? PyObject_IsTrue(value.get()) : -1;
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

// What a function of this module was made with: attributes of ``Parts`` in stateless_calls.py.
enum { FETCH, LAUNCHER, DELIVERIES, NANS_NOW, NANS, INFS_NOW, INFS, DELIVERY, CONVERT, OTHERWISE, ENTER, LEAVE, ACQUIRE, RELEASE,
       PENDING, APPEND, NEXT_NUMBER, NEWEST, RESULT, WAKE, INPUTS, OUTPUT, PARTS };
const char* const kParts[PARTS] = {
    "fetch", "launcher", "deliveries", "nans_now", "nans", "infs_now", "infs", "delivery", "convert", "otherwise", "enter",
    "leave", "acquire", "release", "pending", "append", "next_number", "newest", "result", "wake", "inputs", "output"};

struct State {
  PyObject_HEAD
  PyObject* parts[PARTS];
  bool is_single, gives_handles, reads_buffers;
  double interruptible_from, ended;
  std::vector<Spec>* inputs;
  Spec* output;
};

State* state_of(PyObject* self) { return reinterpret_cast<State*>(self); }

int clear(PyObject* self) {
  for (PyObject*& part : state_of(self)->parts) Py_CLEAR(part);
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

int may_run(const State* s) {
  int same = is_same(s->parts[LAUNCHER], names.is_ready, Py_True);
  if (same == 1) same = is_same(s->parts[DELIVERIES], names.attention, Py_False);
  if (same == 1) same = is_same(s->parts[NANS_NOW], names.value, s->parts[NANS]);
  if (same == 1) same = is_same(s->parts[INFS_NOW], names.value, s->parts[INFS]);
  return same;
}

// A fresh, writable array of what was fetched; null without an exception where that has to be found otherwise.
PyObject* read_buffer(State* s, PyObject* fetched) {
  Py_buffer view;
  if (PyObject_GetBuffer(fetched, &view, PyBUF_C_CONTIGUOUS) != 0) {
    if (PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_Clear();
    return nullptr;
  }
  Py_INCREF(s->output->dtype);
  auto* dtype = reinterpret_cast<PyArray_Descr*>(s->output->dtype);
  Ref made(PyArray_NewFromDescr(&PyArray_Type, dtype, int(s->output->shape.size()), s->output->shape.data(), nullptr, nullptr, 0,
                                nullptr));
  auto* array = reinterpret_cast<PyArrayObject*>(made.get());
  const bool is_whole = array != nullptr && PyArray_NBYTES(array) == view.len;
  if (is_whole) {
    void* to = PyArray_DATA(array);
    const bool is_long = view.len > kLongCopy;  // nobody else has the array yet
    PyThreadState* others = is_long ? PyEval_SaveThread() : nullptr;
    std::memcpy(to, view.buf, size_t(view.len));
    if (is_long) PyEval_RestoreThread(others);
  }
  PyBuffer_Release(&view);
  return is_whole ? made.release() : nullptr;
}

// The value of what was fetched, of which `array` is the one array that is copied.
PyObject* value_of(State* s, PyObject* fetched, PyObject* array) {
  if (s->reads_buffers) {
    PyObject* made = read_buffer(s, array);
    if (made != nullptr || PyErr_Occurred()) return made;
  }
  PyObject* made = call(s->parts[CONVERT], fetched);
  if (made != nullptr) s->reads_buffers = false;  // it was not a failed computation that could not be read
  return made;
}

PyObject* fetch(const State* s, PyObject** arguments) {  // there is room for one more in front of them
  return PyObject_Vectorcall(s->parts[FETCH], arguments, s->inputs->size() | kOffset, nullptr);
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
  Ref value(fetched ? value_of(s, fetched.get(), fetched.get()) : nullptr);
  if (!value) return nullptr;
  const double time = now(), since = time - s->ended;
  s->ended = time;
  if (since > s->interruptible_from) {  // this call may have taken as long: the next one is timed
    Ref seconds(PyFloat_FromDouble(s->interruptible_from));
    if (!seconds || PyObject_SetAttr(s->parts[DELIVERY], names.seconds, seconds.get()) != 0) return nullptr;
  }
  return value.release();
}

// As ``synchronous`` of stateless_calls.py
PyObject* call_synchronously(PyObject* self, PyObject* arguments) {
  State* s = state_of(self);
  if (!is_alive(s)) return nullptr;
  if (!fits(s, arguments)) return call(s->parts[OTHERWISE], arguments);
  if (!done(call(s->parts[ENTER], Py_None))) return nullptr;
  PyObject* value = nullptr;
  int may = may_run(s);
  if (may == 1) {
    Ref seconds(PyObject_GetAttr(s->parts[DELIVERY], names.seconds));
    may = seconds ? PyFloat_AsDouble(seconds.get()) < s->interruptible_from : -1;
  }
  if (may == 1) value = run_now(s, arguments);
  {
    KeptError kept;
    if (!done(call(s->parts[LEAVE]))) PyErr_Clear();  // it has an entry: its own
  }
  return may == 0 ? call(s->parts[OTHERWISE], arguments) : value;
}

int has_room(const State* s) {
  PyObject* deliveries = s->parts[DELIVERIES];
  Ref window(PyObject_GetAttr(deliveries, names.window));
  const int busy = window ? is_true(deliveries, names.busy) : -1;
  if (busy < 0) return -1;
  if (PyObject_Size(s->parts[PENDING]) + busy < PyLong_AsSsize_t(window.get())) return 1;
  Ref answer(PyObject_CallMethodObjArgs(deliveries, names.has_room, nullptr));
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

// Runs the step and queues its Result: as ``dispatcher`` of delivery.py and ``queued`` of result.py
PyObject* run_later(const State* s, PyObject** arguments) {
  Ref fetched(fetch(s, arguments));
  if (!fetched) return nullptr;
  Ref several(s->is_single ? PyTuple_Pack(1, fetched.get()) : fetched.release());
  Ref results(several ? PyTuple_Pack(3, several.get(), nothing, nothing) : nullptr);
  Ref number(results ? call(s->parts[NEXT_NUMBER]) : nullptr);
  Ref thread(number ? PyLong_FromUnsignedLong(s->gives_handles ? PyThread_get_thread_ident() : 0) : nullptr);
  if (!thread || (s->gives_handles && PyDict_SetItem(s->parts[NEWEST], thread.get(), number.get()) != 0)) return nullptr;
  Ref made(PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(s->parts[RESULT]), 0));
  if (!made || PyObject_SetAttr(made.get(), names.thread, thread.get()) != 0 ||
      PyObject_SetAttr(made.get(), names.delivery, s->parts[DELIVERY]) != 0 ||
      PyObject_SetAttr(made.get(), names.results, results.get()) != 0 ||
      PyObject_SetAttr(made.get(), names.sequence, number.get()) != 0 || !done(call(s->parts[APPEND], made.get()))) {
    return nullptr;
  }
  const int asleep = is_true(s->parts[DELIVERIES], names.asleep);
  if (asleep < 0 || (asleep == 1 && !done(call(s->parts[WAKE])))) return nullptr;
  return made.release();
}

// As ``asynchronous`` of stateless_calls.py
PyObject* call_asynchronously(PyObject* self, PyObject* arguments) {
  State* s = state_of(self);
  if (!is_alive(s)) return nullptr;
  if (!fits(s, arguments)) return call(s->parts[OTHERWISE], arguments);
  PyObject* copies[1 + kMostInputs];
  size_t count = 0;
  for (; count < s->inputs->size(); ++count) {
    auto* array = reinterpret_cast<PyArrayObject*>(PyTuple_GetItem(arguments, Py_ssize_t(count)));
    copies[1 + count] = PyArray_NewCopy(array, NPY_CORDER);
    if (copies[1 + count] == nullptr) break;
  }
  PyObject* made = nullptr;
  int may = count == s->inputs->size() ? 1 : -1, room = 0;
  while (may == 1 && room == 0) {
    if (!done(call(s->parts[ACQUIRE]))) {
      may = -1;
      break;
    }
    may = may_run(s);
    room = may == 1 ? has_room(s) : -1;
    if (room == 1) made = run_later(s, copies + 1);
    if (may == 1 && room < 0) may = -1;
    {
      KeptError kept;
      if (!done(call(s->parts[RELEASE]))) PyErr_Clear();  // it is held
    }
    if (room == 0 && !done(PyObject_CallMethodObjArgs(s->parts[DELIVERIES], names.wait_for_room, nullptr))) may = -1;
  }
  while (count > 0) Py_DECREF(copies[count--]);
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
    if (!calls && i != CONVERT && i != OUTPUT) continue;
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
  s->gives_handles = handles.get() == Py_True;
  s->interruptible_from = PyFloat_AsDouble(seconds.get());
  const Py_ssize_t count = PyTuple_Size(s->parts[INPUTS]);
  if (count > kMostInputs) PyErr_SetString(PyExc_ValueError, "too many inputs");
  if (count < 0 || PyErr_Occurred() || !PyType_Check(s->parts[RESULT])) return nullptr;
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
  PyObject* delivery = nullptr;  // the calls hold it
  for (Py_ssize_t i = 0; arrays && i < PyList_Size(calls); ++i) {
    PyObject* result = PyList_GetItem(calls, i);
    Ref own(PyObject_GetAttr(result, names.delivery)), results(PyObject_GetAttr(result, names.results));
    PyObject* found = own && results ? PyTuple_GetItem(results.get(), 0) : nullptr;
    if (found == nullptr || !PyTuple_Check(found)) return nullptr;
    if (delivery == nullptr) delivery = own.get();
    if (own.get() != delivery || PyTuple_Size(found) == 0) return nullptr;
    for (Py_ssize_t k = 0; k < PyTuple_Size(found); ++k) {
      PyObject* array = PyTuple_GetItem(found, k);
      if (PyTuple_Check(array) || PyList_Append(arrays.get(), array) != 0) return nullptr;
    }
  }
  return arrays.release();
}

// ``ended(pending, block_until_ready)``: the calls in the queue where all have ended well, [] where one has not, None where
// Python has to look: as ``_ended_together`` of delivery.py and ``have_ended`` of result.py
PyObject* ended(PyObject*, PyObject* arguments) {
  PyObject *pending, *block;
  if (!PyArg_ParseTuple(arguments, "OO", &pending, &block)) return nullptr;
  Ref calls(PySequence_List(pending));  // nobody appends meanwhile: Python's lock is held
  if (!calls || PyList_Size(calls.get()) == 0) return calls.release();
  PyObject* last = PyList_GetItem(calls.get(), PyList_Size(calls.get()) - 1);
  Ref is_over(PyObject_CallMethodObjArgs(last, names.done, nullptr));
  if (!is_over) return nullptr;
  if (is_over.get() != Py_True) return PyList_New(0);
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
  if (!PyArg_ParseTuple(arguments, "O!OOOO", &PyList_Type, &calls, &expecting, &finished, &deliveries, &popleft)) return nullptr;
  for (Py_ssize_t i = 0; i < PyList_Size(calls); ++i) {
    PyObject* result = PyList_GetItem(calls, i);
    int stops = is_true(result, names.has_callbacks);
    Ref sequence(PyObject_GetAttr(result, names.sequence)), results(PyObject_GetAttr(result, names.results));
    if (stops == 0) stops = sequence && results ? PySet_Contains(expecting, sequence.get()) : -1;
    if (stops == 0) {
      stops = done(call(finished, results.get())) && PyObject_SetAttr(result, names.passed, Py_True) == 0 ? 0 : -1;
    }
    const int touched = stops == 0 ? is_true(result, names.is_touched) : stops;
    if (touched == 1 && stops == 0) {
      stops = done(PyObject_CallMethodObjArgs(result, names.tell, nullptr)) ? is_true(result, names.has_callbacks) : -1;
    }
    if (stops < 0 || touched < 0) return nullptr;
    if (stops == 1) break;
    if (PyObject_SetAttr(deliveries, names.last_begun, sequence.get()) != 0 ||
        PyObject_SetAttr(deliveries, names.last_delivered, sequence.get()) != 0 || !done(call(popleft))) {
      return nullptr;
    }
  }
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"synchronous", make_synchronous, METH_O, "A function that makes one call and returns its value."},
    {"asynchronous", make_asynchronous, METH_O, "A function that makes one call and returns its Result."},
    {"converter", make_converter, METH_O, "A function from a tuple with one fetched array to a fresh NumPy array."},
    {"ended", ended, METH_VARARGS, "The calls in a queue where all have ended well."},
    {"pass_on", pass_on, METH_VARARGS, "Delivers calls that nothing is to be run for."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "stateless_calls", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                       {0, nullptr}};
PyType_Spec spec = {"oneflow_native.State", sizeof(State), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};

bool intern() {
  const std::pair<PyObject**, const char*> all[] = {
      {&names.is_ready, "is_ready"}, {&names.attention, "attention"}, {&names.value, "value"}, {&names.seconds, "seconds"},
      {&names.busy, "_busy"}, {&names.window, "_window"}, {&names.asleep, "_asleep"}, {&names.thread, "thread"},
      {&names.delivery, "delivery"}, {&names.results, "_results"}, {&names.sequence, "sequence"}, {&names.has_room, "has_room"},
      {&names.wait_for_room, "wait_for_room"}, {&names.has_callbacks, "has_callbacks"}, {&names.is_touched, "is_touched"},
      {&names.passed, "passed"}, {&names.tell, "tell"}, {&names.done, "done"}, {&names.last_begun, "_last_begun"},
      {&names.last_delivered, "_last_delivered"}};
  for (auto& [name, text] : all) {
    if ((*name = PyUnicode_InternFromString(text)) == nullptr) return false;
  }
  return (nothing = PyTuple_New(0)) != nullptr;
}
}  // namespace

PyMODINIT_FUNC PyInit_stateless_calls() {
  import_array();
  if (!intern()) return nullptr;
  state_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  return state_type == nullptr ? nullptr : PyModule_Create(&definition);
}
