// Softmax cross-entropy of rows of logits with one label each: log(sum(exp(x))) - x[label], and its gradient, without an array of
// probabilities. A row is read once: its maximum and its sum are brought up to date block by block. AVX-512 only.
//
//   cross_entropy       logits, labels -> losses, normalizers
//   cross_entropy_grad  logits, labels, normalizers, gradient to the losses -> gradient to the logits
// Labels are int32, losses and normalizers (log(sum(exp(x)))) float32; the gradient has the dtype of the logits and may overwrite
// them. A label that is no class has the largest loss, and no gradient. The spec is written by oneflow/ops/_native_loss.py.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "operation.h"
#include "vector_math.h"

namespace native {

namespace {

constexpr int64_t kBlock = 4096;  // elements whose sum is computed while they are in the first cache
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct CrossEntropySpec {
  explicit CrossEntropySpec(SpecReader reader) {
    type = reader.next_dtype();
    rows = reader.next(1, int64_t{1} << 40), classes = reader.next(1, std::numeric_limits<int32_t>::max());
    if (static_cast<double>(rows) * static_cast<double>(classes) > 1e15) throw std::invalid_argument("too many logits");
    largest = reader.next_float();
    reader.finish();
  }

  size_t logits_bytes() const { return static_cast<size_t>(rows * classes) * bytes_of(type); }

  dt type;
  int64_t rows, classes;
  float largest;  // loss
};

// --- what follows is compiled for AVX-512; it is called only where the CPU has that

#include "avx512_begin.h"

inline __mmask16 first(int64_t count) { return count >= 16 ? 0xffff : static_cast<__mmask16>((1u << count) - 1); }

// Up to 16 elements; `other` where the mask has none.
inline __m512 load(const float* data, __mmask16 mask, __m512 other) { return _mm512_mask_loadu_ps(other, mask, data); }
inline __m512 load(const uint16_t* data, __mmask16 mask, __m512 other) {
  const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, data)), 16);
  return _mm512_mask_mov_ps(other, mask, _mm512_castsi512_ps(bits));
}

inline void store(float* data, __mmask16 mask, __m512 value) { _mm512_mask_storeu_ps(data, mask, value); }
inline void store(uint16_t* data, __mmask16 mask, __m512 value) {
  _mm256_mask_storeu_epi16(data, mask, (__m256i)_mm512_cvtneps_pbh(value));
}

template <class T>
float element(const T* data) {
  return _mm512_cvtss_f32(load(data, 1, _mm512_setzero_ps()));
}

// The greatest element that is not NaN, and `least`.
template <class T>
float greatest(const T* x, int64_t count, float least) {
  const __m512 none = _mm512_set1_ps(least);
  __m512 found[4] = {none, none, none, none};
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {  // maxima keep their second operand where one is NaN
    for (int j = 0; j < 4; j++) found[j] = _mm512_max_ps(load(x + i + 16 * j, 0xffff, none), found[j]);
  }
  for (; i < count; i += 16) found[0] = _mm512_max_ps(load(x + i, first(count - i), none), found[0]);
  return _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(found[0], found[1]), _mm512_max_ps(found[2], found[3])));
}

// The sum of exp(x - shift).
template <class T>
float sum_of_exponentials(const T* x, int64_t count, float shift) {
  const __m512 by = _mm512_set1_ps(shift), none = _mm512_set1_ps(-kInfinity);
  __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    for (int j = 0; j < 4; j++) sums[j] = _mm512_add_ps(sums[j], exponential(_mm512_sub_ps(load(x + i + 16 * j, 0xffff, none), by)));
  }
  for (; i < count; i += 16) {
    const __mmask16 mask = first(count - i);
    sums[0] = _mm512_add_ps(sums[0], _mm512_maskz_mov_ps(mask, exponential(_mm512_sub_ps(load(x + i, mask, none), by))));
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
}

// log(sum(exp(x))). NaN where x has NaN or infinity, or minus infinity alone.
template <class T>
float normalizer(const T* x, int64_t count) {
  float top = -kInfinity, sum = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t size = std::min(kBlock, count - begin);
    const float before = top;
    top = greatest(x + begin, size, top);
    const float shift = top == -kInfinity ? 0 : top;  // -inf so far; a NaN is still to be seen
    if (top > before) sum *= std::exp(before - shift);
    sum += sum_of_exponentials(x + begin, size, shift);
  }
  return top == -kInfinity ? std::numeric_limits<float>::quiet_NaN() : std::log(sum) + top;
}

template <class T>
void losses(const CrossEntropySpec& s, void* const* operands, int64_t begin, int64_t end) {
  const auto* logits = static_cast<const T*>(operands[0]);
  const auto* labels = static_cast<const int32_t*>(operands[1]);
  for (int64_t row = begin; row < end; row++) {
    const T* x = logits + row * s.classes;
    const float total = normalizer(x, s.classes);
    const int64_t label = labels[row];
    const float loss = label < 0 || label >= s.classes ? s.largest : total - element(x + label);
    static_cast<float*>(operands[2])[row] = loss > s.largest ? s.largest : loss;  // NaN stays NaN
    static_cast<float*>(operands[3])[row] = total;
  }
}

template <class T>
void gradients(const CrossEntropySpec& s, void* const* operands, int64_t begin, int64_t end) {
  const auto* labels = static_cast<const int32_t*>(operands[1]);
  for (int64_t row = begin; row < end; row++) {
    const T* x = static_cast<const T*>(operands[0]) + row * s.classes;
    T* result = static_cast<T*>(operands[4]) + row * s.classes;
    const int64_t label = labels[row];
    const bool known = label >= 0 && label < s.classes;
    const __m512 total = _mm512_set1_ps(static_cast<const float*>(operands[2])[row]);
    const __m512 dy = _mm512_set1_ps(known ? static_cast<const float*>(operands[3])[row] : 0);
    const __m512 at_label = known ? load(x + label, 1, total) : total;  // before it is overwritten
    int64_t i = 0;
    for (; i + 16 <= s.classes; i += 16) {
      store(result + i, 0xffff, _mm512_mul_ps(exponential(_mm512_sub_ps(load(x + i, 0xffff, total), total)), dy));
    }
    if (i < s.classes) {
      const __mmask16 mask = first(s.classes - i);
      store(result + i, mask, _mm512_mul_ps(exponential(_mm512_sub_ps(load(x + i, mask, total), total)), dy));
    }
    if (known) {
      const __m512 probability = exponential(_mm512_sub_ps(at_label, total));
      store(result + label, 1, _mm512_mul_ps(_mm512_sub_ps(probability, _mm512_set1_ps(1)), dy));
    }
  }
}

#include "avx512_end.h"

// --- end of what is compiled for AVX-512

class CrossEntropy final : public Operation {
 public:
  CrossEntropy(const CrossEntropySpec& spec, const thread_pool::Settings& settings, bool is_grad) : spec_(spec) {
    check_avx512(spec.type != dt::f32);
    const size_t logits = spec.logits_bytes(), one_each = static_cast<size_t>(spec.rows) * sizeof(float);
    if (is_grad) {
      operand_bytes_ = {logits, one_each, one_each, one_each, logits};
    } else {
      operand_bytes_ = {logits, one_each, one_each, one_each};
    }
    constexpr double kFlopsPerElement = 32;  // floating point operations that take as long as one of the logits
    threads_ = settings.threads_for(kFlopsPerElement * static_cast<double>(spec.rows) * static_cast<double>(spec.classes));
    const bool is_narrow = spec.type != dt::f32;
    run_ = is_grad ? (is_narrow ? gradients<uint16_t> : gradients<float>) : (is_narrow ? losses<uint16_t> : losses<float>);
  }

  std::string name() const override { return spec_.type == dt::f32 ? "one pass:avx512_core" : "one pass:avx512_core_bf16"; }

  void run(void* const* operands, Scratch&) const override {
    thread_pool::parallel_for(spec_.rows, threads_, [&](int64_t begin, int64_t end) { run_(spec_, operands, begin, end); });
  }

 private:
  CrossEntropySpec spec_;
  void (*run_)(const CrossEntropySpec&, void* const*, int64_t, int64_t);
};

}  // namespace

std::unique_ptr<Operation> make_cross_entropy(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<CrossEntropy>(CrossEntropySpec(reader), settings, false);
}

std::unique_ptr<Operation> make_cross_entropy_grad(SpecReader reader, thread_pool::Settings settings, bool) {
  return std::make_unique<CrossEntropy>(CrossEntropySpec(reader), settings, true);
}

}  // namespace native
