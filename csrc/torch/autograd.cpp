// The module evenkeel.kernels._autograd: nodes of torch's graph whose backward calls the kernels without Python, which
// takes longer than the work on small tensors.
//
// torch's stable ABI knows no autograd and its limited API no tensors, so that this module serves the torch and the
// Python alone that it was built with. Others do without: the same nodes exist in Python.
#include <Python.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/record_function.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "channels/passes.h"
#include "rows/direct.h"

namespace evenkeel {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::ForwardADLevel;
using torch::autograd::variable_list;

const DirectRows* direct_rows;
const DirectChannels* direct_channels;

// Whether nobody watches or transforms what runs, as `unobserved` of kernels/_state.py asks it of Python.
bool is_unobserved() {
  constexpr c10::DispatchKeySet usual({c10::DispatchKey::BackendSelect, c10::DispatchKey::ADInplaceOrView,
                                       c10::DispatchKey::AutocastCPU});
  return !at::GradMode::is_enabled() && usual.has_all(c10::impl::tls_local_dispatch_key_set().included_) &&
         !at::hasCallbacks() && !torch::jit::tracer::isTracing() && !ForwardADLevel::try_get_by_idx(0);
}

// Whether a tensor is dense memory of a CPU and no more: no subclass, wrapper or lazily negated view.
bool is_plain(const Tensor& t) {
  constexpr c10::DispatchKeySet plain({c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView,
                                       c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutocastCPU});
  return plain.has_all(t.key_set()) && t.layout() == at::kStrided;
}

bool find_dtype(at::ScalarType type, DType& dtype) {
  switch (type) {
    case at::kFloat:
      dtype = DType::float32;
      return true;
    case at::kDouble:
      dtype = DType::float64;
      return true;
    case at::kBFloat16:
      dtype = DType::bfloat16;
      return true;
    case at::kHalf:
      dtype = DType::float16;
      return true;
    default:
      return false;
  }
}

// The values of a plain tensor that are dense in the order of a format, or none of a missing one.
bool read(const Tensor& t, at::MemoryFormat format, Values& values) {
  if (!t.defined()) return true;
  if (!is_plain(t) || !t.is_contiguous(format) || !find_dtype(t.scalar_type(), values.dtype)) return false;
  values.data = t.data_ptr();
  return true;
}

// What a node keeps beside x, weight and bias. In a struct, for autograd takes every argument that is a tensor for an
// input.
struct Computed {
  Tensor y, statistics;
  std::vector<double> options;
};

struct Saved {
  Tensor x, weight, bias, statistics;
  std::vector<double> options;
  bool needed[3];  // dx, dweight and dbias

  explicit Saved(AutogradContext* context) : options(context->saved_data["options"].toDoubleVector()) {
    variable_list saved = context->get_saved_variables();
    x = std::move(saved[0]);
    weight = std::move(saved[1]);
    bias = std::move(saved[2]);
    statistics = std::move(saved[3]);
    size_t edge = 0;  // a missing parameter has none
    for (int i = 0; i < 3; ++i) needed[i] = source(i).defined() && context->needs_input_grad(edge++);
  }
  const Tensor& source(int i) const { return i == 0 ? x : i == 1 ? weight : bias; }
};

// The memory of a backward's tensors, of which a gradient has none where it is not needed.
struct Memory {
  Values dy, x, weight, bias, statistics, gradients[3];
  bool last = false;  // the channels lie innermost
};

// Reads the tensors and makes the gradients; false where the kernels do not take these tensors.
bool prepare(const Saved& s, const Tensor& dy, bool as_channels, Memory& m, variable_list& gradients) {
  constexpr auto contiguous = at::MemoryFormat::Contiguous;
  at::MemoryFormat format = contiguous;
  if (as_channels && !s.x.is_contiguous() && (s.x.dim() == 4 || s.x.dim() == 5)) {
    format = s.x.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
    m.last = true;
  }
  if (s.x.numel() == 0 || dy.scalar_type() != s.x.scalar_type() || dy.sizes() != s.x.sizes() ||
      !read(dy, format, m.dy) || !read(s.x, format, m.x) || !read(s.weight, contiguous, m.weight) ||
      !read(s.bias, contiguous, m.bias) || !read(s.statistics, contiguous, m.statistics)) {
    return false;
  }
  for (int i = 0; i < 3; ++i) {
    if (!s.needed[i]) continue;
    gradients[i] = i == 0 && m.last ? at::empty_like(s.x) : at::empty_like(s.source(i), {}, contiguous);
    if (!read(gradients[i], i == 0 ? format : contiguous, m.gradients[i])) return false;
  }
  return true;
}

// The gradients by a module's Python function, which takes every other case.
void run_python(const char* module_name, const Saved& s, const Tensor& dy, variable_list& gradients) {
  const pybind11::gil_scoped_acquire gil;
  const auto object = [](const Tensor& t) {
    return pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(t));
  };
  pybind11::list options;
  for (const double option : s.options) options.append(option);
  const pybind11::object function = pybind11::module_::import(module_name).attr("node_gradients");
  const pybind11::tuple found =
      function(object(dy), object(s.x), object(s.weight), object(s.bias), object(s.statistics), options,
               pybind11::make_tuple(s.needed[0], s.needed[1], s.needed[2]));
  for (int i = 0; i < 3; ++i) gradients[i] = s.needed[i] ? THPVariable_Unpack(found[i].ptr()) : Tensor();
}

// A node of torch's graph. Pattern::run finds the gradients on plain memory; false where it does not take the tensors.
template <class Pattern>
struct Node : torch::autograd::Function<Pattern> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const std::optional<Tensor>& weight,
                        const std::optional<Tensor>& bias, const Computed& computed) {
    context->save_for_backward({x, weight.value_or(Tensor()), bias.value_or(Tensor()), computed.statistics});
    context->saved_data["options"] = computed.options;
    return computed.y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& dy) {
    variable_list gradients(4);  // one for each argument
    if (!dy[0].defined()) return gradients;
    const Saved saved(context);
    if (!is_unobserved() || !Pattern::run(saved, dy[0], gradients)) {
      run_python(Pattern::python, saved, dy[0], gradients);
    }
    return gradients;
  }
};

}  // namespace

// torch shows these names as what made a tensor.

// options: the number of normalized axes, and RowsOptions
struct NormalizeRows : Node<NormalizeRows> {
  static constexpr const char* python = "evenkeel.functional._rows_autograd";

  static bool run(const Saved& s, const Tensor& dy, variable_list& gradients) {
    Memory m;
    if (!prepare(s, dy, false, m, gradients)) return false;
    RowsBackward a{};
    const double* const options = s.options.data();
    a.spec.options = {static_cast<Statistic>(options[1]), options[2], static_cast<EpsMode>(options[3]), options[4],
                      options[5] != 0.0, options[6] != 0.0};
    a.spec.features = 1;
    for (int64_t axis = s.x.dim() - static_cast<int64_t>(options[0]); axis < s.x.dim(); ++axis) {
      a.spec.features *= s.x.size(axis);
    }
    a.spec.rows = s.x.numel() / a.spec.features;
    const auto rows = [&a](const Values& values) {
      return Rows{values.data, values.dtype, RowLayout{1, {a.spec.rows}, {a.spec.features}}};
    };
    a.dy = rows(m.dy);
    a.x = rows(m.x);
    if (m.gradients[0].data) a.dx = rows(m.gradients[0]);
    a.statistics = m.statistics.data;
    return direct_rows->backward(a, m.weight, m.bias, m.gradients[1], m.gradients[2]);
  }
};

// options: whether the statistics were remembered, and ChannelsOptions
struct NormalizeChannels : Node<NormalizeChannels> {
  static constexpr const char* python = "evenkeel.functional._channel_kernels";

  static bool run(const Saved& s, const Tensor& dy, variable_list& gradients) {
    Memory m;
    if (!prepare(s, dy, true, m, gradients)) return false;
    ChannelsBackward a{};
    const double* const options = s.options.data();
    a.remembered = options[0] != 0.0;
    a.shape = {s.x.size(0), s.x.size(1), s.x.numel() / s.x.size(0) / s.x.size(1), m.last};
    a.options = resolved({static_cast<int64_t>(options[1]), options[2], static_cast<EpsMode>(options[3]), options[4],
                          static_cast<Activation>(options[5])},
                         a.shape.channels, a.remembered);
    a.dtype = m.x.dtype;
    a.x = m.x.data;
    a.dy = m.dy.data;
    a.dx = m.gradients[0].data;
    a.weight = m.weight;
    a.bias = m.bias;
    a.statistics = m.statistics.data;
    a.dweight = m.gradients[1];
    a.dbias = m.gradients[2];
    return direct_channels->backward(a);
  }
};

namespace {

std::optional<Tensor> tensor_or_none(PyObject* object) {
  return object == Py_None ? std::nullopt : std::optional(THPVariable_Unpack(object));
}

// (y, statistics, x, weight, bias, first option, further options) -> y as a result of x, weight and bias
template <class Pattern>
PyObject* attach(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 7, "expected 7 arguments");
  Computed computed{THPVariable_Unpack(args[0]), THPVariable_Unpack(args[1]), {PyFloat_AsDouble(args[5])}};
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[6]); ++i) {
    computed.options.push_back(PyFloat_AsDouble(PyTuple_GET_ITEM(args[6], i)));
  }
  if (PyErr_Occurred()) return nullptr;
  return THPVariable_Wrap(Pattern::apply(THPVariable_Unpack(args[2]), tensor_or_none(args[3]),
                                               tensor_or_none(args[4]), computed));
  END_HANDLE_TH_ERRORS
}

// (address of evenkeel_direct_rows, address of evenkeel_direct_channels) -> whether these go together
PyObject* prepare(PyObject*, PyObject* const* args, Py_ssize_t) {
  direct_rows = reinterpret_cast<const DirectRows* (*)()>(PyLong_AsVoidPtr(args[0]))();
  direct_channels = reinterpret_cast<const DirectChannels* (*)()>(PyLong_AsVoidPtr(args[1]))();
  return PyBool_FromLong(direct_rows->layout == layout_of_rows() && direct_channels->layout == layout_of_channels());
}

template <PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {method<prepare>("prepare"), method<attach<NormalizeRows>>("attach_rows"),
                         method<attach<NormalizeChannels>>("attach_channels"), {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_autograd", nullptr, -1, methods, nullptr, nullptr, nullptr,
                          nullptr};

}  // namespace
}  // namespace evenkeel

PyMODINIT_FUNC PyInit__autograd() { return PyModule_Create(&evenkeel::definition); }
