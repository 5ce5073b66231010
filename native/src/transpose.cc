// Transpositions of a batch of matrices, which move channels last, and back: XLA would compute one together with what
// comes before it, element by element in the order of the result. The spec: dtype, batch, rows, columns (written by
// oneflow/compiler/channels_last.py).

#include <emmintrin.h>

#include <algorithm>
#include <cstring>

#include "operation.h"

namespace native {

namespace {

constexpr double kFlopsPerElement = 16;  // floating point operations that take as long as moving one
constexpr int64_t kSide = 8;             // of the blocks of numbers of 16 bits that are transposed in registers

// One of kSide x kSide numbers of 16 bits.
void transpose_block(const uint16_t* from, int64_t from_step, uint16_t* to, int64_t to_step) {
  __m128i x[kSide], pairs[kSide], fours[kSide];
  for (int i = 0; i < kSide; i++) x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * from_step));
  for (int i = 0; i < 4; i++) {
    pairs[i] = _mm_unpacklo_epi16(x[2 * i], x[2 * i + 1]), pairs[4 + i] = _mm_unpackhi_epi16(x[2 * i], x[2 * i + 1]);
  }
  for (int i = 0; i < kSide; i += 2) {  // of columns 0 and 1 of four rows, then of 2 and 3, ...
    fours[i] = _mm_unpacklo_epi32(pairs[i], pairs[i + 1]), fours[i + 1] = _mm_unpackhi_epi32(pairs[i], pairs[i + 1]);
  }
  for (int half = 0; half < 2; half++) {
    for (int j = 0; j < 2; j++) {
      const __m128i upper = fours[4 * half + j], lower = fours[4 * half + 2 + j];
      uint16_t* column = to + (4 * half + 2 * j) * to_step;
      _mm_storeu_si128(reinterpret_cast<__m128i*>(column), _mm_unpacklo_epi64(upper, lower));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(column + to_step), _mm_unpackhi_epi64(upper, lower));
    }
  }
}

// Of a matrix of numbers of 16 bits, some rows.
void transpose_rows(const uint16_t* from, int64_t rows, int64_t columns, int64_t begin, int64_t end, uint16_t* to) {
  for (int64_t row = begin; row < end; row += kSide) {
    const int64_t last = std::min(row + kSide, end);
    int64_t column = last - row == kSide ? columns / kSide * kSide : 0;
    for (int64_t c = 0; c < column; c += kSide) transpose_block(from + row * columns + c, columns, to + c * rows + row, rows);
    for (; column < columns; column++) {
      for (int64_t r = row; r < last; r++) to[column * rows + r] = from[r * columns + column];
    }
  }
}

class Transpose final : public Operation {
 public:
  Transpose(dt dtype, int64_t batch, int64_t rows, int64_t columns, const thread_pool::Settings& settings)
      : from_({batch, rows, columns}, dtype, dims{rows * columns, columns, 1}),
        to_({batch, rows, columns}, dtype, dims{rows * columns, 1, rows}),
        bytes_(static_cast<size_t>(batch * rows * columns) * bytes_of(dtype)),
        is_copy_(rows == 1 || columns == 1),
        is_by_blocks_(dtype == dt::bf16 && isa() != Isa::kAvx512) {  // oneDNN moves those one by one
    threads_ = settings.threads_for(kFlopsPerElement * static_cast<double>(batch) * rows * columns);
    operand_bytes_.assign(2, bytes_);
    if (is_copy_ || is_by_blocks_) return;
    const thread_pool::ScopedMaxThreads scope(threads_);
    reorder_ = Reorder(from_, to_);
    scratch_size_ = reorder_.scratch_size();
  }

  std::string name() const override { return is_copy_ ? "copy" : is_by_blocks_ ? "blocks" : "reorder"; }

  void run(void* const* operands, Scratch& scratch) const override {
    if (is_copy_) return copy(operands);
    if (is_by_blocks_) return transpose(static_cast<const uint16_t*>(operands[0]), static_cast<uint16_t*>(operands[1]));
    reorder_.run(dnnl::memory(from_, engine(), operands[0]), dnnl::memory(to_, engine(), operands[1]), scratch);
  }

 private:
  void copy(void* const* operands) const {
    constexpr size_t kLine = 64;
    thread_pool::parallel_for(static_cast<int64_t>((bytes_ + kLine - 1) / kLine), threads_, [&](int64_t begin, int64_t end) {
      const size_t first = static_cast<size_t>(begin) * kLine, last = std::min(bytes_, static_cast<size_t>(end) * kLine);
      std::memcpy(static_cast<char*>(operands[1]) + first, static_cast<const char*>(operands[0]) + first, last - first);
    });
  }

  void transpose(const uint16_t* from, uint16_t* to) const {
    const dims shape = from_.get_dims();
    const int64_t rows = shape[1], columns = shape[2], blocks = (rows + kSide - 1) / kSide;
    thread_pool::parallel_for(shape[0] * blocks, threads_, [&](int64_t begin, int64_t end) {
      for (; begin < end; begin++) {
        const int64_t at = begin / blocks * rows * columns, row = begin % blocks * kSide;
        transpose_rows(from + at, rows, columns, row, std::min(row + kSide, rows), to + at);
      }
    });
  }

  dnnl::memory::desc from_, to_;
  size_t bytes_;
  bool is_copy_, is_by_blocks_;
  Reorder reorder_;
};

}  // namespace

std::unique_ptr<Operation> make_transpose(SpecReader reader, thread_pool::Settings settings, bool) {
  const dt dtype = reader.next_dtype();
  const int64_t batch = reader.next(1), rows = reader.next(1), columns = reader.next(1);
  reader.finish();
  return std::make_unique<Transpose>(dtype, batch, rows, columns, settings);
}

}  // namespace native
