// Matrix products. The spec: dtypes, batch, m, n, k, whether A is transposed, flags (written by oneflow/ops/_native_matmul.py).

#include "gemm.h"
#include "operation.h"

namespace native {

namespace {

class Matmul final : public Operation {
 public:
  Matmul(const GemmShape& s, const thread_pool::Settings& settings, bool describe_only)
      : gemm_(s, settings.threads_for(s.flops()), describe_only) {
    threads_ = settings.threads_for(s.flops());
    scratch_size_ = gemm_.scratch_size();
    const int64_t elements[] = {s.m * s.k, s.k * s.n, s.m * s.n};
    for (int i = 0; i < 3; i++) {
      operand_bytes_.push_back(static_cast<size_t>(s.batch * elements[i]) * bytes_of(s.dtypes.operands[i]));
    }
  }

  std::string name() const override { return gemm_.name(); }

  void run(void* const* operands, Scratch& scratch) const override { gemm_.run(operands[0], operands[1], operands[2], scratch); }

 private:
  Gemm gemm_;
};

enum Flag : int64_t { kBTransposed = 1, kNeverSgemm = 2, kAlwaysSgemm = 4, kAlwaysPacked = 8 };  // the last three are for measurements

GemmShape read(SpecReader& reader) {
  GemmShape s;
  s.dtypes = reader.next_dtypes();
  s.batch = reader.next(1), s.m = reader.next(1), s.n = reader.next(1), s.k = reader.next(1);
  s.a_transposed = reader.next_bool();
  const int64_t flags = reader.next(0, 15);
  s.b_transposed = flags & kBTransposed;
  s.way = flags & kNeverSgemm     ? GemmShape::kMatmul
          : flags & kAlwaysSgemm  ? GemmShape::kSgemm
          : flags & kAlwaysPacked ? GemmShape::kPacked
                                  : GemmShape::kChosen;
  reader.finish();
  return s;
}

}  // namespace

std::unique_ptr<Operation> make_matmul(SpecReader reader, thread_pool::Settings settings, bool describe_only) {
  return std::make_unique<Matmul>(read(reader), settings, describe_only);
}

}  // namespace native
