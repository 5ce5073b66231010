// A convolution by one of oneDNN's: weights, and now and then data, are brought into its blocks on the way.
#pragma once

#include <string>

#include "spec.h"

namespace native {

class Direct {
 public:
  // `only_described`: decides which implementation there is, and makes no code.
  Direct(const Spec& spec, int threads, bool only_described);

  std::string name() const { return name_; }
  size_t scratch() const { return scratch_; }

  // `first` and `second` are what the kind reads, `made` what it gives. On a thread that uses the team already.
  void run(void* first, void* second, void* made, Scratch& scratch) const;

 private:
  // One operand: as the caller has it, as the primitive wants it, and what lies between.
  struct Operand {
    dnnl::memory::desc outer, inner;
    dnnl::reorder bridge;
    size_t bridge_scratch = 0;
    bool differs = false;

    void connect(bool inward);
    size_t extra() const { return differs ? rounded(inner.get_size()) + rounded(bridge_scratch) : 0; }
  };

  bool is_slow() const { return name_.find("ref") != std::string::npos || name_.find("gemm:") != std::string::npos; }
  void build(const Spec& spec, bool only_described, bool freely);

  Kind kind_;
  std::string name_;
  dnnl::primitive primitive_;
  dnnl::memory::desc pad_;
  Operand operands_[3];
  size_t scratch_ = 0;
};

}  // namespace native
