// What the specs of lstm_cell.cc and lstm_layer.cc have in common.
#pragma once

#include "operation.h"

namespace native {

// In which quarter of a row of gates each of them is: i, f, g, o.
struct Quarters {
  explicit Quarters(SpecReader& reader) {
    unsigned seen = 0;
    for (auto& quarter : of) {
      quarter = reader.next(0, 3);
      seen |= 1u << quarter;
    }
    if (seen != 15) throw std::invalid_argument("two gates are in the same quarter");
  }

  int64_t of[4];
};

}  // namespace native
