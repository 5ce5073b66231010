// Convolutions of float32 data with 3 x 3 weights by Winograd's minimal filtering (Lavin and Gray, 2015, arXiv:1509.09308):
// 16 products for 2 x 2 pixels of the result instead of 36.
#pragma once

#include <functional>

#include "conv_spec.h"
#include "product_spec.h"

namespace native {

// Whether it is computed here, and not by oneDNN: a product whose weights were packed before; a convolution, or the gradient to
// its data, which packs them in each call; or the gradient to its weights.
bool is_for_winograd(const ProductSpec& spec);
bool is_for_winograd(const ConvSpec& spec);

std::unique_ptr<Operation> make_winograd(const ProductSpec& spec, const thread_pool::Settings& settings);
// Computes a call of a convolution without tiles, where a result is not finite.
using RunDirectly = std::function<void(const void* first, const void* second, void* result)>;
std::unique_ptr<ConvAlgorithm> make_winograd(const ConvSpec& spec, int threads, RunDirectly run_directly);
std::unique_ptr<Operation> make_winograd_pack(const ProductSpec& spec, const thread_pool::Settings& settings);

}  // namespace native
