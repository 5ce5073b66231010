// Convolutions in narrow groups of channels: where oneDNN's kernels leave most of each vector empty, or multiply small matrices
// for each group.
#pragma once

#include "conv_spec.h"
#include "product_spec.h"

namespace native {

// Whether to take them in place of oneDNN's, of this name. Those for the gradient to weights multiply padding.
bool is_for_grouped_conv(const ConvSpec& spec, const std::string& name);
std::unique_ptr<ConvAlgorithm> make_grouped_conv(const ConvSpec& spec, int threads);

bool is_for_grouped_conv(const ProductSpec& spec, const std::string& name);
std::unique_ptr<Operation> make_grouped_product(const ProductSpec& spec, const thread_pool::Settings& settings);
std::unique_ptr<Operation> make_grouped_product_pack(const ProductSpec& spec);

}  // namespace native
