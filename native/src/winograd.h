// Convolutions of float32 data with 3 x 3 packed weights by Winograd's minimal filtering (Lavin and Gray, 2015, arXiv:1509.09308):
// 16 products for 2 x 2 pixels of the result instead of 36.
#pragma once

#include "product_spec.h"

namespace native {

// Whether a product is computed here, and not by oneDNN.
bool is_for_winograd(const ProductSpec& spec);

std::unique_ptr<Operation> make_winograd(const ProductSpec& spec, const thread_pool::Settings& settings);
std::unique_ptr<Operation> make_winograd_pack(const ProductSpec& spec, const thread_pool::Settings& settings);

}  // namespace native
