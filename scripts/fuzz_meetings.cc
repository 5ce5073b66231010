// Devices that meet in calls, as threads that come in any order and wait or do not; one that stays away, and one that comes twice.
// Built and run by fuzz_native.py.

#include "meeting.h"

#include <cstdio>
#include <cstdlib>
#include <random>

namespace {

constexpr int kDevices = 2, kRuns = 20000;
constexpr std::chrono::microseconds kWaits[] = {std::chrono::microseconds(0), std::chrono::microseconds(1), std::chrono::microseconds(200)};

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "meetings: %s\n", what);
  std::abort();
}

}  // namespace

int main() {
  auto* meetings = new native::Meetings;  // never destroyed: a thread watches it
  std::vector<std::atomic<int>> finished(kRuns), sums(kRuns);
  const auto device = [&](int number) {
    std::mt19937 random(static_cast<unsigned>(number));
    std::vector<int> mine(kRuns);
    for (int run = 0; run < kRuns; run++) {
      mine[static_cast<size_t>(run)] = run + number;
      const auto arrival = std::make_shared<native::Arrival>([&finished, run](const std::string& error) {
        require(error.empty(), error.c_str());
        finished[static_cast<size_t>(run)]++;
      });
      auto all = meetings->join({run, 7}, kDevices, {number, {&mine[static_cast<size_t>(run)]}, {sizeof(int)}, arrival});
      if (all.empty()) {
        arrival->wait(kWaits[random() % 3]);
        continue;
      }
      for (int i = 0; i < kDevices; i++) require(all[static_cast<size_t>(i)].device == i, "not in order");
      for (auto& each : all) sums[static_cast<size_t>(run)] += *static_cast<int*>(each.operands[0]);
      for (auto& each : all) {
        if (each.arrival != arrival && !each.arrival->tell("")) each.arrival->finish();
      }
      arrival->tell("");
      arrival->finish();
    }
    while (finished[kRuns - 1] < kDevices) std::this_thread::yield();  // `mine` is read until then
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kDevices; i++) threads.emplace_back(device, i);
  for (auto& thread : threads) thread.join();
  for (int run = 0; run < kRuns; run++) {
    require(finished[static_cast<size_t>(run)] == kDevices, "a device was not told once");
    require(sums[static_cast<size_t>(run)] == kDevices * run + kDevices * (kDevices - 1) / 2, "a part is missing");
  }
  // Somebody stays away: the others are told.
  meetings->set_patience(0);
  std::atomic<int> lost{0};
  const auto left = [&](const std::string& error) { lost += !error.empty(); };
  for (int i = 0; i < 2; i++) {
    const auto arrival = std::make_shared<native::Arrival>(left);
    require(meetings->join({kRuns, 7}, 3, {i, {}, {}, arrival}).empty(), "a meeting of too few");
    arrival->wait(kWaits[i]);
  }
  for (int i = 0; i < 1000 && lost < 2; i++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  require(lost == 2, "nobody said that a device was lost");
  // One comes twice.
  try {
    for (int i = 0; i < 2; i++) meetings->join({kRuns + 1, 7}, 3, {0, {}, {}, std::make_shared<native::Arrival>(left)});
    require(false, "a device came twice");
  } catch (const std::logic_error&) {
  }
  std::fflush(stdout);
  std::_Exit(0);
}
