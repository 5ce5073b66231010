// What describes a convolution: the attribute "spec", written by oneflow/ops/_native_conv.py.
#pragma once

#include <stdexcept>

#include "common.h"

namespace native {

enum Kind { kForward = 0, kData = 1, kWeights = 2 };
enum Flag : int64_t { kWeightsChannelsLast = 8, kNeverAsProduct = 16, kAlwaysAsProduct = 32 };

// What the vector says, by name.
struct Spec {
  Kind kind;
  int64_t flags;
  dt type;
  int n;
  int64_t groups;
  dims source, kernel, result, strides, gaps, low, high;  // source (N, C, ...), kernel (O, C / groups, ...)

  explicit Spec(const int64_t* v, size_t size) {
    if (size < 5) throw std::runtime_error("a spec is too short");
    if (v[0] < kForward || v[0] > kWeights) throw std::runtime_error("a spec is of no known kind");
    kind = static_cast<Kind>(v[0]);
    flags = v[1];
    type = type_of(v[2]);
    n = static_cast<int>(v[3]);
    groups = v[4];
    if (n < 1 || n > 3 || groups < 1 || size != 5 + 3 * (n + 2) + 4 * static_cast<size_t>(n)) throw std::runtime_error("a spec is broken");
    const int64_t* at = v + 5;
    auto take = [&](int count) {
      dims d(at, at + count);
      at += count;
      return d;
    };
    source = take(n + 2), kernel = take(n + 2), result = take(n + 2);
    strides = take(n), gaps = take(n), low = take(n), high = take(n);
    for (auto& d : gaps) d -= 1;  // oneDNN counts what lies between
  }

  dims grouped_kernel() const {
    if (groups == 1) return kernel;
    dims d{groups, kernel[0] / groups};
    d.insert(d.end(), kernel.begin() + 1, kernel.end());
    return d;
  }

  int64_t taps() const {
    int64_t total = 1;
    for (int i = 0; i < n; i++) total *= kernel[i + 2];
    return total;
  }
  int64_t rows() const { return static_cast<int64_t>(product_of(result)) / result[1]; }  // windows
  int64_t row() const { return kernel[1] * taps(); }                                     // elements of one

  // Windows lie side by side and are one element large: the source is the matrix already.
  bool is_plain() const {
    if (taps() != 1) return false;
    for (int i = 0; i < n; i++) {
      if (strides[i] != 1 || low[i] != 0 || high[i] != 0) return false;
    }
    return true;
  }

  double work() const { return 2.0 * static_cast<double>(rows()) * kernel[0] * row(); }
};

}  // namespace native
