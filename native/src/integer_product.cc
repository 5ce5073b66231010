// Data is widened to 16 bits, window by window, so that two products and their sum take one instruction (vpmaddwd), and are exact: what
// multiplies 8 bits without VNNI adds up in 16, where sums saturate. That is up to twice as fast as float32, whose vectors hold half as
// many numbers.
//
// Weights of each group are packed into panels of two vectors of its output channels, missing ones zeros: [panel][pair of
// terms][output channel][2]. Depthwise ones stay as they are, tap by tap: [tap][channel], up to a whole vector of channels.

#include "integer_product.h"

#include <algorithm>
#include <utility>

#include "vectors.h"
#include "windows.h"

namespace native {

namespace {

constexpr int64_t kVectors = 2;                      // of a panel
constexpr int64_t kBlockBytes = int64_t{1} << 17;    // of rows that a thread widens at a time: they stay in the second cache
constexpr int64_t kLeastRows = 24;                   // for each thread, where threads share rows and not panels

int64_t panel_width() { return kVectors * lanes(); }
int64_t outputs_of(const ProductSpec& s) { return s.channels / s.groups; }  // of a group
int64_t panels_of(const ProductSpec& s) { return (outputs_of(s) + panel_width() - 1) / panel_width(); }
int64_t depth_of(const ProductSpec& s) { return static_cast<int64_t>(element_count(s.weights)) / s.channels; }  // terms of a sum
int64_t pairs_of(const ProductSpec& s) { return (depth_of(s) + 1) / 2; }
int64_t group_bytes(const ProductSpec& s) { return panels_of(s) * panel_width() * pairs_of(s) * 2; }

bool is_depthwise(const ProductSpec& s) { return s.groups > 1 && s.groups == s.input[1]; }
int64_t tap_bytes(const ProductSpec& s) { return (s.channels + lanes() - 1) / lanes() * lanes(); }

size_t packed_bytes(const ProductSpec& s) {
  return static_cast<size_t>(is_depthwise(s) ? depth_of(s) * tap_bytes(s) : s.groups * group_bytes(s));
}

struct Call {
  const ProductSpec& spec;
  int64_t pairs;
  const uint8_t* data;
  const int8_t* weights;
  const float *scale, *offset;
  const uint8_t* residual;
  void* result;
  bool is_plain;  // without an activation, or one that is in the range of the result
};

struct Kernels {
  int64_t most_rows;
  void (*widen)(const uint8_t* from, int64_t count, int16_t* to);
  // Rows of the result in the columns of one panel, which are those from `channel` to `end`: `multiply[i]` of i + 1 rows, from the widened ones.
  void (*multiply[6])(const Call&, const int16_t* rows, const int8_t* weights, int64_t row, int64_t channel, int64_t end);
  // One pixel of the result of a depthwise convolution.
  void (*multiply_depthwise)(const Call&, const Window&, int64_t tap_bytes, int64_t pixel);
};

#define KERNELS "integer_product_kernels.h"
#include "each_isa.h"

const Kernels& kernels() { return for_this_cpu(avx2::kKernels, avx512::kKernels); }

class IntegerProduct final : public Operation {
 public:
  IntegerProduct(const ProductSpec& s, const thread_pool::Settings& settings) : spec_(s), windows_(s.windows()) {
    threads_ = settings.threads_for(s.flops());
    rows_ = windows_.samples * Windows::product(windows_.output), step_ = 2 * pairs_of(s);
    shares_rows_ = rows_ >= kLeastRows * threads_;
    const int64_t most = shares_rows_ ? (rows_ + threads_ - 1) / threads_ : rows_;
    block_ = std::min(most, std::max(kernels().most_rows, kBlockBytes / (step_ * static_cast<int64_t>(sizeof(int16_t)))));
    block_bytes_ = aligned(static_cast<size_t>(block_ * step_) * sizeof(int16_t));
    const bool is_linear = s.factor == 1 && s.shift == 0, has_relu = s.activation == Activation::kRelu;
    is_plain_ = is_linear && (s.activation == Activation::kNone || (has_relu && s.output_type == dt::u8 && s.low >= 0));
    scratch_size_ = block_bytes_ * static_cast<size_t>(threads_);
    if (is_depthwise(s)) scratch_size_ = outputs_of(s) == 1 ? 0 : element_count(s.input) * static_cast<size_t>(outputs_of(s));
    const size_t count = static_cast<size_t>(s.channels) * sizeof(float), result = element_count(s.output);
    operand_bytes_ = {element_count(s.input), packed_bytes(s), count, count};
    if (s.has_residual) operand_bytes_.push_back(result);
    operand_bytes_.push_back(result * bytes_of(s.output_type));
  }

  std::string name() const override { return "integers:" + isa_name(false); }

  void run(void* const* operands, Scratch& scratch) const override {
    const Call call{spec_,
                    step_ / 2,
                    static_cast<const uint8_t*>(operands[0]),
                    static_cast<const int8_t*>(operands[1]),
                    static_cast<const float*>(operands[2]),
                    static_cast<const float*>(operands[3]),
                    spec_.has_residual ? static_cast<const uint8_t*>(operands[4]) : nullptr,
                    operands[4 + spec_.has_residual],
                    is_plain_};
    if (is_depthwise(spec_)) return run_depthwise(call, scratch);
    char* widened = scratch.take(scratch_size_);
    const int64_t panels = panels_of(spec_);
    thread_pool::on_threads(threads_, [&](int64_t thread) {
      auto* mine = reinterpret_cast<int16_t*>(widened + static_cast<size_t>(thread) * block_bytes_);
      const auto share = [&](int64_t all, int64_t i) { return all * i / threads_; };
      for (int64_t group = 0; group < spec_.groups; group++) {
        if (shares_rows_) {
          compute(call, group, share(rows_, thread), share(rows_, thread + 1), 0, panels, mine);
        } else {
          compute(call, group, 0, rows_, share(panels, thread), share(panels, thread + 1), mine);
        }
      }
    });
  }

 private:
  // Where several channels of the result read one of the data, that one is repeated first.
  void run_depthwise(Call call, Scratch& scratch) const {
    const int64_t repeats = outputs_of(spec_), bytes = tap_bytes(spec_);
    if (repeats > 1) {
      auto* repeated = reinterpret_cast<uint8_t*>(scratch.take(scratch_size_));
      thread_pool::parallel_for(static_cast<int64_t>(element_count(spec_.input)), threads_, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) std::fill_n(repeated + i * repeats, repeats, call.data[i]);
      });
      call.data = repeated;
    }
    const auto multiply = kernels().multiply_depthwise;
    thread_pool::parallel_for(rows_, threads_, [&](int64_t begin, int64_t end) {
      for (int64_t pixel = begin; pixel < end; pixel++) multiply(call, Window(windows_, pixel), bytes, pixel);
    });
  }

  void compute(const Call& call, int64_t group, int64_t row, int64_t last_row, int64_t panel, int64_t last_panel,
               int16_t* widened) const {
    const Kernels& k = kernels();
    const int64_t blocks = (last_row - row + block_ - 1) / block_, outputs = outputs_of(spec_), width = panel_width();
    const int8_t* weights = call.weights + group * group_bytes(spec_);
    for (int64_t i = 0; i < blocks && panel < last_panel; i++) {
      const int64_t first = row + (last_row - row) * i / blocks, count = row + (last_row - row) * (i + 1) / blocks - first;
      for (int64_t r = 0; r < count; r++) widen_window(call.data, group, first + r, widened + r * step_);
      const int64_t parts = (count + k.most_rows - 1) / k.most_rows;
      for (int64_t p = panel; p < last_panel; p++) {
        for (int64_t part = 0; part < parts; part++) {
          const int64_t begin = count * part / parts, rows = count * (part + 1) / parts - begin;
          k.multiply[rows - 1](call, widened + begin * step_, weights + p * width * step_, first + begin, group * outputs + p * width,
                               (group + 1) * outputs);
        }
      }
    }
  }

  // The terms of the sums of one pixel of the result in a group, in the order of the weights.
  void widen_window(const uint8_t* data, int64_t group, int64_t pixel, int16_t* to) const {
    const auto widen = kernels().widen;
    const int64_t all = spec_.input[1], channels = all / spec_.groups, step = windows_.dilations[2];
    const Window window(windows_, pixel);
    if (!window.is_whole()) std::fill_n(to, step_, int16_t{0});
    to[step_ - 1] = 0;  // of the last pair, where the number of terms is odd
    window.for_rows([&](int64_t first, int64_t tap, int64_t count) {
      const uint8_t* from = data + first * all + group * channels;
      int16_t* terms = to + tap * channels;
      if (step == 1 && spec_.groups == 1) return widen(from, count * channels, terms);
      for (int64_t n = 0; n < count; n++) widen(from + n * step * all, channels, terms + n * channels);
    });
  }

  ProductSpec spec_;
  Windows windows_;
  int64_t rows_, step_;  // of the result; numbers of a widened row
  int64_t block_;        // rows that are widened at a time
  bool is_plain_;
  bool shares_rows_;     // among threads, which else share the panels
  size_t block_bytes_;
};

class IntegerPack final : public Operation {
 public:
  explicit IntegerPack(const ProductSpec& s) : spec_(s) {
    operand_bytes_ = {element_count(s.weights), packed_bytes(s)};
  }

  std::string name() const override { return std::to_string(packed_bytes(spec_)); }

  void run(void* const* operands, Scratch&) const override {
    const auto* weights = static_cast<const int8_t*>(operands[0]);
    auto* packed = static_cast<int8_t*>(operands[1]);
    const int64_t depth = depth_of(spec_), width = panel_width(), outputs = outputs_of(spec_);
    if (is_depthwise(spec_)) {
      const int64_t step = tap_bytes(spec_);
      std::fill_n(packed, packed_bytes(spec_), int8_t{0});
      for (int64_t o = 0; o < spec_.channels; o++) {
        for (int64_t tap = 0; tap < depth; tap++) packed[tap * step + o] = weights[o * depth + tap];
      }
      return;
    }
    // of convolutions, terms lie side by side: (O, ..., I)
    const int64_t term = spec_.is_conv ? 1 : spec_.weight_strides[0], channel = spec_.is_conv ? depth : spec_.weight_strides[1];
    for (int64_t group = 0; group < spec_.groups; group++, weights += outputs * channel) {
      for (int64_t first = 0; first < outputs; first += width) {
        for (int64_t pair = 0; pair < pairs_of(spec_); pair++) {
          for (int64_t o = first; o < first + width; o++) {
            for (int64_t i = 2 * pair; i < 2 * pair + 2; i++) *packed++ = o < outputs && i < depth ? weights[o * channel + i * term] : 0;
          }
        }
      }
    }
  }

 private:
  ProductSpec spec_;
};

}  // namespace

bool has_vnni() { return has(dnnl::cpu_isa::avx512_core_vnni) || has(dnnl::cpu_isa::avx2_vnni); }

bool is_for_integers(const ProductSpec& s) { return s.is_integer() && !has_vnni() && runs_kernels(false); }

std::unique_ptr<Operation> make_integer_product(const ProductSpec& spec, const thread_pool::Settings& settings) {
  return std::make_unique<IntegerProduct>(spec, settings);
}

std::unique_ptr<Operation> make_integer_pack(const ProductSpec& spec) { return std::make_unique<IntegerPack>(spec); }

}  // namespace native
