// Operator schemas and their registration through torch's stable ABI: one binary serves every later torch.
#include <torch/csrc/stable/library.h>

#include "operators.h"

// Raw and functional: forward and backward are separate operators, and the public functions own the autograd.
STABLE_TORCH_LIBRARY(evenkeel, m) {
  m.def(
      "rows_forward(Tensor x, Tensor? weight, Tensor? bias, int axes, int statistic, float eps, int eps_mode, "
      "float weight_offset, bool early=False, bool recomputable=False) -> (Tensor y, Tensor statistics)");
  m.def(
      "rows_inference(Tensor x, Tensor? weight, Tensor? bias, int axes, int statistic, float eps, int eps_mode, "
      "float weight_offset, bool early=False) -> Tensor");
  m.def(
      "rows_out(Tensor x, Tensor? weight, Tensor? bias, int axes, int statistic, float eps, int eps_mode, "
      "float weight_offset, bool early, Tensor(a!) out) -> ()");
  m.def(
      "rows_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor statistics, int axes, int statistic, "
      "float eps, int eps_mode, float weight_offset, bool need_dx, bool need_dweight, bool need_dbias, "
      "bool from_output=False) -> (Tensor dx, Tensor dweight, Tensor dbias)");
  m.def(
      "add_rows_forward(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, int axes, int statistic, float eps, "
      "int eps_mode, float weight_offset, bool rounded) -> (Tensor y, Tensor sum, Tensor statistics)");
  m.def(
      "add_rows_backward(Tensor dy, Tensor? dsum, Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, "
      "Tensor statistics, int axes, int statistic, float eps, int eps_mode, float weight_offset, bool need_dx, "
      "bool need_dresidual, bool need_dweight, bool need_dbias) "
      "-> (Tensor dx, Tensor dresidual, Tensor dweight, Tensor dbias)");
  m.def(
      "channels_forward(Tensor x, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? variance, Tensor? mask, "
      "int groups, float eps, int eps_mode, float weight_offset, int activation) -> (Tensor y, Tensor statistics, Tensor variances)");
  m.def(
      "channels_backward(Tensor dy, Tensor x, Tensor? weight, Tensor? bias, Tensor statistics, Tensor? mask, "
      "bool remembered, int groups, float eps, int eps_mode, float weight_offset, int activation, bool need_dx, "
      "bool need_dweight, bool need_dbias) "
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
  m.impl("rows_forward", TORCH_BOX(&evenkeel::rows_forward));
  m.impl("rows_inference", TORCH_BOX(&evenkeel::rows_inference));
  m.impl("rows_out", TORCH_BOX(&evenkeel::rows_out));
  m.impl("rows_backward", TORCH_BOX(&evenkeel::rows_backward));
  m.impl("add_rows_forward", TORCH_BOX(&evenkeel::add_rows_forward));
  m.impl("add_rows_backward", TORCH_BOX(&evenkeel::add_rows_backward));
  m.impl("channels_forward", TORCH_BOX(&evenkeel::channels_forward));
  m.impl("channels_backward", TORCH_BOX(&evenkeel::channels_backward));
  m.impl("column_moments", TORCH_BOX(&evenkeel::column_moments));
  m.impl("separate_column_moments", TORCH_BOX(&evenkeel::separate_column_moments));
  m.impl("column_affine", TORCH_BOX(&evenkeel::column_affine));
  m.impl("column_affine_out", TORCH_BOX(&evenkeel::column_affine_out));
  m.impl("image_normalize", TORCH_BOX(&evenkeel::image_normalize));
  m.impl("image_normalize_out", TORCH_BOX(&evenkeel::image_normalize_out));
  m.impl("is_pooled", TORCH_BOX(&evenkeel::is_pooled));
}

STABLE_TORCH_LIBRARY_IMPL(evenkeel, CompositeExplicitAutograd, m) {
  m.impl("simd_level", TORCH_BOX(&evenkeel::simd_level));
}
