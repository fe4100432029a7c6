// The module evenkeel.kernels._autograd: calls and their nodes of torch's graph, past Python and the dispatcher, which
// take longer than the work on small tensors and a tenth of its time on some MB.
//
// torch's stable ABI knows no autograd and CPython's limited API no tensors, so that this module serves the torch and
// the Python alone that it was built with. Others have direct_calls.cpp, and the same nodes in Python.
#include <Python.h>

#include <torch/csrc/Exceptions.h>

#include "channels/passes.h"
#include "rows/direct.h"
#include "torch/nodes.h"

namespace evenkeel {
namespace {

const DirectRows* direct_rows;
const DirectChannels* direct_channels;

// None, unless the user wants to stop.
PyObject* none() {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
  PyErr_Clear();
  Py_RETURN_NONE;
}

ChannelsShape shape_of(const Tensor& x) {
  return {x.size(0), x.size(1), x.numel() / x.size(0) / x.size(1), !x.is_contiguous()};
}

// A contiguous tensor of the same values, without a node; where channels are innermost torch's copy takes several times
// as long.
Tensor laid_out(const Tensor& t) {
  DType dtype;
  const bool is_turned = is_plain(t) && t.numel() && t.data_ptr() && find_dtype(t.scalar_type(), dtype) &&
                         !t.is_contiguous() && has_channels_innermost(t.sizes().data(), t.strides().data(), t.dim());
  if (!is_turned) return t.detach().contiguous();
  const Tensor out = make(t.sizes(), t.scalar_type());
  const bool done = direct_channels->lay_channels_outermost(t.data_ptr(), out.data_ptr(), shape_of(t), dtype);
  return done ? out : t.detach().contiguous();
}

struct RowsNodeOptions {
  static constexpr const char* python = "evenkeel.functional._rows_autograd";
  int64_t axes;
  RowsOptions rows;

  std::vector<double> numbers() const {
    return {static_cast<double>(axes),   static_cast<double>(rows.statistic), rows.eps,
            static_cast<double>(rows.eps_mode), rows.weight_offset,           static_cast<double>(rows.early),
            static_cast<double>(rows.rounded)};
  }

  RowsSpec spec_of(const Tensor& x) const {
    RowsSpec spec{rows, 1, 1};
    for (int64_t axis = x.dim() - axes; axis < x.dim(); ++axis) spec.features *= x.size(axis);
    spec.rows = x.numel() / spec.features;
    return spec;
  }

  // The rows of a plain tensor; false where they need a copy.
  bool read_rows(const Tensor& t, Rows& to) const {
    to.data = t.data_ptr();
    return to.data && find_dtype(t.scalar_type(), to.dtype) &&
           lay_out(t.sizes().data(), t.strides().data(), t.dim(), axes, to.layout);
  }

  bool run(Gradients& g) const {
    RowsBackward a{};
    a.spec = spec_of(g.x);
    Values weight, bias, statistics, gradients[3];
    if (!is_plain(g.x) || !read_rows(g.x, a.x) || !g.prepare(at::MemoryFormat::Contiguous, weight, bias, statistics,
                                                              gradients)) {
      return false;
    }
    if (!read_rows(g.dy, a.dy)) {
      g.dy = g.dy.contiguous();
      if (!read_rows(g.dy, a.dy)) return false;
    }
    if (g.dsum.defined()) {
      if (!is_plain(g.dsum) || g.dsum.sizes() != g.x.sizes() || g.dsum.scalar_type() != g.x.scalar_type()) return false;
      if (!read_rows(g.dsum, a.dsum)) {
        g.dsum = g.dsum.contiguous();
        if (!read_rows(g.dsum, a.dsum)) return false;
      }
    }
    if (gradients[0].data) read_rows(g.found[0], a.dx);
    a.statistics = statistics.data;
    return direct_rows->backward(a, weight, bias, gradients[1], gradients[2]);
  }
};

struct ChannelsNodeOptions {
  static constexpr const char* python = "evenkeel.functional._channel_kernels";
  bool remembered;
  ChannelsOptions channels;

  std::vector<double> numbers() const {
    return {static_cast<double>(remembered), static_cast<double>(channels.groups), channels.eps,
            static_cast<double>(channels.eps_mode), channels.weight_offset, static_cast<double>(channels.activation)};
  }

  bool run(Gradients& g) const {
    ChannelsBackward a{};
    Values x, dy, statistics, gradients[3];
    const at::MemoryFormat format = format_of(g.x);
    if (!read(g.x, format, x) || !g.prepare(format, a.weight, a.bias, statistics, gradients)) return false;
    if (!g.dy.is_contiguous(format)) {
      g.dy = format == at::MemoryFormat::Contiguous ? laid_out(g.dy) : g.dy.contiguous(format);
    }
    if (!read(g.dy, format, dy)) return false;
    a.remembered = remembered;
    a.shape = shape_of(g.x);
    a.options = resolved(channels, a.shape.channels, remembered);
    a.dtype = x.dtype;
    a.x = x.data;
    a.dy = dy.data;
    a.dx = gradients[0].data;
    a.statistics = statistics.data;
    a.dweight = gradients[1];
    a.dbias = gradients[2];
    return direct_channels->backward(a);
  }
};

// A tensor of torch's own types, an undefined one for None; false for anything else.
bool take(PyObject* object, Tensor& t) {
  if (object == Py_None) return true;
  if (!THPVariable_CheckTypeExact(Py_TYPE(object))) return false;
  t = THPVariable_Unpack(object);
  return is_plain(t);
}

// A parameter of some sizes, or none.
bool take_parameter(PyObject* object, at::IntArrayRef sizes, Tensor& t, Values& values) {
  return take(object, t) && (!t.defined() || t.sizes() == sizes) && read(t, at::MemoryFormat::Contiguous, values);
}

// From here on the work lasts long enough for other Python threads to run meanwhile.
constexpr int64_t count_for_other_threads = 16384;

template <class Work>
auto run(int64_t count, const Work& work) {
  if (count <= count_for_other_threads) return work();
  const pybind11::gil_scoped_release others_run;
  return work();
}

double number(PyObject* options, int index) { return PyFloat_AsDouble(PyTuple_GET_ITEM(options, index)); }
int64_t integer(PyObject* options, int index) { return PyLong_AsLongLong(PyTuple_GET_ITEM(options, index)); }

bool is_tuple_of(PyObject* object, Py_ssize_t count) {
  return PyTuple_Check(object) && PyTuple_GET_SIZE(object) == count;
}

}  // namespace

// torch shows these names as what made a tensor.
struct NormalizeRows : Node<RowsNodeOptions> {};
struct NormalizeChannels : Node<ChannelsNodeOptions> {};

// Another layout of the same values.
struct LayChannelsOutermost : torch::autograd::Node {
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
  variable_list apply_with_saved(const variable_list& gradients,
                                 torch::dynamo::autograd::SwapSavedVariables&) override {
    return gradients;
  }
};

namespace {

// Contiguous, with a node of its own.
Tensor make_contiguous(const Tensor& x) {
  Tensor dense = laid_out(x);
  if (!compute_requires_grad(x)) return dense;
  const auto node = make_node<LayChannelsOutermost>();
  node->set_next_edges(torch::autograd::collect_next_edges(x));
  torch::autograd::set_history(dense, node);
  return dense;
}

// (x) -> contiguous x; None where x is contiguous or the call is not for it
PyObject* contiguous(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Tensor x;
  DType dtype;
  const bool taken = count == 1 && is_unobserved() && take(args[0], x) && x.defined() && x.numel() > 0;
  if (!taken || x.is_contiguous() || !x.data_ptr() || !find_dtype(x.scalar_type(), dtype)) return none();
  return THPVariable_Wrap(run(x.numel(), [&] { return make_contiguous(x); }));
  END_HANDLE_TH_ERRORS
}

// y of the rows of x, or of the sum of x and a residual, which is there already or is made; differentiable where x, the
// residual, weight or bias are. False where the call is not for it, with nothing done.
bool normalize(const Tensor& x, const Tensor& residual, Tensor& sum, PyObject* sizes, PyObject* const* parameters,
               PyObject* encoded, Tensor& y) {
  const int64_t axes = PyTuple_GET_SIZE(sizes);
  const at::IntArrayRef trailing = x.sizes().slice(x.dim() - axes);
  const RowsNodeOptions options{
      axes,
      {static_cast<Statistic>(integer(encoded, 0)), number(encoded, 1), static_cast<EpsMode>(integer(encoded, 2)),
       number(encoded, 3), PyObject_IsTrue(PyTuple_GET_ITEM(encoded, 4)) == 1,
       PyObject_IsTrue(PyTuple_GET_ITEM(encoded, 5)) == 1}};
  RowsForward a{};
  a.spec = options.spec_of(x);
  Tensor weight, bias, statistics;
  Values w, b;
  if (PyErr_Occurred() || options.rows.early || !options.read_rows(sum.defined() ? sum : x, a.x) ||
      !take_parameter(parameters[0], trailing, weight, w) || !take_parameter(parameters[1], trailing, bias, b)) {
    return false;
  }
  const bool adds = residual.defined() && !sum.defined();
  y = make(x.sizes(), x.scalar_type(), at::MemoryFormat::Contiguous, adds ? 4 : 2);
  options.read_rows(y, a.y);
  if (adds) {
    if (!options.read_rows(residual, a.residual)) return false;
    sum = make(x.sizes(), x.scalar_type(), at::MemoryFormat::Contiguous, 4);
    options.read_rows(sum, a.sum);
  }
  const bool trained = compute_requires_grad(x, residual, weight, bias);
  if (trained) {
    statistics = make_statistics(a.spec.rows, a.spec.statistics_width(), x);
    a.statistics = statistics.data_ptr();
  }
  if (!run(x.numel(), [&] { return direct_rows->forward(a, w, b); })) return false;
  if (trained) attach<NormalizeRows>(y, options, x, weight, bias, statistics, residual, sum);
  return true;
}

// Whether x has elements and ends with these sizes.
bool has_rows(const Tensor& x, PyObject* sizes, PyObject* encoded) {
  if (!x.defined() || !PyTuple_Check(sizes) || !is_tuple_of(encoded, 6)) return false;
  const int64_t axes = PyTuple_GET_SIZE(sizes);
  if (axes < 1 || axes > x.dim() || x.numel() == 0) return false;
  for (int64_t axis = 0; axis < axes; ++axis) {
    if (integer(sizes, static_cast<int>(axis)) != x.size(x.dim() - axes + axis)) return false;
  }
  return true;
}

// (x, sizes, weight, bias, options) -> y; None where the call is not for it
PyObject* normalize_rows(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Tensor x, sum, y;
  if (count != 5 || !is_unobserved() || !take(args[0], x) || !has_rows(x, args[1], args[4]) ||
      !normalize(x, {}, sum, args[1], args + 2, args[4], y)) {
    return none();
  }
  return THPVariable_Wrap(std::move(y));
  END_HANDLE_TH_ERRORS
}

// (x, residual, sizes, weight, bias, options, near) -> y and the sum: in one pass, or of tensors of at most `near`
// bytes one after the other, which in a near cache takes no longer; the backward is one. None where the call is not for
// it.
PyObject* normalize_sum(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Tensor x, residual, y;
  DType dtype;
  if (count != 7 || !is_unobserved() || !take(args[0], x) || !take(args[1], residual) || !residual.defined() ||
      !has_rows(x, args[2], args[5]) || residual.sizes() != x.sizes() || residual.scalar_type() != x.scalar_type() ||
      !x.data_ptr() || !residual.data_ptr() ||  // the storage was freed: torch's addition would not see it
      !find_dtype(x.scalar_type(), dtype)) {
    return none();
  }
  Tensor sum;
  if (static_cast<int64_t>(x.nbytes()) <= PyLong_AsLongLong(args[6])) {
    const at::AutoDispatchBelowADInplaceOrView no_node_of_its_own;
    sum = at::add(x, residual);
  }
  if (!normalize(x, residual, sum, args[2], args + 3, args[5], y)) return none();
  return PyTuple_Pack(2, pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(std::move(y))).ptr(),
                      pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(std::move(sum))).ptr());
  END_HANDLE_TH_ERRORS
}

// (x, weight, bias, running_mean, running_var, options, remembered, momentum, contiguous) -> y, differentiable where x,
// weight or bias are; without `remembered`, the running statistics move towards those of x. None where the call is not
// for it, with nothing done.
PyObject* normalize_channels(PyObject*, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Tensor x, vectors[4], statistics;  // vectors: weight, bias, running_mean, running_var
  if (count != 9 || !is_unobserved() || !take(args[0], x) || !x.defined() || x.dim() < 2 || x.numel() == 0 ||
      !is_tuple_of(args[5], 5)) {
    Py_RETURN_NONE;
  }
  const ChannelsNodeOptions options{
      args[6] == Py_True,
      {integer(args[5], 0), number(args[5], 1), static_cast<EpsMode>(integer(args[5], 2)), number(args[5], 3),
       static_cast<Activation>(integer(args[5], 4))}};
  ChannelsForward a{};
  a.momentum = PyFloat_AsDouble(args[7]);
  if (PyErr_Occurred()) return none();
  Values values[4];
  const int64_t channels = x.size(1);
  for (int i = 0; i < 4; ++i) {
    if (!take_parameter(args[1 + i], channels, vectors[i], values[i])) Py_RETURN_NONE;
  }
  const auto& [weight, bias, running_mean, running_var] = vectors;
  if (running_mean.defined() != running_var.defined() || (options.remembered && !running_mean.defined()) ||
      compute_requires_grad(running_mean, running_var)) {
    Py_RETURN_NONE;
  }
  const bool is_dense = x.is_contiguous(format_of(x)) && !(args[8] == Py_True && !x.is_contiguous());
  if (!is_dense) x = run(x.numel(), [&] { return make_contiguous(x); });
  const at::MemoryFormat format = format_of(x);
  Values of_x, of_y;
  if (!read(x, format, of_x)) Py_RETURN_NONE;
  a.shape = shape_of(x);
  a.options = resolved(options.channels, channels, options.remembered);
  if (a.options.groups < 0 || (a.options.groups && channels % a.options.groups)) Py_RETURN_NONE;
  const int64_t own = statistics_of(a.shape, a.options.groups);
  if (!options.remembered && x.numel() == own) Py_RETURN_NONE;
  Tensor y = make(x.sizes(), x.scalar_type(), format);
  read(y, format, of_y);
  const bool trained = compute_requires_grad(x, weight, bias);
  if (trained) {
    statistics = make_statistics(own, statistics_width(a.options.eps_mode), x);
    a.statistics = statistics.data_ptr();
  }
  a.dtype = of_x.dtype;
  a.x = of_x.data;
  a.y = of_y.data;
  a.weight = values[0];
  a.bias = values[1];
  (options.remembered ? a.mean : a.running_mean) = values[2];
  (options.remembered ? a.variance : a.running_var) = values[3];
  if (!run(x.numel(), [&] { return direct_channels->forward(a); })) Py_RETURN_NONE;
  if (trained) attach<NormalizeChannels>(y, options, x, weight, bias, statistics);
  return THPVariable_Wrap(std::move(y));
  END_HANDLE_TH_ERRORS
}

// (addresses of evenkeel_direct_rows, evenkeel_direct_channels and evenkeel_direct_memory) -> whether these go together
PyObject* prepare(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3) Py_RETURN_FALSE;
  direct_rows = reinterpret_cast<const DirectRows* (*)()>(PyLong_AsVoidPtr(args[0]))();
  direct_channels = reinterpret_cast<const DirectChannels* (*)()>(PyLong_AsVoidPtr(args[1]))();
  direct_memory = reinterpret_cast<const DirectMemory* (*)()>(PyLong_AsVoidPtr(args[2]))();
  return PyBool_FromLong(direct_rows->layout == layout_of_rows() && direct_channels->layout == layout_of_channels());
}

template <PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {method<prepare>("prepare"), method<contiguous>("contiguous"),
                         method<normalize_rows>("normalize_rows"),
                         method<normalize_sum>("normalize_sum"),
                         method<normalize_channels>("normalize_channels"), {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_autograd", nullptr, -1, methods, nullptr, nullptr, nullptr,
                          nullptr};

}  // namespace
}  // namespace evenkeel

PyMODINIT_FUNC PyInit__autograd() { return PyModule_Create(&evenkeel::definition); }
