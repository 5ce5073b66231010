// Calls that the devices of one process make together: whoever comes last computes for all, nobody waits in a thread for long.
//
// XLA runs the calls of a program in any order on few threads, and lets some of them block in collectives of its own. A call that
// came first and blocked could keep the last one from ever running.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace native {

// How one device hears that a call has been made: while it waits for that, or later.
class Arrival {
 public:
  using Finish = std::function<void(const std::string& error)>;  // called once; "" where all went well

  explicit Arrival(Finish finish) : finish_(std::move(finish)) {}

  // Waits, at most so long. Finishes where the call has been made by then; otherwise whoever tells later does.
  void wait(std::chrono::nanoseconds patience) {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (state_.load(std::memory_order_acquire) == State::kWaiting && std::chrono::steady_clock::now() < end) {
      for (int i = 0; i < kPauses; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
    }
    if (state_.exchange(State::kGone, std::memory_order_acq_rel) == State::kTold) finish_(error_);
  }

  // Whether the device waits, and finishes by itself then. Otherwise `finish` is the caller's to call.
  bool tell(const std::string& error) {
    error_ = error;
    return state_.exchange(State::kTold, std::memory_order_acq_rel) == State::kWaiting;
  }

  void finish() const { finish_(error_); }

 private:
  enum class State { kWaiting, kTold, kGone };
  static constexpr int kPauses = 16;

  Finish finish_;
  std::string error_;
  std::atomic<State> state_{State::kWaiting};
};

// One device's part in a call.
struct Participant {
  int device;
  std::vector<void*> operands;  // and results
  std::vector<size_t> bytes;
  std::shared_ptr<Arrival> arrival;
};

using Participants = std::vector<Participant>;

class Meetings {
 public:
  using Key = std::pair<int64_t, int64_t>;  // a run of a program; one of its calls

  // Adds a participant. Returns all of them, by device, where it is the last of `expected`, and none otherwise: their calls are
  // then the caller's to finish. What it throws, it throws before the participant is added.
  Participants join(Key key, size_t expected, Participant participant) {
    std::lock_guard<std::mutex> lock(mutex_);
    start_watching();
    Meeting& meeting = open_[key];
    for (const Participant& p : meeting.present) {
      if (p.device == participant.device) throw std::logic_error("a device came twice to one call that all make together");
    }
    meeting.present.reserve(expected);
    const auto later = [&](const Participant& p) { return p.device > participant.device; };
    auto place = meeting.present.begin();
    while (place != meeting.present.end() && !later(*place)) ++place;
    meeting.present.insert(place, std::move(participant));
    Participants all;
    if (meeting.present.size() == expected) {
      all = std::move(meeting.present);
      open_.erase(key);
    }
    return all;
  }

  // How many seconds a call waits for those of other devices, which have failed then.
  void set_patience(int seconds) { patience_.store(seconds, std::memory_order_relaxed); }

 private:
  struct Meeting {
    Participants present;
    int seconds = 0;
  };

  // Where no thread can be started, the next call tries again.
  void start_watching() {
    if (watched_) return;
    try {
      std::thread([this] { watch(); }).detach();
      watched_ = true;
    } catch (const std::system_error&) {
    }
  }

  // Ends meetings that some device does not come to. Seconds are counted one by one: those in which the process is stopped are
  // none.
  void watch() {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      Participants given_up;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto it = open_.begin(); it != open_.end();) {
          if (++it->second.seconds <= patience_.load(std::memory_order_relaxed)) {
            ++it;
            continue;
          }
          for (auto& participant : it->second.present) given_up.push_back(std::move(participant));
          it = open_.erase(it);
        }
      }
      for (auto& participant : given_up) give_up(participant.arrival);
    }
  }

  // On a thread of its own: what the program does next may wait for the other devices.
  static void give_up(const std::shared_ptr<Arrival>& arrival) {
    if (arrival->tell("a device of the program did not come to a call that all make together")) return;
    try {
      std::thread([arrival] { arrival->finish(); }).detach();
    } catch (const std::system_error&) {
      arrival->finish();
    }
  }

  std::mutex mutex_;
  std::map<Key, Meeting> open_;
  bool watched_ = false;
  std::atomic<int> patience_{600};
};

}  // namespace native
