// Products of float32 matrices whose weights were packed before, and convolutions that are such products, with what follows them.
#pragma once

#include "product_spec.h"

namespace native {

// Whether these products can be computed here, and whether they are, however oneDNN would compute them.
bool can_be_packed_gemm(const ProductSpec& spec);
bool is_for_packed_gemm(const ProductSpec& spec);

std::unique_ptr<Operation> make_packed_product(const ProductSpec& spec, const thread_pool::Settings& settings);
std::unique_ptr<Operation> make_packed_product_pack(const ProductSpec& spec);

}  // namespace native
