// What the Python extension (csrc/python/) asks of the operators' library for small dense tensors, past torch's
// dispatcher; plain data only.
#pragma once

#include <cstddef>

#include "rows_kernels.h"

namespace evenkeel {

struct DirectRows {
  size_t layout;  // of the arguments: two libraries that were not built together do not agree on it
  // Each fills in what rows.cpp decides; false where it failed.
  bool (*forward)(RowsForward& a, const Values& weight, const Values& bias, double weight_offset) noexcept;
  // bias: for a.from_output alone
  bool (*backward)(RowsBackward& a, const Values& weight, const Values& bias, double weight_offset,
                   const Values& dweight, const Values& dbias) noexcept;
};

}  // namespace evenkeel

extern "C" __attribute__((visibility("default"))) const evenkeel::DirectRows* evenkeel_direct_rows();
