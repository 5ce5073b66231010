// Products of a few rows of float32 data with packed weights, which take as long as the weights take to be read.
#pragma once

#include "product_spec.h"

namespace native {

// Whether these products are computed here, and not by oneDNN.
bool has_few_rows(const ProductSpec& spec);

std::unique_ptr<Operation> make_few_rows(const ProductSpec& spec, const thread_pool::Settings& settings);
std::unique_ptr<Operation> make_few_rows_pack(const ProductSpec& spec);

}  // namespace native
