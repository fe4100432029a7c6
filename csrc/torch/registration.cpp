// Operator schemas and their registration through torch's stable ABI: one binary serves every later torch.
#include <torch/csrc/stable/library.h>

#include "channels/operators.h"
#include "columns/operators.h"
#include "images/operators.h"
#include "rows/operators.h"

// In the order of RowsOptions and of ChannelsOptions.
#define ROWS_OPTIONS "int statistic, float eps, int eps_mode, float weight_offset, bool early, bool rounded"
#define CHANNELS_OPTIONS "int groups, float eps, int eps_mode, float weight_offset, int activation"

namespace evenkeel {
namespace {

// Takes an argument from torch's stack: one value, or the members of a struct one after the other.
template <class T>
T take(StableIValue*& next) {
  using torch::stable::detail::to;
  if constexpr (std::is_enum_v<T> && !std::is_same_v<T, torch::headeronly::ScalarType>) {
    return static_cast<T>(to<int64_t>(*next++));
  } else {
    return to<T>(*next++);
  }
}
template <>
RowsOptions take(StableIValue*& next) {  // braces are evaluated from left to right
  return {take<Statistic>(next), take<double>(next), take<EpsMode>(next),
          take<double>(next),    take<bool>(next),   take<bool>(next)};
}
template <>
ChannelsOptions take(StableIValue*& next) {
  return {take<int64_t>(next), take<double>(next), take<EpsMode>(next), take<double>(next), take<Activation>(next)};
}

// How many values of the stack an argument is.
template <class T>
constexpr uint64_t values_in = 1;
template <>
constexpr uint64_t values_in<RowsOptions> = 6;
template <>
constexpr uint64_t values_in<ChannelsOptions> = 5;

// Puts a result where torch looks for it: one value, the members of a tuple, or nothing.
template <class T>
void put(StableIValue* stack, T&& result) {
  *stack = torch::stable::detail::from<T>(result);
}
template <class... T>
void put(StableIValue* stack, std::tuple<T...>&& results) {
  std::apply([&](auto&... each) { ((*stack++ = torch::stable::detail::from(each)), ...); }, results);
}

// A function as torch calls it. TORCH_BOX does the same for functions without options.
template <auto function>
struct Boxed;
template <class Result, class... Parameters, Result (*function)(Parameters...)>
struct Boxed<function> {
  static void call(StableIValue* stack, uint64_t count, uint64_t) {
    STD_TORCH_CHECK(count == (values_in<std::decay_t<Parameters>> + ... + 0),
                    "evenkeel: an operator's schema and its function differ in their arguments");
    [[maybe_unused]] StableIValue* next = stack;
    const std::tuple<std::decay_t<Parameters>...> arguments{take<std::decay_t<Parameters>>(next)...};
    if constexpr (std::is_void_v<Result>) {
      std::apply(function, arguments);
    } else {
      put(stack, std::apply(function, arguments));
    }
  }
};

// Raw and functional: forward and backward are separate operators, and the public functions own the autograd.
STABLE_TORCH_LIBRARY(evenkeel, m) {
  m.def("rows_forward(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, int axes, " ROWS_OPTIONS
        ", bool recomputable) -> (Tensor y, Tensor sum, Tensor statistics)");
  m.def("rows_inference(Tensor x, Tensor? weight, Tensor? bias, int axes, " ROWS_OPTIONS ") -> Tensor");
  m.def("rows_out(Tensor x, Tensor? weight, Tensor? bias, int axes, " ROWS_OPTIONS ", Tensor(a!) out) -> ()");
  m.def("rows_backward(Tensor dy, Tensor? dsum, Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, "
        "Tensor statistics, int axes, " ROWS_OPTIONS
        ", bool need_dx, bool need_dresidual, bool need_dweight, bool need_dbias, bool from_output) "
        "-> (Tensor dx, Tensor dresidual, Tensor dweight, Tensor dbias)");
  m.def("channels_forward(Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? variance, Tensor? mask, "
        CHANNELS_OPTIONS ") -> (Tensor y, Tensor statistics, Tensor variances)");
  m.def("channels_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor statistics, Tensor? mask, "
        "bool remembered, " CHANNELS_OPTIONS ", bool need_dx, bool need_dweight, bool need_dbias) "
        "-> (Tensor dx, Tensor dweight, Tensor dbias)");
  m.def(
      "column_moments(Tensor x, Tensor? weight) -> (Tensor count, Tensor mean, Tensor m2, Tensor minimum, "
      "Tensor maximum, Tensor missing, Tensor infinite, Tensor mean_low)");
  m.def(
      "separate_column_moments(Tensor[] columns) -> (Tensor count, Tensor mean, Tensor m2, Tensor minimum, "
      "Tensor maximum, Tensor missing, Tensor infinite, Tensor mean_low)");
  m.def(
      "column_affine(Tensor x, Tensor shift, Tensor scale, Tensor? offset, float? low, float? high, ScalarType dtype, "
      "Tensor(a!)? infinite=None) -> Tensor");
  m.def(
      "column_affine_out(Tensor x, Tensor shift, Tensor scale, Tensor? offset, float? low, float? high, "
      "Tensor(a!) out, Tensor(b!)? infinite=None) -> ()");
  m.def("image_normalize(Tensor x, Tensor mean, Tensor std, float max_value, ScalarType dtype) -> Tensor");
  m.def("image_normalize_out(Tensor x, Tensor mean, Tensor std, float max_value, Tensor(a!) out) -> ()");
  m.def("is_pooled(Tensor x) -> bool");
  m.def("simd_level() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(evenkeel, CPU, m) {
  m.impl("rows_forward", Boxed<&rows_forward>::call);
  m.impl("rows_inference", Boxed<&rows_inference>::call);
  m.impl("rows_out", Boxed<&rows_out>::call);
  m.impl("rows_backward", Boxed<&rows_backward>::call);
  m.impl("channels_forward", Boxed<&channels_forward>::call);
  m.impl("channels_backward", Boxed<&channels_backward>::call);
  m.impl("column_moments", Boxed<&column_moments>::call);
  m.impl("separate_column_moments", Boxed<&separate_column_moments>::call);
  m.impl("column_affine", Boxed<&column_affine>::call);
  m.impl("column_affine_out", Boxed<&column_affine_out>::call);
  m.impl("image_normalize", Boxed<&image_normalize>::call);
  m.impl("image_normalize_out", Boxed<&image_normalize_out>::call);
  m.impl("is_pooled", Boxed<&is_pooled>::call);
}

STABLE_TORCH_LIBRARY_IMPL(evenkeel, CompositeExplicitAutograd, m) {
  m.impl("simd_level", Boxed<&simd_level>::call);
}

}  // namespace
}  // namespace evenkeel
