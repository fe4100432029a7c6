// Operator schemas and their registration through torch's stable ABI: one binary serves every later torch.
#include <torch/csrc/stable/library.h>

#include <cstring>

#include "channels/operators.h"
#include "columns/operators.h"
#include "core/caches.h"
#include "core/direct_memory.h"
#include "core/environment.h"
#include "core/members.h"
#include "images/operators.h"
#include "rows/operators.h"

// In the order of RowsOptions and of ChannelsOptions.
#define ROWS_OPTIONS "int statistic, float eps, int eps_mode, float weight_offset, bool early, bool rounded"
#define CHANNELS_OPTIONS "int groups, float eps, int eps_mode, float weight_offset, int activation"

#define COLUMN_MOMENTS                                                                                      \
  "(Tensor count, Tensor mean, Tensor m2, Tensor minimum, Tensor maximum, Tensor missing, Tensor infinite, " \
  "Tensor mean_low)"

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
  static_assert(count_members<RowsOptions>() == 6);
  return {take<Statistic>(next), take<double>(next), take<EpsMode>(next),
          take<double>(next),    take<bool>(next),   take<bool>(next)};
}
template <>
ChannelsOptions take(StableIValue*& next) {
  static_assert(count_members<ChannelsOptions>() == 5);
  return {take<int64_t>(next), take<double>(next), take<EpsMode>(next), take<double>(next), take<Activation>(next)};
}

// How many values of the stack an argument is.
template <class T>
constexpr uint64_t values_in = 1;
template <>
constexpr uint64_t values_in<RowsOptions> = count_members<RowsOptions>();
template <>
constexpr uint64_t values_in<ChannelsOptions> = count_members<ChannelsOptions>();

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

// The caches and what follows from them, in bytes, for people.
std::tuple<int64_t, int64_t, int64_t, int64_t, std::string, int64_t, int64_t, int64_t, int64_t> memory_choices() {
  const Caches& c = caches();
  return {c.first,        c.second,           c.third,         c.cores,     c.source,
          cached_bytes(), cached_output_in_order(), smallest_pooled, pool_limit()};
}

struct Operator {
  const char* schema;
  void (*call)(StableIValue*, uint64_t, uint64_t);
  std::string name() const { return {schema, std::strchr(schema, '(')}; }
};

// Raw and functional: forward and backward are separate operators, and the public functions own the autograd.
constexpr Operator operators[] = {
    {"rows_forward(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, int axes, " ROWS_OPTIONS
     ", bool recomputable) -> (Tensor y, Tensor sum, Tensor statistics)",
     Boxed<&rows_forward>::call},
    {"rows_inference(Tensor x, Tensor? weight, Tensor? bias, int axes, " ROWS_OPTIONS ") -> Tensor",
     Boxed<&rows_inference>::call},
    {"rows_out(Tensor x, Tensor? weight, Tensor? bias, int axes, " ROWS_OPTIONS ", Tensor(a!) out) -> ()",
     Boxed<&rows_out>::call},
    {"rows_backward(Tensor dy, Tensor? dsum, Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, "
     "Tensor statistics, int axes, " ROWS_OPTIONS
     ", bool need_dx, bool need_dresidual, bool need_dweight, bool need_dbias, bool from_output) "
     "-> (Tensor dx, Tensor dresidual, Tensor dweight, Tensor dbias)",
     Boxed<&rows_backward>::call},
    {"channels_forward(Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? variance, Tensor? mask, "
     CHANNELS_OPTIONS ") -> (Tensor y, Tensor statistics, Tensor variances)",
     Boxed<&channels_forward>::call},
    {"channels_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor statistics, Tensor? mask, "
     "bool remembered, " CHANNELS_OPTIONS ", bool need_dx, bool need_dweight, bool need_dbias) "
     "-> (Tensor dx, Tensor dweight, Tensor dbias)",
     Boxed<&channels_backward>::call},
    {"update_running(Tensor(a!) running_mean, Tensor(b!) running_var, Tensor statistics, Tensor variances, "
     "float momentum, int count) -> ()",
     Boxed<static_cast<void (*)(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, int64_t)>(
         &update_running)>::call},
    {"column_moments(Tensor x, Tensor? weight) -> " COLUMN_MOMENTS, Boxed<&column_moments>::call},
    {"separate_column_moments(Tensor[] columns) -> " COLUMN_MOMENTS, Boxed<&separate_column_moments>::call},
    {"column_affine(Tensor x, Tensor shift, Tensor scale, Tensor? offset, float? low, float? high, ScalarType dtype, "
     "Tensor(a!)? infinite=None) -> Tensor",
     Boxed<&column_affine>::call},
    {"column_affine_out(Tensor x, Tensor shift, Tensor scale, Tensor? offset, float? low, float? high, "
     "Tensor(a!) out, Tensor(b!)? infinite=None) -> ()",
     Boxed<&column_affine_out>::call},
    {"image_normalize(Tensor x, Tensor mean, Tensor std, float max_value, ScalarType dtype) -> Tensor",
     Boxed<&image_normalize>::call},
    {"image_normalize_out(Tensor x, Tensor mean, Tensor std, float max_value, Tensor(a!) out) -> ()",
     Boxed<&image_normalize_out>::call},
    {"is_pooled(Tensor x) -> bool", Boxed<&is_pooled>::call},
};
constexpr Operator without_tensors[] = {
    {"simd_level() -> str", Boxed<&simd_level>::call},
    {"refused_setting() -> (str name, str expected)", Boxed<&refused_setting>::call},
    {"memory_choices() -> (int first_cache, int second_cache, int third_cache, int cores, str source, "
     "int past_caches_from, int output_in_order_from, int pooled_from, int pool_limit)",
     Boxed<&memory_choices>::call},
};

STABLE_TORCH_LIBRARY(evenkeel, m) {
  for (const Operator& each : operators) m.def(each.schema);
  for (const Operator& each : without_tensors) m.def(each.schema);
}
STABLE_TORCH_LIBRARY_IMPL(evenkeel, CPU, m) {
  for (const Operator& each : operators) m.impl(each.name().c_str(), each.call);
}
STABLE_TORCH_LIBRARY_IMPL(evenkeel, CompositeExplicitAutograd, m) {
  for (const Operator& each : without_tensors) m.impl(each.name().c_str(), each.call);
}

}  // namespace
}  // namespace evenkeel
