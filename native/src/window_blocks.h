// A convolution as products of some windows at a time: each thread writes them out, and multiplies them while they are in its
// second cache.
#pragma once

#include <vector>

#include "packed_gemm.h"
#include "window_matrix.h"

namespace native {

class WindowBlocks {
 public:
  // A block has as many windows as there are among `numbers`, but `least` to `most` of them.
  struct Limits {
    int64_t numbers, least, most;
  };

  // `product_of(windows)`: the product of a block.
  template <class ProductOf>
  WindowBlocks(const WindowMatrix& windows, int64_t rows, int threads, const Limits& limits, const ProductOf& product_of)
      : windows_(windows),
        rows_(rows),
        block_(std::min(rows, std::clamp(limits.numbers / windows.depth(), limits.least, limits.most))) {
    threads_ = static_cast<int>(std::min<int64_t>(threads, count()));
    products_.push_back(product_of(block_));
    if (rows % block_ != 0) products_.push_back(product_of(rows % block_));
  }

  int threads() const { return threads_; }
  const PackedGemm& product() const { return products_.front(); }
  size_t scratch_of_thread() const { return aligned(matrix_bytes()) + product().scratch_size(); }

  // Calls visit(product, matrix, its first row among all, scratch of the product) for each of a thread's blocks.
  template <class Visit>
  void for_each(int64_t thread, const float* input, char* scratch, const Visit& visit) const {
    for (int64_t i = count() * thread / threads_; i < count() * (thread + 1) / threads_; i++) {
      const int64_t begin = i * block_, end = std::min(begin + block_, rows_);
      Scratch rest(scratch);
      auto* matrix = reinterpret_cast<float*>(rest.take(matrix_bytes()));
      windows_.write(input, begin, end, matrix);
      visit(end - begin == block_ ? products_.front() : products_.back(), matrix, begin, rest);
    }
  }

 private:
  int64_t count() const { return (rows_ + block_ - 1) / block_; }
  size_t matrix_bytes() const { return static_cast<size_t>(block_ * windows_.depth()) * sizeof(float); }

  WindowMatrix windows_;
  int64_t rows_, block_;  // of all, of one block
  int threads_;
  std::vector<PackedGemm> products_;  // of a block, and of the last one where it has fewer windows
};

}  // namespace native
