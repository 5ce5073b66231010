// The threads that oneDNN's parallel regions run on: one pool for the process, or, for programs that run on several devices, as
// many smaller ones, so that devices compute at the same time.
//
// oneDNN's library was built for GNU OpenMP. thread_pool.cc defines the functions of it that the library calls, so that no
// libgomp is needed, threads of XLA that compute at the same time take turns instead of having a pool each, and the number of
// threads is ours to decide. It is a library of its own, which oneDNN's finds in libgomp's place; the functions have names of
// their own, because the dynamic linker prefers a libgomp that a program has loaded for all to see. No function throws: an
// exception of one library is not caught in another, because each holds a C++ runtime of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace thread_pool {

struct Settings {
  int size;                  // the most threads that a region may have
  double min_parallel_work;  // floating point operations from which on a call takes all of them, instead of one

  // `bytes`: of operands that are read once, from memory, and take longer than the arithmetic.
  int threads_for(double flops, size_t bytes = 0) const {
    constexpr size_t kMinParallelBytes = 1 << 17;
    return flops >= min_parallel_work || bytes >= kMinParallelBytes ? size : 1;
  }
};

// For calls of a program that runs on so many devices of this process.
Settings settings(int devices);

// While it lives, parallel regions that its thread begins have up to `threads` threads, and for more than one no other
// thread has the same pool. `devices`: see `settings`.
class Lock {
 public:
  Lock(int threads, int devices);
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // Fewer than asked for where the system refuses to start threads; settings have fewer then, too.
  int threads() const { return threads_; }

 private:
  int threads_;
};

// While it lives, a call of one of `devices` programs that share the cores (those of a process's devices, or of a server) works in
// its thread, or waits there for the others. Where each has one thread, it begins on a core on which no other such call works. The
// thread's mask of cores is another one for a moment: it must not be changed from elsewhere meanwhile.
class OwnCore {
 public:
  explicit OwnCore(int devices);
  ~OwnCore();
  OwnCore(const OwnCore&) = delete;
  OwnCore& operator=(const OwnCore&) = delete;

 private:
  int core_ = -1;
};

// The maximum number of threads that oneDNN sees while it makes a primitive. Starts and locks nothing.
class ScopedMaxThreads {
 public:
  explicit ScopedMaxThreads(int threads);
  ~ScopedMaxThreads();
  ScopedMaxThreads(const ScopedMaxThreads&) = delete;
  ScopedMaxThreads& operator=(const ScopedMaxThreads&) = delete;

 private:
  int before_;
};

// Calls body(data, thread, threads) once on each of the threads. The caller holds the pool for so many.
void parallel(void (*body)(void*, int, int), void* data, int threads);

// Waits until all threads of the region have come here. For bodies of `parallel`.
void barrier();

// Calls body(begin, end) for even shares of `count`. The caller holds the pool for so many threads.
template <class Body>
void parallel_for(int64_t count, int threads, const Body& body) {
  struct Job {
    const Body& body;
    int64_t count;
  } job{body, count};
  parallel(
      [](void* data, int thread, int of) {
        const Job& job = *static_cast<const Job*>(data);
        job.body(job.count * thread / of, job.count * (thread + 1) / of);
      },
      &job, threads);
}

// Calls body(i) for each i below `threads`, each on a thread of its own.
template <class Body>
void on_threads(int threads, const Body& body) {
  if (threads == 1) return body(int64_t{0});
  parallel_for(threads, threads, [&](int64_t i, int64_t end) {
    for (; i < end; i++) body(i);
  });
}

}  // namespace thread_pool

extern "C" {
void oneflow_set_threads(int threads);
void oneflow_set_min_parallel_work(double flops);
int oneflow_threads();
long oneflow_moves();
long oneflow_taken_over();
double oneflow_min_parallel_work();
}
