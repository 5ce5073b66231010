// What few numbers each of several devices found, for all of them: side by side, or their sum. Meant for the statistics of batch
// normalization, for which XLA's collectives would send threads to sleep and wake them.
//
// Operands and result of the first device, of the second, and so on.

#include <algorithm>

#include "operation.h"

namespace native {

namespace {

constexpr int64_t kMaxNumbers = 1 << 25;  // two for each channel that batch normalization takes

class Exchange final : public Operation {
 public:
  explicit Exchange(SpecReader reader) {
    devices_ = static_cast<size_t>(reader.next(1, 1 << 16));
    reader.next(0);  // which of its program's calls that devices make together it is (see calls.cc)
    sums_ = reader.next_bool();
    count_ = static_cast<size_t>(reader.next(0, kMaxNumbers));
    reader.finish();
    const size_t mine = count_ * sizeof(float);
    for (size_t i = 0; i < devices_; i++) operand_bytes_.insert(operand_bytes_.end(), {mine, sums_ ? mine : devices_ * mine});
  }

  std::string name() const override { return "exchange"; }

  void run(void* const* operands, Scratch&) const override {
    auto* first = static_cast<float*>(operands[1]);
    const size_t made = sums_ ? count_ : devices_ * count_;
    for (size_t i = 0; i < devices_; i++) {
      const auto* from = static_cast<const float*>(operands[2 * i]);
      if (!sums_ || i == 0) {
        std::copy_n(from, count_, first + i * count_);
      } else {
        for (size_t k = 0; k < count_; k++) first[k] += from[k];
      }
    }
    for (size_t i = 1; i < devices_; i++) std::copy_n(first, made, static_cast<float*>(operands[2 * i + 1]));
  }

 private:
  size_t devices_, count_;
  bool sums_;
};

}  // namespace

std::unique_ptr<Operation> make_exchange(SpecReader reader, thread_pool::Settings, bool) {
  return std::make_unique<Exchange>(reader);
}

}  // namespace native
