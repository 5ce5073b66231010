// The places of the largest numbers of rows.
//
//   largest  x (rows, width) -> places (rows, count), int32
// The largest comes first, equal numbers in their order. A NaN is larger than all numbers, and zeros of both signs are equal;
// numbers below the normal ones are no zeros, whatever mode the thread is in. The spec is written by
// oneflow/ops/_native_order.py.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "operation.h"
#include "vectors.h"

namespace native {

namespace {

constexpr int64_t kMostPlaces = 512;
constexpr int64_t kRoom = 4 * kMostPlaces;  // for what may be among the largest
constexpr int64_t kLeastRoom = 64;

struct LargestSpec {
  explicit LargestSpec(SpecReader reader) {
    type = reader.next_dtype();
    rows = reader.next(1, int64_t{1} << 40), width = reader.next(1, std::numeric_limits<int32_t>::max());
    count = reader.next(1, kMostPlaces);
    if (count > width) throw std::invalid_argument("more places than numbers");
    if (static_cast<double>(rows) * static_cast<double>(width) > 1e15) throw std::invalid_argument("too many numbers");
    reader.finish();
  }

  dt type;
  int64_t rows, width, count;
};

// While it exists, numbers below the normal ones are not taken for zeros: XLA's threads do that, those of the pool do not.
class ExactNumbers {
 public:
  ExactNumbers() : before_(_mm_getcsr()) { _mm_setcsr(before_ & ~kDenormalsAreZeros); }
  ~ExactNumbers() { _mm_setcsr(before_); }
  ExactNumbers(const ExactNumbers&) = delete;
  ExactNumbers& operator=(const ExactNumbers&) = delete;

 private:
  static constexpr unsigned kDenormalsAreZeros = 0x40;
  const unsigned before_;
};

// A number and its place: the larger one comes first.
uint64_t ranked(float x, int64_t place) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  constexpr uint32_t kSign = 0x80000000u;
  if (x != x) {
    bits = std::numeric_limits<uint32_t>::max();
  } else if (bits << 1 == 0) {
    bits = kSign;
  } else {
    bits = bits & kSign ? ~bits : bits | kSign;
  }
  return static_cast<uint64_t>(bits) << 32 | (std::numeric_limits<uint32_t>::max() - static_cast<uint32_t>(place));
}

float number_of(uint64_t rank) {
  const auto high = static_cast<uint32_t>(rank >> 32);
  const uint32_t bits = high & 0x80000000u ? high & 0x7fffffffu : ~high;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Brings the `count` first ones of some to the front. The number of the last of these.
float keep_largest(uint64_t* ranks, int64_t count, int64_t size) {
  std::nth_element(ranks, ranks + count - 1, ranks + size, std::greater<>());
  return number_of(ranks[count - 1]);
}

void write_places(uint64_t* ranks, int64_t count, int64_t size, int32_t* places) {
  std::partial_sort(ranks, ranks + count, ranks + size, std::greater<>());
  std::transform(ranks, ranks + count, places, [](uint64_t rank) {
    return static_cast<int32_t>(std::numeric_limits<uint32_t>::max() - static_cast<uint32_t>(rank));
  });
}

// Computes some rows.
using Run = void(const LargestSpec&, void* const* operands, int64_t begin, int64_t end);

#define KERNELS "largest_kernels.h"
#include "each_isa.h"

class Largest final : public Operation {
 public:
  Largest(const LargestSpec& spec, const thread_pool::Settings& settings) : spec_(spec) {
    check_isa(spec.type != dt::f32);
    const auto elements = static_cast<size_t>(spec.rows * spec.width);
    operand_bytes_ = {elements * bytes_of(spec.type), static_cast<size_t>(spec.rows * spec.count) * sizeof(int32_t)};
    constexpr double kFlopsPerElement = 16;  // floating point operations that take as long as one of the numbers
    threads_ = settings.threads_for(kFlopsPerElement * static_cast<double>(elements));
    run_ = for_this_cpu(avx2::choose, avx512::choose)(spec.count, spec.type != dt::f32);
  }

  std::string name() const override { return "one pass:" + isa_name(spec_.type != dt::f32); }

  void run(void* const* operands, Scratch&) const override {
    thread_pool::parallel_for(spec_.rows, threads_, [&](int64_t begin, int64_t end) {
      const ExactNumbers exact;
      run_(spec_, operands, begin, end);
    });
  }

 private:
  LargestSpec spec_;
  Run* run_;
};

}  // namespace

std::unique_ptr<Operation> make_largest(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<Largest>(LargestSpec(reader), settings);
}

}  // namespace native
