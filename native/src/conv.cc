// Convolutions: forward, gradient to the data, gradient to the weights. Data is channels-last in memory.

#include <algorithm>
#include <mutex>

#include "blocked_im2col.h"
#include "conv_spec.h"
#include "depthwise.h"
#include "direct.h"
#include "few_pixels.h"
#include "grouped_conv.h"
#include "im2col.h"
#include "padded_gradient.h"
#include "row_weights.h"
#include "winograd.h"

namespace native {

namespace {

// Matrix products win where weights are many beside the windows they are applied to: there reordering them costs more than the
// convolution does. Without AVX-512, they also win for gradients to many weights, and where most taps lie beside the image.
// Measured with one thread and two (docs/performance-kernels.md, docs/performance-avx2.md).
bool is_for_im2col(const ConvSpec& s) {
  if (s.groups != 1 || s.flags & ConvSpec::kAlwaysDirect) return false;
  if (s.flags & ConvSpec::kAlwaysIm2col || s.taps() == 1) return true;
  constexpr int64_t kFewRows = 160, kFewAdjacentRows = 64;
  if (isa() != Isa::kAvx2) return s.rows() <= kFewRows;
  if (s.kind == ConvSpec::kBackwardWeights) {
    constexpr int64_t kManyFilters = 256, kLargeMatrix = 1 << 23;
    return s.rows() <= kFewRows || (s.kernel[0] >= kManyFilters && s.rows() * s.columns() <= kLargeMatrix);
  }
  constexpr int64_t kFewPixels = 4, kManyRows = 512;
  const bool is_strided = std::any_of(s.strides.begin(), s.strides.end(), [](int64_t stride) { return stride > 1; });
  return s.rows() <= (is_strided ? kFewRows : kFewAdjacentRows) ||
         (s.rows() <= kFewPixels * s.output[0] && s.rows() <= kManyRows);
}

// oneDNN's own, or what replaces it here. Where it may not pad, nothing beside the image is multiplied.
std::unique_ptr<ConvAlgorithm> choose_direct(const ConvSpec& s, int threads, bool describe_only, bool may_pad) {
  const bool is_free = !(s.flags & ConvSpec::kAlwaysDirect);
  const bool may_be_blocks = is_free && may_pad && BlockedIm2col::takes(s), may_be_rows = is_free && RowWeights::takes(s);
  const bool rows_are_fast = may_be_rows && RowWeights::is_fast(s);
  if (rows_are_fast && !may_be_blocks) return std::make_unique<RowWeights>(s, threads);
  auto direct = std::make_unique<DirectConv>(s, threads, describe_only || rows_are_fast);
  if (may_be_blocks && direct->is_slow()) return std::make_unique<BlockedIm2col>(s, threads);
  const bool may_be_groups = is_free && (may_pad || s.kind != ConvSpec::kBackwardWeights);
  if (may_be_groups && is_for_grouped_conv(s, direct->name())) return make_grouped_conv(s, threads);
  if (rows_are_fast || (may_be_rows && direct->is_slow())) return std::make_unique<RowWeights>(s, threads);
  return direct;
}

std::unique_ptr<ConvAlgorithm> choose_algorithm(const ConvSpec& s, int threads, bool describe_only,
                                                const RunDirectly& run_directly) {
  if (s.flags & ConvSpec::kAlwaysRows && RowWeights::takes(s)) return std::make_unique<RowWeights>(s, threads);
  if (!(s.flags & ConvSpec::kAlwaysDirect) && DepthwiseWeights::takes(s)) return std::make_unique<DepthwiseWeights>(s, threads);
  if (FewPixels::takes(s, threads)) return std::make_unique<FewPixels>(s, threads);
  if (FewPixelsWeights::takes(s, threads)) return std::make_unique<FewPixelsWeights>(s, threads);
  if (is_for_winograd(s)) return make_winograd(s, threads, run_directly);
  if (is_for_im2col(s)) {
    auto im2col = std::make_unique<Im2colConv>(s, threads, describe_only);
    if (!im2col->is_slow()) return im2col;
  }
  if (PaddedGradient::takes(s)) {
    auto padded = std::make_unique<PaddedGradient>(s, threads, describe_only);
    if (!padded->is_slow()) return padded;
  }
  return choose_direct(s, threads, describe_only, true);
}

class Conv final : public Operation {
 public:
  Conv(const ConvSpec& s, const thread_pool::Settings& settings, bool describe_only) : spec_(s) {
    threads_ = settings.threads_for(s.flops());
    algorithm_ = choose_algorithm(s, threads_, describe_only, [this](const void* first, const void* second, void* result) {
      run_without_padding(first, second, result);
    });
    multiplies_padding_ = (s.is_padded() || s.kind == ConvSpec::kBackwardData) && algorithm_->multiplies_padding();
    scratch_size_ = algorithm_->scratch_size();
    const dims* const shapes[3][3] = {
        {&s.input, &s.kernel, &s.output}, {&s.output, &s.kernel, &s.input}, {&s.input, &s.output, &s.kernel}};
    for (int i = 0; i < 3; i++) {
      operand_bytes_.push_back(element_count(*shapes[s.kind][i]) * bytes_of(s.dtypes.operands[i]));
    }
  }

  std::string name() const override { return algorithm_->name(); }

  void run(void* const* operands, Scratch& scratch) const override {
    algorithm_->run(operands[0], operands[1], operands[2], scratch);
    if (multiplies_padding_ && padding_may_show(operands)) run_without_padding(operands[0], operands[1], operands[2]);
  }

 private:
  // Padding holds no values, but it is multiplied as zeros, and zero times infinity is NaN: sought in the result, or infinities
  // are in the output's gradient where that has fewer numbers.
  bool padding_may_show(void* const* operands) const {
    const dims* const results[3] = {&spec_.output, &spec_.input, &spec_.kernel};
    const bool is_gradient =
        spec_.kind == ConvSpec::kBackwardWeights && element_count(spec_.output) < element_count(spec_.kernel);
    const int position = is_gradient ? 1 : 2;
    const size_t count = element_count(is_gradient ? spec_.output : *results[spec_.kind]);
    const bool is_float32 = spec_.dtypes.operands[position] == dt::f32;
    return is_float32
               ? has_bits(static_cast<const uint32_t*>(operands[position]), count, 0x7f800000u + !is_gradient)
               : has_bits(static_cast<const uint16_t*>(operands[position]), count, static_cast<uint16_t>(0x7f80 + !is_gradient));
  }

  // Whether a number's magnitude has these bits or more: those of an infinity, or that of a NaN, which has one of the others,
  // too.
  template <class Bits>
  static bool has_bits(const Bits* values, size_t count, Bits least) {
    constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
    bool found = false;
    for (size_t i = 0; i < count; i++) found |= (values[i] & kMagnitude) >= least;
    return found;
  }

  void run_without_padding(const void* first, const void* second, void* result) const {
    std::call_once(direct_once_, [&] { direct_ = choose_direct(spec_, threads_, false, false); });
    Scratch scratch(direct_->scratch_size());
    direct_->run(first, second, result, scratch);
  }

  ConvSpec spec_;
  std::unique_ptr<ConvAlgorithm> algorithm_;
  bool multiplies_padding_ = false;
  mutable std::once_flag direct_once_;
  mutable std::unique_ptr<ConvAlgorithm> direct_;  // made where it is first needed
};

}  // namespace

std::unique_ptr<Operation> make_conv(SpecReader reader, thread_pool::Settings settings, bool describe_only) {
  return std::make_unique<Conv>(ConvSpec(reader), settings, describe_only);
}

}  // namespace native
