#include "thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <mutex>
#include <new>

namespace {

constexpr int kMaxThreads = 256;
constexpr int kMaxPools = 16;
constexpr int kSpins = 1500;              // some 20 microseconds: two regions of one convolution are hardly further apart
constexpr long kFirstCheck = 50'000, kLastCheck = 800'000;  // nanoseconds between looks at a worker that is late
constexpr int kMovesUnseen = 32;  // of workers that are late, after one that was seen waiting for its core
constexpr double kMinParallelWork = 1.5e6;  // 7 to 15 microseconds of one thread; another is woken in two, and may be late: see take_over
constexpr size_t kStackSize = 8 << 20;

using Region = void (*)(void*);  // the body of a parallel region

// --- waiting: a while in a loop, then asleep

// Whether it changed within so many turns of a loop.
bool changes(const std::atomic<uint32_t>& word, uint32_t value, int spins) {
  for (int i = 0; i < spins; i++) {
    if (word.load(std::memory_order_acquire) != value) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  return false;
}

// Sleeps while it is equal, until the time has passed, or for no reason.
void sleep_while_equal(std::atomic<uint32_t>& word, uint32_t value, const timespec* time = nullptr) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, time, nullptr, 0);
}

void wait_while_equal(std::atomic<uint32_t>& word, uint32_t value) {
  if (changes(word, value, kSpins)) return;
  while (word.load(std::memory_order_acquire) == value) sleep_while_equal(word, value);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// --- the pool

struct Pool;

struct alignas(128) Worker {
  Pool* pool = nullptr;
  std::atomic<uint32_t> regions{0};  // that it was given, so far
  std::atomic<uint32_t> begun{0};    // of these, by it or by the caller: whoever raises this computes its part
  std::atomic<uint32_t> ended{0};    // of these
  std::atomic<int> tid{0};           // the system's number of the thread; 0 until it has begun
  std::atomic<int> core{-1};         // where it worked last
  int moves_unseen = 0;              // that are left: see kMovesUnseen
};

struct Pool {
  std::mutex mutex;  // held by a thread whose regions have more than itself
  int started = 1;   // threads that exist, the caller's included
  // the present region
  Region region = nullptr;
  void* argument = nullptr;
  int num_threads = 1;
  alignas(128) std::atomic<uint32_t> running{0};   // workers that have not finished it
  alignas(128) std::atomic<uint32_t> arrived{0};   // threads that wait at its barrier
  alignas(128) std::atomic<uint32_t> barriers{0};  // that were passed
  Worker workers[kMaxThreads];                     // number 0, the caller, is not used
};

struct Process {
  std::atomic<int> size{1};
  std::atomic<double> min_parallel_work{kMinParallelWork};
  std::atomic<unsigned> waiting{0};  // callers that found no free pool, so far
  std::atomic<long> moves{0};        // of workers that waited for their core to that of their caller, so far
  std::atomic<long> taken_over{0};   // parts of workers that their caller computed, so far
  std::atomic<int> calls_on[CPU_SETSIZE]{};  // cores on which calls of programs on several devices began that have not ended
  Pool pools[kMaxPools];             // the first alone, except for calls of programs that run on several devices
};

Process& process() {
  static Process* shared = new Process;  // never destroyed: workers outlive the end of main
  return *shared;
}

struct ThreadState {
  int max_threads = 1;
  Pool* pool = nullptr;  // that it holds, or works for
  int depth = 0;  // of regions, one within the other; only the outermost has more than one thread
  int num_threads = 1;
  int thread_num = 0;
  struct {
    long begin, end, step, chunk, round;
  } loop{};
};

thread_local ThreadState self;

// Linux likes to wake a thread on the core where it last ran, also where the waking thread runs there and other cores
// are idle: on a busy machine of few cores it does not look for those. Both would share that core for milliseconds.
void keep_off_core(const Worker& worker, int core) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || !CPU_ISSET(core, &allowed) || CPU_COUNT(&allowed) < 2) return;
  CPU_CLR(core, &allowed);
  sched_setaffinity(worker.tid.load(std::memory_order_relaxed), sizeof allowed, &allowed);
}

long nanoseconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// Whether the worker with this tid runs on no core, looking for some microseconds; false where a worker ends meanwhile.
bool is_waiting_for_core(int tid, const std::atomic<uint32_t>& running, uint32_t left) {
  const clockid_t work = static_cast<clockid_t>(~static_cast<unsigned>(tid) << 3 | 6);  // Linux: the thread's processor time
  const long begin = nanoseconds(CLOCK_MONOTONIC), before = nanoseconds(work);
  if (changes(running, left, kSpins / 8)) return false;
  const long worked = nanoseconds(work) - before;
  return worked < (nanoseconds(CLOCK_MONOTONIC) - begin) / 4;
}

// The caller is about to sleep: its core is free for a worker that shares one with another thread. Linux would leave that there, as
// the worker may not run here (keep_off_core), or for milliseconds, until it distributes threads anew.
bool move_here(int tid) {
  const int core = sched_getcpu();
  cpu_set_t mine, its, here;
  if (core < 0 || sched_getaffinity(0, sizeof mine, &mine) != 0 || sched_getaffinity(tid, sizeof its, &its) != 0) return false;
  if (CPU_COUNT(&mine) < 2) return false;  // keep_off_core would not send it away again
  CPU_ZERO(&here);
  CPU_SET(core, &here);
  if (sched_setaffinity(tid, sizeof here, &here) != 0) return false;
  CPU_SET(core, &its);  // its own mask, not the caller's, which may be that of a thread bound to few cores
  sched_setaffinity(tid, sizeof its, &its);  // it stays there for now
  process().moves.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// The present region; asked by the caller.
bool has_ended(const Worker& worker) {
  return worker.ended.load(std::memory_order_acquire) == worker.regions.load(std::memory_order_relaxed);
}

void wait_for_workers(Pool& pool, int num_threads) {
  uint32_t left;
  while ((left = pool.running.load(std::memory_order_acquire)) != 0 && changes(pool.running, left, kSpins)) {
  }
  // One that runs when it is looked at may share its core all the same: where it did of late, it is moved at once.
  const Worker* here = nullptr;  // the one that has the caller's core
  long pause = kFirstCheck;
  for (; (left = pool.running.load(std::memory_order_acquire)) != 0; pause = std::min(2 * pause, kLastCheck)) {
    // While one has that core, there is none for others; and it would seem to wait for it, because the caller is awake there now.
    for (int i = 1; i < num_threads && (here == nullptr || has_ended(*here)); i++) {
      Worker& worker = pool.workers[i];
      if (has_ended(worker)) continue;
      const int tid = worker.tid.load(std::memory_order_relaxed);
      if (tid == 0) continue;
      if (worker.moves_unseen > 0) {
        worker.moves_unseen--;
      } else if (is_waiting_for_core(tid, pool.running, left)) {
        worker.moves_unseen = kMovesUnseen;
      } else {
        continue;
      }
      if (!move_here(tid)) continue;
      here = &worker;
      pause = kLastCheck;  // to look takes the core from it
      break;               // one, because there is one core
    }
    const timespec time{0, pause};
    sleep_while_equal(pool.running, left, &time);
  }
}

// Whether the part of a worker is ours to compute: that of its region number `region`, from 0 on.
bool begins(Worker& worker, uint32_t region) {
  return worker.begun.compare_exchange_strong(region, region + 1, std::memory_order_acq_rel);
}

void end_part(Pool& pool, Worker& worker, uint32_t region) {
  worker.ended.store(region + 1, std::memory_order_release);
  if (pool.running.fetch_sub(1, std::memory_order_acq_rel) == 1) wake_all(pool.running);
}

// The caller has computed its own part. A worker that has not begun meanwhile is being woken, or has no core: it may take longer than
// its part. A part that waits for others at a barrier has begun, or the caller would be waiting there, too.
void take_over(Pool& pool, int num_threads) {
  for (int i = 1; i < num_threads; i++) {
    Worker& worker = pool.workers[i];
    const uint32_t region = worker.regions.load(std::memory_order_relaxed) - 1;
    if (!begins(worker, region)) continue;
    process().taken_over.fetch_add(1, std::memory_order_relaxed);
    self.thread_num = i;
    pool.region(pool.argument);
    end_part(pool, worker, region);
  }
  self.thread_num = 0;
}

void* work(void* argument) {
  Worker& worker = *static_cast<Worker*>(argument);
  Pool& pool = *worker.pool;
  const int me = static_cast<int>(&worker - pool.workers);
  self.pool = &pool;
  worker.tid.store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_relaxed);
  for (uint32_t seen = 0;; seen++) {
    wait_while_equal(worker.regions, seen);
    if (!begins(worker, seen)) continue;
    self.thread_num = me;
    self.num_threads = self.max_threads = pool.num_threads;
    self.depth = 1;
    pool.region(pool.argument);
    self.depth = 0;
    worker.core.store(sched_getcpu(), std::memory_order_relaxed);
    end_part(pool, worker, seen);
  }
  return nullptr;
}

bool start_worker(Pool& pool, int number) {
  Worker& worker = pool.workers[number];
  worker.pool = &pool;
  worker.regions.store(0, std::memory_order_relaxed);
  worker.begun.store(0, std::memory_order_relaxed);
  worker.ended.store(0, std::memory_order_relaxed);
  worker.tid.store(0, std::memory_order_relaxed);
  worker.core.store(-1, std::memory_order_relaxed);
  pthread_t thread;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackSize);
  const int error = pthread_create(&thread, &attributes, work, &worker);
  pthread_attr_destroy(&attributes);
  return error == 0;
}

// Starts the workers that are missing, where the system lets it; returns how many threads there are, at most `wanted`.
int start_workers(Pool& pool, int wanted) {
  while (pool.started < wanted && start_worker(pool, pool.started)) pool.started++;
  return std::min(pool.started, wanted);
}

void begin_region(Region region, void* argument, int wanted) {
  if (self.depth++ > 0 || !self.pool) return;  // within another one, or without a pool: one thread
  Pool& pool = *self.pool;
  const int num_threads = wanted > 0 ? std::min(wanted, self.max_threads) : self.max_threads;
  self.num_threads = num_threads;
  if (num_threads == 1) return;
  pool.region = region;
  pool.argument = argument;
  pool.num_threads = num_threads;
  pool.running.store(static_cast<uint32_t>(num_threads - 1), std::memory_order_release);
  const int here = sched_getcpu();
  for (int i = 1; i < num_threads; i++) {
    Worker& worker = pool.workers[i];
    if (worker.core.load(std::memory_order_relaxed) == here) keep_off_core(worker, here);
    worker.regions.fetch_add(1, std::memory_order_release);
    wake_all(worker.regions);
  }
}

void end_region() {
  if (self.depth == 1 && self.num_threads > 1) {
    take_over(*self.pool, self.num_threads);
    wait_for_workers(*self.pool, self.num_threads);
  }
  if (--self.depth == 0) self.num_threads = 1;
}

// A forked child has none of the workers, and whoever held the lock is not there to release it.
void forget_workers() {
  for (Pool& pool : process().pools) {
    pool.started = 1;
    pool.running.store(0, std::memory_order_relaxed);
    pool.arrived.store(0, std::memory_order_relaxed);
    new (&pool.mutex) std::mutex;
  }
  for (auto& calls : process().calls_on) calls.store(0, std::memory_order_relaxed);
}

// A pool that no other thread holds, of the first `count`; waits for one where there is none.
Pool& take_pool(int count) {
  for (int i = 0; i < count; i++) {
    if (process().pools[i].mutex.try_lock()) return process().pools[i];
  }
  Pool& pool = process().pools[process().waiting.fetch_add(1, std::memory_order_relaxed) % count];
  pool.mutex.lock();
  return pool;
}

}  // namespace

namespace thread_pool {

Settings settings(int devices) {
  const int size = process().size.load(std::memory_order_relaxed);
  return {std::max(1, size / devices), process().min_parallel_work.load(std::memory_order_relaxed)};
}

Lock::Lock(int threads, int devices) : threads_(threads) {
  if (threads > 1) {
    Pool& pool = take_pool(std::min(devices, kMaxPools));
    threads_ = start_workers(pool, threads);
    if (threads_ < threads) process().size.store(threads_ * devices, std::memory_order_relaxed);
    if (threads_ > 1) {
      self.pool = &pool;
    } else {
      pool.mutex.unlock();
    }
  }
  self.max_threads = threads_;
}

Lock::~Lock() {
  if (self.pool) self.pool->mutex.unlock();
  self.pool = nullptr;
  self.max_threads = 1;
}

OwnCore::OwnCore(int devices) {
  // Where each has one thread: the cores of other threads are not known.
  if (devices < 2 || process().size.load(std::memory_order_relaxed) / devices != 1) return;
  auto& calls_on = process().calls_on;
  core_ = sched_getcpu();
  if (core_ < 0 || core_ >= CPU_SETSIZE) {
    core_ = -1;
    return;
  }
  if (calls_on[core_].load(std::memory_order_relaxed) > 0) {
    cpu_set_t allowed, free;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
      free = allowed;
      for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &free) && calls_on[i].load(std::memory_order_relaxed) > 0) CPU_CLR(i, &free);
      }
      if (CPU_COUNT(&free) > 0 && sched_setaffinity(0, sizeof free, &free) == 0) {
        core_ = sched_getcpu();
        sched_setaffinity(0, sizeof allowed, &allowed);  // it stays where it is for now
      }
    }
  }
  calls_on[core_].fetch_add(1, std::memory_order_relaxed);
}

OwnCore::~OwnCore() {
  if (core_ >= 0) process().calls_on[core_].fetch_sub(1, std::memory_order_relaxed);
}

ScopedMaxThreads::ScopedMaxThreads(int threads) : before_(self.max_threads) { self.max_threads = threads; }
ScopedMaxThreads::~ScopedMaxThreads() { self.max_threads = before_; }

void parallel(void (*body)(void*, int, int), void* data, int threads) {
  struct Call {
    void (*body)(void*, int, int);
    void* data;
  } call{body, data};
  const Region region = [](void* argument) {
    const Call& call = *static_cast<const Call*>(argument);
    call.body(call.data, self.thread_num, self.num_threads);
  };
  begin_region(region, &call, threads);
  region(&call);
  end_region();
}

void barrier() {
  const auto num_threads = static_cast<uint32_t>(self.depth == 1 ? self.num_threads : 1);
  if (num_threads == 1) return;
  Pool& pool = *self.pool;
  const uint32_t passed = pool.barriers.load(std::memory_order_acquire);
  if (pool.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads) {
    pool.arrived.store(0, std::memory_order_relaxed);
    pool.barriers.fetch_add(1, std::memory_order_release);
    wake_all(pool.barriers);
  } else {
    wait_while_equal(pool.barriers, passed);
  }
}

}  // namespace thread_pool

extern "C" {

void oneflow_set_threads(int threads) {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, forget_workers); });
  process().size.store(std::max(1, std::min(threads, kMaxThreads)), std::memory_order_relaxed);
}

void oneflow_set_min_parallel_work(double flops) { process().min_parallel_work.store(flops, std::memory_order_relaxed); }
int oneflow_threads() { return thread_pool::settings(1).size; }
long oneflow_taken_over() { return process().taken_over.load(std::memory_order_relaxed); }
long oneflow_moves() { return process().moves.load(std::memory_order_relaxed); }
double oneflow_min_parallel_work() { return thread_pool::settings(1).min_parallel_work; }

// --- GNU OpenMP, as far as oneDNN's library uses it: OFMP_... stands for GOMP_..., ofp_... for omp_... (see build_libraries.py)

int ofp_get_max_threads() { return self.max_threads; }
int ofp_get_num_threads() { return self.depth == 1 ? self.num_threads : 1; }
int ofp_get_thread_num() { return self.depth == 1 ? self.thread_num : 0; }
int ofp_in_parallel() { return self.depth > 0 && self.num_threads > 1; }

void OFMP_parallel_start(Region region, void* argument, unsigned num_threads) {
  begin_region(region, argument, static_cast<int>(num_threads));
}

void OFMP_parallel_end() { end_region(); }

void OFMP_barrier() { thread_pool::barrier(); }

// The next share of a loop that `#pragma omp for schedule(static, chunk)` stands before; false where there is none.
bool OFMP_loop_static_next(long* first, long* last) {
  auto& loop = self.loop;
  const long count = (loop.end - loop.begin + loop.step - (loop.step > 0 ? 1 : -1)) / loop.step;
  const long threads = ofp_get_num_threads(), thread = ofp_get_thread_num();
  long from, to;
  if (loop.chunk > 0) {
    from = (loop.round * threads + thread) * loop.chunk;
    to = std::min(from + loop.chunk, count);
  } else if (loop.round == 0) {  // even shares, the first ones larger by one
    from = count / threads * thread + std::min(thread, count % threads);
    to = from + count / threads + (thread < count % threads);
  } else {
    return false;
  }
  loop.round++;
  if (from >= to) return false;
  *first = loop.begin + from * loop.step;
  *last = loop.begin + to * loop.step;
  return true;
}

bool OFMP_loop_static_start(long begin, long end, long step, long chunk, long* first, long* last) {
  self.loop = {begin, end, step, chunk, 0};
  return OFMP_loop_static_next(first, last);
}

void OFMP_loop_end_nowait() {}

}  // extern "C"
