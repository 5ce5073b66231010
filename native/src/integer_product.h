// Products and convolutions of 8-bit integers on CPUs without VNNI.
#pragma once

#include "product_spec.h"

namespace native {

bool has_vnni();

// Whether it is computed here.
bool is_for_integers(const ProductSpec& spec);
std::unique_ptr<Operation> make_integer_product(const ProductSpec& spec, const thread_pool::Settings& settings);
std::unique_ptr<Operation> make_integer_pack(const ProductSpec& spec);

}  // namespace native
