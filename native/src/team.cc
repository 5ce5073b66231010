#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <mutex>
#include <new>
#include <stdexcept>

namespace {

constexpr int kMost = 256;
constexpr double kMinParallelWork = 3e6;  // some 14 microseconds of one thread: to wake another costs half of it
constexpr int kSpins = 1500;  // some 20 microseconds: what lies between two regions of one convolution, hardly more

using Body = void (*)(void*);

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void wait_while(std::atomic<uint32_t>& word, uint32_t value) {
  for (int i = 0; i < kSpins; i++) {
    if (word.load(std::memory_order_acquire) != value) return;
    pause_briefly();
  }
  while (word.load(std::memory_order_acquire) == value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }
}

void wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

struct alignas(128) Worker {
  std::atomic<uint32_t> turn{0};
  std::atomic<int> thread{0};  // the system's number of it
  std::atomic<int> core{-1};   // where it worked last
};

// Plain data, never destroyed: workers outlive the end of main.
struct Team {
  std::mutex turn;  // held while a thread uses more than itself
  std::atomic<int> size{1};
  std::atomic<double> min_parallel_work{kMinParallelWork};
  int started = 1;  // threads there are, the caller counted
  Body body = nullptr;
  void* argument = nullptr;
  int members = 1;
  alignas(128) std::atomic<uint32_t> running{0};
  alignas(128) std::atomic<uint32_t> arrived{0};
  alignas(128) std::atomic<uint32_t> passed{0};
  Worker workers[kMost];
};

Team& the_team() {
  static Team* team = new Team;
  return *team;
}

// Linux likes to wake a thread on the core where it was, also where the waking one runs there and others are idle: on a
// busy machine of few cores it does not look for those. Both would share that core for milliseconds.
void keep_off(Worker& worker, int core) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || !CPU_ISSET(core, &allowed) || CPU_COUNT(&allowed) < 2) return;
  CPU_CLR(core, &allowed);
  sched_setaffinity(worker.thread.load(std::memory_order_relaxed), sizeof allowed, &allowed);
}

struct State {
  int limit = 1;  // what omp_get_max_threads says
  bool owner = false;
  int depth = 0;  // regions begun and not ended
  int members = 1;
  int number = 0;
  struct {
    long begin, end, step, chunk, trip;
  } loop{};
};

thread_local State mine;

void* work(void* number) {
  Team& team = the_team();
  const int me = static_cast<int>(reinterpret_cast<intptr_t>(number));
  uint32_t seen = 0;
  Worker& self = team.workers[me];
  self.thread.store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_relaxed);
  for (;;) {
    wait_while(self.turn, seen);
    seen++;
    mine.number = me;
    mine.members = team.members;
    mine.limit = team.members;
    mine.depth = 1;
    team.body(team.argument);
    mine.depth = 0;
    self.core.store(sched_getcpu(), std::memory_order_relaxed);
    if (team.running.fetch_sub(1, std::memory_order_acq_rel) == 1) wake(team.running);
  }
  return nullptr;
}

// Starts the missing workers; gives how many threads there are.
int recruit(Team& team, int wanted) {
  while (team.started < wanted) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 8 << 20);
    team.workers[team.started].turn.store(0, std::memory_order_relaxed);
    team.workers[team.started].core.store(-1, std::memory_order_relaxed);
    const int failed = pthread_create(&thread, &attributes, work, reinterpret_cast<void*>(static_cast<intptr_t>(team.started)));
    pthread_attr_destroy(&attributes);
    if (failed) break;
    team.started++;
  }
  return team.started;
}

void begin(Body body, void* argument, int members) {
  Team& team = the_team();
  if (mine.depth++ > 0 || !mine.owner) return;  // nested, or alone: a region of one
  members = std::min(members > 0 ? std::min(members, mine.limit) : mine.limit, team.started);
  mine.members = members;
  if (members == 1) return;
  team.body = body;
  team.argument = argument;
  team.members = members;
  team.running.store(static_cast<uint32_t>(members - 1), std::memory_order_release);
  const int here = sched_getcpu();
  for (int i = 1; i < members; i++) {
    Worker& worker = team.workers[i];
    if (worker.core.load(std::memory_order_relaxed) == here) keep_off(worker, here);
    worker.turn.fetch_add(1, std::memory_order_release);
    wake(worker.turn);
  }
}

void finish() {
  Team& team = the_team();
  if (--mine.depth > 0) return;
  if (mine.members > 1) {
    for (uint32_t left; (left = team.running.load(std::memory_order_acquire)) != 0;) wait_while(team.running, left);
  }
  mine.members = 1;
}

void forget_workers() {  // a forked child has none
  Team& team = the_team();
  team.started = 1;
  team.running.store(0, std::memory_order_relaxed);
  team.arrived.store(0, std::memory_order_relaxed);
  new (&team.turn) std::mutex;
}

}  // namespace

namespace team {

int size() { return the_team().size.load(std::memory_order_relaxed); }
double min_parallel_work() { return the_team().min_parallel_work.load(std::memory_order_relaxed); }
int threads_for(double work) { return work >= min_parallel_work() ? size() : 1; }

Use::Use(int threads) : owns_(threads > 1) {
  if (owns_) {
    Team& team = the_team();
    team.turn.lock();
    if (recruit(team, threads) < threads) {
      team.turn.unlock();
      throw std::runtime_error("no more threads can be started");
    }
  }
  mine.owner = owns_;
  mine.limit = threads;
}

Use::~Use() {
  mine.owner = false;
  mine.limit = 1;
  if (owns_) the_team().turn.unlock();
}

Pretend::Pretend(int threads) : before_(mine.limit) { mine.limit = threads; }
Pretend::~Pretend() { mine.limit = before_; }

void each(void (*fn)(void*, int, int), void* argument, int threads) {
  struct Call {
    void (*fn)(void*, int, int);
    void* argument;
  } call{fn, argument};
  const Body body = [](void* c) {
    const Call& call = *static_cast<Call*>(c);
    call.fn(call.argument, mine.number, mine.members);
  };
  begin(body, &call, threads);
  body(&call);
  finish();
}

}  // namespace team

extern "C" {

void oneflow_set_threads(int threads) {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, forget_workers); });
  the_team().size.store(std::max(1, std::min(threads, kMost)), std::memory_order_relaxed);
}

void oneflow_set_min_parallel_work(double work) { the_team().min_parallel_work.store(work, std::memory_order_relaxed); }
double oneflow_min_parallel_work() { return team::min_parallel_work(); }

int oneflow_threads() { return team::size(); }

// --- what libdnnl.so calls

void GOMP_parallel_start(Body body, void* argument, unsigned members) { begin(body, argument, static_cast<int>(members)); }
void GOMP_parallel_end() { finish(); }

void GOMP_barrier() {
  const uint32_t members = static_cast<uint32_t>(mine.members);
  if (members == 1 || mine.depth != 1) return;
  Team& team = the_team();
  const uint32_t round = team.passed.load(std::memory_order_acquire);
  if (team.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == members) {
    team.arrived.store(0, std::memory_order_relaxed);
    team.passed.fetch_add(1, std::memory_order_release);
    wake(team.passed);
  } else {
    wait_while(team.passed, round);
  }
}

bool GOMP_loop_static_next(long* first, long* last) {
  auto& loop = mine.loop;
  const long count = (loop.end - loop.begin + loop.step - (loop.step > 0 ? 1 : -1)) / loop.step;
  const long members = mine.depth == 1 ? mine.members : 1, number = mine.depth == 1 ? mine.number : 0;
  long from, to;
  if (loop.chunk > 0) {
    from = (loop.trip * members + number) * loop.chunk;
    to = std::min(from + loop.chunk, count);
  } else if (loop.trip == 0) {
    from = count / members * number + std::min(number, count % members);
    to = from + count / members + (number < count % members);
  } else {
    return false;
  }
  loop.trip++;
  if (from >= to) return false;
  *first = loop.begin + from * loop.step;
  *last = loop.begin + to * loop.step;
  return true;
}

bool GOMP_loop_static_start(long begin, long end, long step, long chunk, long* first, long* last) {
  mine.loop = {begin, end, step, chunk, 0};
  return GOMP_loop_static_next(first, last);
}

void GOMP_loop_end_nowait() {}

int omp_get_max_threads() { return mine.limit; }
int omp_get_num_threads() { return mine.depth == 1 ? mine.members : 1; }
int omp_get_thread_num() { return mine.depth == 1 ? mine.number : 0; }
int omp_in_parallel() { return mine.depth > 0 && mine.members > 1; }

}  // extern "C"
