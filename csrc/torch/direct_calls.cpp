// The module evenkeel.kernels._direct_calls: kernels on small dense tensors, called past torch's dispatcher, which
// takes longer than the work there. Tensors are seen through DLPack's exchange functions, and CPython through its
// limited API, so that one build serves every later torch and Python.
//
// Each function gives None where the call is not for it, with nothing done; the operators then say what is wrong.
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "channels/passes.h"
#include "rows/direct.h"
#include "torch/dlpack.h"

namespace evenkeel {
namespace {

// From here on the work lasts long enough for other Python threads to run meanwhile.
constexpr int64_t count_for_other_threads = 16384;

struct {
  const DirectRows* rows;
  const DirectChannels* channels;
  const dlpack::Exchange* exchange;
  PyObject *tensor, *parameter;
  PyObject *empty, *as_float32, *as_float64;       // torch.empty, and the dtypes as its keyword arguments
  PyObject *empty_like, *as_contiguous, *is_neg;
} state;

class Object {
 public:
  explicit Object(PyObject* owned = nullptr) : owned_(owned) {}
  ~Object() { Py_XDECREF(owned_); }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;
  void operator=(PyObject* owned) {
    Py_XDECREF(owned_);
    owned_ = owned;
  }
  PyObject* get() const { return owned_; }
  PyObject* release() {
    PyObject* const object = owned_;
    owned_ = nullptr;
    return object;
  }

 private:
  PyObject* owned_;
};

// None, unless the user wants to stop.
PyObject* none() {
  if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
  PyErr_Clear();
  Py_RETURN_NONE;
}

// A dense tensor with elements, or with no memory where it is left out.
struct Dense {
  Values values;
  int ndim = 0;
  const int64_t* sizes = nullptr;
  int64_t count = 0;
  bool plain = true;  // the strides of axes of size 1 are as if they were longer
  bool last = false;  // not contiguous, but with its channels innermost

  bool contiguous() const { return !last; }
  // torch's own memory does for its outputs, and the dispatcher would cost something beside the work
  bool is_small() const { return count * size_of(values.dtype) < int64_t{4} << 20; }

  bool has_sizes(int axes, const int64_t* others) const {
    if (ndim != axes) return false;
    for (int axis = 0; axis < axes; ++axis) {
      if (sizes[axis] != others[axis]) return false;
    }
    return true;
  }
  Rows rows(int64_t rows, int64_t features) const {
    return {values.data, values.dtype, RowLayout{1, {rows}, {features}}};
  }
};

bool find_dtype(const dlpack::DataType& type, DType& dtype) {
  if (type.lanes != 1) return false;
  if (type.code == dlpack::bfloat && type.bits == 16) {
    dtype = DType::bfloat16;
  } else if (type.code == dlpack::ieee_float && (type.bits == 16 || type.bits == 32 || type.bits == 64)) {
    dtype = type.bits == 16 ? DType::float16 : type.bits == 32 ? DType::float32 : DType::float64;
  } else {
    return false;
  }
  return true;
}

// Whether the axes, of which none is empty, follow each other in memory in their order, or with the second one last.
bool is_dense(const dlpack::TensorView& t, bool last, bool& plain) {
  int64_t count = 1;
  plain = true;
  for (int i = 0; i < t.ndim; ++i) {
    const int axis = !last || i == t.ndim - 1 ? t.ndim - 1 - i : i == 0 ? 1 : t.ndim - i;
    if (t.sizes[axis] == 0 || (t.sizes[axis] != 1 && t.strides[axis] != count)) return false;
    plain = plain && t.strides[axis] == count;
    count *= t.sizes[axis];
  }
  return true;
}

bool view(PyObject* object, Dense& dense) {
  dlpack::TensorView t;
  if (state.exchange->view_of_object(object, &t) != 0) return false;
  if (t.device_type != dlpack::cpu || !t.data || !find_dtype(t.dtype, dense.values.dtype)) return false;
  if (!is_dense(t, false, dense.plain)) {
    dense.last = (t.ndim == 4 || t.ndim == 5) && is_dense(t, true, dense.plain);
    if (!dense.last) return false;
  }
  int64_t count = 1;
  for (int axis = 0; axis < t.ndim; ++axis) count *= t.sizes[axis];
  dense.values.data = static_cast<char*>(t.data) + t.byte_offset;
  dense.ndim = t.ndim;
  dense.sizes = t.sizes;
  dense.count = count;
  return true;
}

// The memory of a tensor of torch's own types; not of one whose values are the negatives of what is in the memory.
bool read(PyObject* object, Dense& dense) {
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  if (type != state.tensor && type != state.parameter) return false;
  const Object negative(PyObject_CallFunctionObjArgs(state.is_neg, object, nullptr));
  return negative.get() && PyObject_IsTrue(negative.get()) == 0 && view(object, dense);
}

bool read_parameter(PyObject* object, int axes, const int64_t* sizes, Dense& dense) {
  return object == Py_None || (read(object, dense) && dense.contiguous() && dense.has_sizes(axes, sizes));
}

// A new tensor of an object's shape, dtype and format. torch makes it: what DLPack makes cannot be resized.
bool make_like(PyObject* object, const Dense& like, Object& made, Dense& dense) {
  if (like.plain || like.last) {
    made = PyObject_CallFunctionObjArgs(state.empty_like, object, nullptr);
  } else {
    const Object arguments(PyTuple_Pack(1, object));
    if (arguments.get()) made = PyObject_Call(state.empty_like, arguments.get(), state.as_contiguous);
  }
  return made.get() && view(made.get(), dense);
}

bool make_statistics(int64_t count, int64_t width, bool is_double, Object& made, void*& data) {
  const Object sizes(Py_BuildValue("LL", static_cast<long long>(count), static_cast<long long>(width)));
  Dense dense;
  if (sizes.get()) made = PyObject_Call(state.empty, sizes.get(), is_double ? state.as_float64 : state.as_float32);
  if (!made.get() || !view(made.get(), dense)) return false;
  data = dense.values.data;
  return true;
}

// How many trailing axes are normalized: their number, or a tuple of their sizes, which x must have.
int count_axes(PyObject* normalized, const Dense& x) {
  if (!PyTuple_Check(normalized)) return static_cast<int>(PyLong_AsLong(normalized));
  const int axes = static_cast<int>(PyTuple_Size(normalized));
  if (axes > x.ndim) return 0;
  for (int axis = 0; axis < axes; ++axis) {
    if (PyLong_AsLongLong(PyTuple_GetItem(normalized, axis)) != x.sizes[x.ndim - axes + axis]) return 0;
  }
  return axes;
}

// Reads the operators' options, (statistic, eps, eps_mode, weight_offset, early, rounded), and divides x into rows.
bool read_spec(PyObject* options, const Dense& x, int axes, RowsSpec& spec) {
  if (axes < 1 || axes > x.ndim || !x.is_small() || !PyTuple_Check(options) || PyTuple_Size(options) != 6) {
    return false;
  }
  const long statistic = PyLong_AsLong(PyTuple_GetItem(options, 0));
  const long eps_mode = PyLong_AsLong(PyTuple_GetItem(options, 2));
  spec.options.eps = PyFloat_AsDouble(PyTuple_GetItem(options, 1));
  spec.options.weight_offset = PyFloat_AsDouble(PyTuple_GetItem(options, 3));
  spec.options.early = PyObject_IsTrue(PyTuple_GetItem(options, 4)) == 1;
  if (PyErr_Occurred() || statistic < 0 || statistic > 2 || eps_mode < 0 || eps_mode > 2) return false;
  spec.options.statistic = static_cast<Statistic>(statistic);
  spec.options.eps_mode = static_cast<EpsMode>(eps_mode);
  spec.features = 1;
  for (int axis = x.ndim - axes; axis < x.ndim; ++axis) spec.features *= x.sizes[axis];
  spec.rows = x.count / spec.features;
  return true;
}

template <class Work>
bool run(int64_t count, const Work& work) {
  if (count <= count_for_other_threads) return work();
  PyThreadState* const thread = PyEval_SaveThread();
  const bool done = work();
  PyEval_RestoreThread(thread);
  return done;
}

// (x, axes or sizes, weight, bias, options, with_statistics) -> y, or y and the statistics
PyObject* normalize(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Dense x, weight, bias, y;
  if (count != 6 || !read(args[0], x) || !x.contiguous()) return none();
  const int axes = count_axes(args[1], x);
  RowsForward a{};
  if (!read_spec(args[4], x, axes, a.spec) || a.spec.options.early) return none();
  const int64_t* const trailing = x.sizes + (x.ndim - axes);
  if (!read_parameter(args[2], axes, trailing, weight) || !read_parameter(args[3], axes, trailing, bias)) return none();

  Object made, statistics;
  const bool with_statistics = PyObject_IsTrue(args[5]) == 1;
  if (!make_like(args[0], x, made, y)) return none();
  if (with_statistics &&
      !make_statistics(a.spec.rows, a.spec.statistics_width(), x.values.dtype == DType::float64, statistics,
                       a.statistics)) {
    return none();
  }
  a.x = x.rows(a.spec.rows, a.spec.features);
  a.y = y.rows(a.spec.rows, a.spec.features);
  if (!run(x.count, [&] { return state.rows->forward(a, weight.values, bias.values); })) return none();
  return with_statistics ? PyTuple_Pack(2, made.get(), statistics.get()) : made.release();
}

// (dy, x, weight, bias, statistics, axes, options, need_dx, need_dweight, need_dbias, from_output)
// -> dx, dweight and dbias, None for one that is not needed
PyObject* differentiate(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Dense dy, x, weight, bias, statistics, dx, dweight, dbias;
  if (count != 11 || !read(args[0], dy) || !read(args[1], x) || !dy.has_sizes(x.ndim, x.sizes)) return none();
  if (!dy.contiguous() || !x.contiguous()) return none();
  const int axes = count_axes(args[5], x);
  RowsBackward a{};
  if (!read_spec(args[6], x, axes, a.spec)) return none();
  if (!a.spec.options.early && dy.values.dtype != x.values.dtype) return none();  // dx would have dy's dtype
  const int64_t* const trailing = x.sizes + (x.ndim - axes);
  const bool is_double = x.values.dtype == DType::float64;
  if (!read_parameter(args[2], axes, trailing, weight) || !read_parameter(args[3], axes, trailing, bias) ||
      !read(args[4], statistics) || statistics.count != a.spec.rows * a.spec.statistics_width() ||
      statistics.values.dtype != (is_double ? DType::float64 : DType::float32)) {
    return none();
  }
  const auto is_wanted = [&](int index, PyObject* of) { return of != Py_None && PyObject_IsTrue(args[index]) == 1; };
  Object made[3];
  if (is_wanted(7, args[1]) && !make_like(args[1], x, made[0], dx)) return none();
  if (is_wanted(8, args[2]) && !make_like(args[2], weight, made[1], dweight)) return none();
  if (is_wanted(9, args[3]) && !make_like(args[3], bias, made[2], dbias)) return none();
  a.from_output = PyObject_IsTrue(args[10]) == 1;
  a.dy = dy.rows(a.spec.rows, a.spec.features);
  a.x = x.rows(a.spec.rows, a.spec.features);
  if (dx.values.data) a.dx = dx.rows(a.spec.rows, a.spec.features);
  a.statistics = statistics.values.data;
  const auto work = [&] {
    return state.rows->backward(a, weight.values, bias.values, dweight.values, dbias.values);
  };
  if (!run(x.count, work)) return none();
  const auto or_none = [](const Object& object) { return object.get() ? object.get() : Py_None; };
  return PyTuple_Pack(3, or_none(made[0]), or_none(made[1]), or_none(made[2]));
}

// Reads the operators' options, (groups, eps, eps_mode, weight_offset, activation), and the shape of x, where each
// statistic has more than one value.
bool read_channels(PyObject* options, const Dense& x, bool remembered, ChannelsShape& shape, ChannelsOptions& to) {
  if (x.ndim < 2 || !x.is_small() || !PyTuple_Check(options) || PyTuple_Size(options) != 5) return false;
  const auto integer = [options](int index) { return PyLong_AsLongLong(PyTuple_GetItem(options, index)); };
  const int64_t eps_mode = integer(2), activation = integer(4);
  to.groups = integer(0);
  to.eps = PyFloat_AsDouble(PyTuple_GetItem(options, 1));
  to.weight_offset = PyFloat_AsDouble(PyTuple_GetItem(options, 3));
  if (PyErr_Occurred() || eps_mode < 0 || eps_mode > 2 || activation < 0 || activation > 2) return false;
  to.eps_mode = static_cast<EpsMode>(eps_mode);
  to.activation = static_cast<Activation>(activation);
  shape = {x.sizes[0], x.sizes[1], x.count / x.sizes[0] / x.sizes[1], x.last};
  to = resolved(to, shape.channels, remembered);
  if (to.groups < 0 || (to.groups && shape.channels % to.groups)) return false;
  return remembered || x.count / statistics_of(shape, to.groups) > 1;
}

// (x, weight, bias, running_mean, running_var, options, remembered, momentum, with_statistics)
// -> y, or y and the statistics; without `remembered`, the running statistics move towards those of x
PyObject* normalize_channels(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Dense x, y, vectors[4];  // weight, bias, running_mean, running_var
  if (count != 9 || !read(args[0], x)) return none();
  ChannelsForward a{};
  const bool remembered = PyObject_IsTrue(args[6]) == 1, with_statistics = PyObject_IsTrue(args[8]) == 1;
  if (!read_channels(args[5], x, remembered, a.shape, a.options)) return none();
  for (int i = 0; i < 4; ++i) {
    if (!read_parameter(args[1 + i], 1, &a.shape.channels, vectors[i])) return none();
  }
  if (!vectors[2].values.data != !vectors[3].values.data || (remembered && !vectors[2].values.data)) return none();
  a.momentum = PyFloat_AsDouble(args[7]);
  if (PyErr_Occurred()) return none();
  Object made, statistics;
  const int64_t own = statistics_of(a.shape, a.options.groups), width = statistics_width(a.options.eps_mode);
  const bool is_double = x.values.dtype == DType::float64;
  if (!make_like(args[0], x, made, y) || y.last != x.last) return none();
  if (with_statistics && !make_statistics(own, width, is_double, statistics, a.statistics)) return none();
  a.dtype = x.values.dtype;
  a.x = x.values.data;
  a.y = y.values.data;
  a.weight = vectors[0].values;
  a.bias = vectors[1].values;
  (remembered ? a.mean : a.running_mean) = vectors[2].values;
  (remembered ? a.variance : a.running_var) = vectors[3].values;
  if (!run(x.count, [&] { return state.channels->forward(a); })) return none();
  return with_statistics ? PyTuple_Pack(2, made.get(), statistics.get()) : made.release();
}

// (dy, x, weight, bias, statistics, options, remembered, need_dx, need_dweight, need_dbias)
// -> dx, dweight and dbias, None for one that is not needed
PyObject* differentiate_channels(PyObject*, PyObject* const* args, Py_ssize_t count) {
  Dense dy, x, weight, bias, statistics, dx, dweight, dbias;
  if (count != 10 || !read(args[0], dy) || !read(args[1], x) || !dy.has_sizes(x.ndim, x.sizes) || dy.last != x.last ||
      dy.values.dtype != x.values.dtype) {
    return none();
  }
  ChannelsBackward a{};
  a.remembered = PyObject_IsTrue(args[6]) == 1;
  if (!read_channels(args[5], x, a.remembered, a.shape, a.options)) return none();
  const int64_t own = statistics_of(a.shape, a.options.groups), width = statistics_width(a.options.eps_mode);
  const bool is_double = x.values.dtype == DType::float64;
  if (!read_parameter(args[2], 1, &a.shape.channels, weight) || !read_parameter(args[3], 1, &a.shape.channels, bias) ||
      !read(args[4], statistics) || !statistics.contiguous() || statistics.count != own * width ||
      statistics.values.dtype != (is_double ? DType::float64 : DType::float32)) {
    return none();
  }
  const auto is_wanted = [&](int index, PyObject* of) { return of != Py_None && PyObject_IsTrue(args[index]) == 1; };
  Object made[3];
  if (is_wanted(7, args[1]) && (!make_like(args[1], x, made[0], dx) || dx.last != x.last)) return none();
  if (is_wanted(8, args[2]) && !make_like(args[2], weight, made[1], dweight)) return none();
  if (is_wanted(9, args[3]) && !make_like(args[3], bias, made[2], dbias)) return none();
  a.dtype = x.values.dtype;
  a.x = x.values.data;
  a.dy = dy.values.data;
  a.dx = dx.values.data;
  a.weight = weight.values;
  a.bias = bias.values;
  a.statistics = statistics.values.data;
  a.dweight = dweight.values;
  a.dbias = dbias.values;
  if (!run(x.count, [&] { return state.channels->backward(a); })) return none();
  const auto or_none = [](const Object& object) { return object.get() ? object.get() : Py_None; };
  return PyTuple_Pack(3, or_none(made[0]), or_none(made[1]), or_none(made[2]));
}

// (address of evenkeel_direct_rows, address of evenkeel_direct_channels, torch.Tensor's exchange functions, torch,
// torch.nn.Parameter, torch.Tensor)
// -> whether these go together
PyObject* prepare(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 6 || !PyCapsule_IsValid(args[2], "dlpack_exchange_api")) Py_RETURN_FALSE;
  const auto rows = reinterpret_cast<const DirectRows* (*)()>(PyLong_AsVoidPtr(args[0]));
  const auto channels = reinterpret_cast<const DirectChannels* (*)()>(PyLong_AsVoidPtr(args[1]));
  const auto exchange =
      static_cast<const dlpack::Exchange*>(PyCapsule_GetPointer(args[2], "dlpack_exchange_api"));
  if (!rows || !channels || !exchange) return nullptr;
  const dlpack::Version& version = exchange->header.version;
  if (version.major != dlpack::major_version || version.minor < dlpack::minor_version_of_exchange ||
      !exchange->view_of_object || rows()->layout != layout_of_rows() ||
      channels()->layout != layout_of_channels()) {
    Py_RETURN_FALSE;
  }
  PyObject* const torch = args[3];
  const auto of_torch = [torch](const char* name) { return PyObject_GetAttrString(torch, name); };
  const auto keyword = [](const char* name, PyObject* value) { return Py_BuildValue("{sN}", name, value); };
  for (int index = 4; index < 6; ++index) Py_INCREF(args[index]);
  state = {rows(),
           channels(),
           exchange,
           args[5],
           args[4],
           of_torch("empty"),
           keyword("dtype", of_torch("float32")),
           keyword("dtype", of_torch("float64")),
           of_torch("empty_like"),
           keyword("memory_format", of_torch("contiguous_format")),
           PyObject_GetAttrString(args[5], "is_neg")};
  return PyErr_Occurred() ? nullptr : PyBool_FromLong(1);
}

template <PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)>
PyMethodDef method(const char* name) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)), METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {method<prepare>("prepare"), method<normalize>("normalize"),
                         method<differentiate>("differentiate"),
                         method<normalize_channels>("normalize_channels"),
                         method<differentiate_channels>("differentiate_channels"), {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_direct_calls", nullptr, -1, methods, nullptr, nullptr, nullptr,
                          nullptr};

}  // namespace
}  // namespace evenkeel

PyMODINIT_FUNC PyInit__direct_calls() { return PyModule_Create(&evenkeel::definition); }
