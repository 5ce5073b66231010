// A convolution by oneDNN's own: weights, and now and then data, are reordered into the layout that it wants.
#pragma once

#include "conv_spec.h"

namespace native {

class DirectConv final : public ConvAlgorithm {
 public:
  // `describe_only`: decides which implementation it is, and generates no code.
  DirectConv(const ConvSpec& spec, int threads, bool describe_only);

  std::string name() const override { return name_; }
  size_t scratch_size() const override { return scratch_size_; }
  bool multiplies_padding() const override { return false; }
  // Whether it is an implementation that exists only so that every shape has one.
  bool is_slow() const;
  void run(const void* first, const void* second, void* result, Scratch& scratch) const override;

 private:
  struct Operand {
    dnnl::memory::desc outer, inner;  // in the caller's layout, in the primitive's
    int argument = 0;                 // its name in oneDNN
    bool is_reordered = false;
    Reorder reorder;

    size_t scratch_size() const { return is_reordered ? aligned(inner.get_size()) + reorder.scratch_size() : 0; }
  };

  Operand first_, second_, result_;
  std::string name_;
  dnnl::primitive primitive_;
  size_t scratchpad_ = 0, scratch_size_ = 0;
};

}  // namespace native
