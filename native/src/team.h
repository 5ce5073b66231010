// The threads that oneDNN's parallel regions run on.
//
// libdnnl.so was built for GNU OpenMP. team.cc defines the ten functions that it uses of it over one team of threads, so
// that no libgomp is needed, that threads of XLA which compute convolutions at the same time take turns instead of
// having a team each, and that the number of threads is ours to say.
#pragma once

namespace team {

// The most threads that a region may have; asked once, when the first primitive is made.
int size();

// How many threads so many floating point operations are worth: all, or from below `min_parallel_work` one.
int threads_for(double work);
double min_parallel_work();

// While one lives, regions begun on this thread have up to `threads` threads. More than one: the team is this thread's alone.
class Use {
 public:
  explicit Use(int threads);
  ~Use();
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  bool owns_;
};

// What oneDNN is told while it makes a primitive for that many threads; takes no lock.
class Pretend {
 public:
  explicit Pretend(int threads);
  ~Pretend();

 private:
  int before_;
};

// Runs fn(argument, thread, threads) on that many threads of a team that this thread uses.
void each(void (*fn)(void*, int, int), void* argument, int threads);

}  // namespace team

extern "C" void oneflow_set_threads(int threads);
extern "C" void oneflow_set_min_parallel_work(double work);
extern "C" double oneflow_min_parallel_work();
extern "C" int oneflow_threads();
