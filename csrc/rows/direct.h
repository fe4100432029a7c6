// The interface between the operators' library and torch/direct_calls.cpp, which calls the row kernels past torch's
// dispatcher; plain data.
#pragma once

#include <cstddef>

#include "core/members.h"
#include "rows/kernels.h"

namespace evenkeel {

// A hash of the arguments' layout: libraries that were not built from the same structs do not agree on it.
constexpr size_t layout_of_rows() {
  size_t hash = sizeof(DType);
#define EVENKEEL_AT(member) offsetof(T, member)
  {
    using T = RowsOptions;
    add_layout<T>(hash, {EVENKEEL_AT(statistic), EVENKEEL_AT(eps), EVENKEEL_AT(eps_mode), EVENKEEL_AT(weight_offset),
                         EVENKEEL_AT(early), EVENKEEL_AT(rounded)});
  }
  {
    using T = RowsSpec;
    add_layout<T>(hash, {EVENKEEL_AT(options), EVENKEEL_AT(rows), EVENKEEL_AT(features)});
  }
  {
    using T = RowLayout;
    add_layout<T>(hash, {EVENKEEL_AT(axes), EVENKEEL_AT(sizes), EVENKEEL_AT(strides)});
  }
  {
    using T = Rows;
    add_layout<T>(hash, {EVENKEEL_AT(data), EVENKEEL_AT(dtype), EVENKEEL_AT(layout)});
  }
  {
    using T = Values;
    add_layout<T>(hash, {EVENKEEL_AT(data), EVENKEEL_AT(dtype)});
  }
  {
    using T = RowsForward;
    add_layout<T>(hash, {EVENKEEL_AT(spec), EVENKEEL_AT(is_double), EVENKEEL_AT(x), EVENKEEL_AT(residual),
                         EVENKEEL_AT(sum), EVENKEEL_AT(weight), EVENKEEL_AT(bias), EVENKEEL_AT(y),
                         EVENKEEL_AT(streamed), EVENKEEL_AT(fetched), EVENKEEL_AT(group_bytes),
                         EVENKEEL_AT(statistics)});
  }
  {
    using T = RowsBackward;
    add_layout<T>(hash, {EVENKEEL_AT(spec), EVENKEEL_AT(is_double), EVENKEEL_AT(from_output), EVENKEEL_AT(dy),
                         EVENKEEL_AT(x), EVENKEEL_AT(residual), EVENKEEL_AT(dsum), EVENKEEL_AT(dx),
                         EVENKEEL_AT(streamed), EVENKEEL_AT(fetched), EVENKEEL_AT(group_bytes), EVENKEEL_AT(dresidual), EVENKEEL_AT(weight),
                         EVENKEEL_AT(bias), EVENKEEL_AT(statistics), EVENKEEL_AT(rows_per_task),
                         EVENKEEL_AT(padded_features), EVENKEEL_AT(dweight_partial), EVENKEEL_AT(dbias_partial)});
  }
#undef EVENKEEL_AT
  return hash;
}

struct DirectRows {
  size_t layout;  // layout_of_rows() of the library
  // Each fills in the remaining fields and runs; false where it failed.
  bool (*forward)(RowsForward& a, const Values& weight, const Values& bias) noexcept;
  // bias: for a.from_output alone
  bool (*backward)(RowsBackward& a, const Values& weight, const Values& bias, const Values& dweight,
                   const Values& dbias) noexcept;
};

}  // namespace evenkeel

extern "C" __attribute__((visibility("default"))) const evenkeel::DirectRows* evenkeel_direct_rows();
