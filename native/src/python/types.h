// The types of the extension module that Python classes have as bases: what calls and delivery read and write of each other.

#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <structmember.h>

#include <cstddef>

namespace {

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

PyObject* nothing;  // an empty tuple

// ``Deliveries`` of delivery.py
struct Deliveries {
  PyObject_HEAD
  long long last_begun, last_delivered;
  Py_ssize_t window;
  char attention, busy, asleep;
};

PyMemberDef deliveries_members[] = {{"attention", T_BOOL, offsetof(Deliveries, attention), 0, nullptr},
                                    {"_busy", T_BOOL, offsetof(Deliveries, busy), 0, nullptr},
                                    {"_asleep", T_BOOL, offsetof(Deliveries, asleep), 0, nullptr},
                                    {"_window", T_PYSSIZET, offsetof(Deliveries, window), 0, nullptr},
                                    {"_last_begun", T_LONGLONG, offsetof(Deliveries, last_begun), 0, nullptr},
                                    {"_last_delivered", T_LONGLONG, offsetof(Deliveries, last_delivered), 0, nullptr},
                                    {nullptr, 0, 0, 0, nullptr}};

Deliveries* deliveries_of(PyObject* object) { return reinterpret_cast<Deliveries*>(object); }

void deallocate_plainly(PyObject* self) {  // of an object that holds no others
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// ``Record`` of result.py
struct Record {
  PyObject_HEAD
  PyObject *delivery, *results;
  PyObject* fetched;  // the one array of which ``results`` are made when somebody asks for them
  long long sequence;
  unsigned long thread;
  char passed, is_touched, has_callbacks;
};

PyMemberDef record_members[] = {{"delivery", T_OBJECT_EX, offsetof(Record, delivery), 0, nullptr},
                                {"sequence", T_LONGLONG, offsetof(Record, sequence), 0, nullptr},
                                {"thread", T_ULONG, offsetof(Record, thread), 0, nullptr},
                                {"passed", T_BOOL, offsetof(Record, passed), 0, nullptr},
                                {"is_touched", T_BOOL, offsetof(Record, is_touched), 0, nullptr},
                                {"has_callbacks", T_BOOL, offsetof(Record, has_callbacks), 0, nullptr},
                                {nullptr, 0, 0, 0, nullptr}};

Record* record_of(PyObject* result) { return reinterpret_cast<Record*>(result); }

PyObject* get_results(PyObject* self, void*) {
  Record* record = record_of(self);
  if (record->results == nullptr && record->fetched != nullptr) {
    Ref fetched(Py_NewRef(record->fetched));  // to make a tuple may collect garbage: other code may set, or ask for, the same
    Ref several(PyTuple_Pack(1, fetched.get()));
    Ref made(several ? PyTuple_Pack(3, several.get(), nothing, nothing) : nullptr);
    if (!made) return nullptr;
    if (record->results == nullptr && record->fetched != nullptr) {
      record->results = made.release();
      Py_CLEAR(record->fetched);
    }
  }
  if (record->results == nullptr) return PyErr_SetString(PyExc_AttributeError, "_results"), nullptr;
  return Py_NewRef(record->results);
}

int set_results(PyObject* self, PyObject* results, void*) {
  Record* record = record_of(self);
  Ref before(record->results), fetched(record->fetched);
  record->results = Py_XNewRef(results);
  record->fetched = nullptr;
  return 0;
}

PyGetSetDef record_properties[] = {{"_results", get_results, set_results, nullptr, nullptr}, {nullptr, nullptr, nullptr, nullptr, nullptr}};

int clear_record(PyObject* self) {
  Py_CLEAR(record_of(self)->delivery);
  Py_CLEAR(record_of(self)->results);
  Py_CLEAR(record_of(self)->fetched);
  return 0;
}

int traverse_record(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(record_of(self)->delivery);
  Py_VISIT(record_of(self)->results);
  Py_VISIT(record_of(self)->fetched);
  return 0;
}

void deallocate_record(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PyTypeObject* type = Py_TYPE(self);
  clear_record(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

}  // namespace
