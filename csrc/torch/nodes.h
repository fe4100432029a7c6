// Nodes of torch's graph over tensors of plain memory.
#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include "core/direct_memory.h"
#include "core/types.h"

namespace evenkeel {
namespace {

using at::Tensor;
using torch::autograd::compute_requires_grad;
using torch::autograd::ForwardADLevel;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Whether nobody watches or transforms what runs, as `unobserved` of kernels/_state.py asks it of Python.
bool is_unobserved() {
  constexpr c10::DispatchKeySet usual({c10::DispatchKey::BackendSelect, c10::DispatchKey::ADInplaceOrView,
                                       c10::DispatchKey::AutocastCPU});
  return usual.has_all(c10::impl::tls_local_dispatch_key_set().included_) &&
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
  return values.data;  // null where the storage was freed
}

// The order of a tensor's memory: contiguous where it can be taken so, or with its channels last.
at::MemoryFormat format_of(const Tensor& x) {
  if (x.is_contiguous() || (x.dim() != 4 && x.dim() != 5)) return at::MemoryFormat::Contiguous;
  return x.dim() == 4 ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::ChannelsLast3d;
}

const DirectMemory* direct_memory;

// Large tensors lie in blocks of the library's own (memory.cpp), by how many tensors their call reads and writes.
class Pool final : public c10::Allocator {
 public:
  explicit Pool(int64_t tensors) : tensors_(tensors) {}
  c10::DataPtr allocate(size_t bytes) override {
    void* const block = direct_memory->take(static_cast<int64_t>(bytes), tensors_);
    if (!block) return c10::GetCPUAllocator()->allocate(bytes);
    return {block, block, direct_memory->give_back, at::kCPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  const int64_t tensors_;
};

// Memory like a tensor's: dense, in the order of a format.
Tensor make(at::IntArrayRef sizes, at::ScalarType type, at::MemoryFormat format = at::MemoryFormat::Contiguous,
            int64_t tensors = 2) {
  // never destroyed: tensors may be freed after the static objects are gone
  static Pool* const pools[] = {new Pool(2), new Pool(3), new Pool(4)};
  return at::detail::empty_generic(sizes, pools[tensors - 2], c10::DispatchKeySet(c10::DispatchKey::CPU), type, format);
}

// Statistics are in the compute dtype.
Tensor make_statistics(int64_t count, int64_t width, const Tensor& x) {
  return make({count, width}, x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

// What a backward is given and gives: the tensors that the forward saved, and dx, dweight and dbias where needed.
struct Gradients {
  Tensor dy, dsum, x, weight, bias, statistics;
  bool adds;  // x is a sum that is a result too, and has the gradient dsum
  bool needed[3];
  variable_list found = variable_list(3);
  Tensor dresidual;  // where it is not dx itself, but a result of its own that can be differentiated again

  const Tensor& source(int i) const { return i == 0 ? x : i == 1 ? weight : bias; }

  // By a module's Python function, which takes every case.
  void find_by_python(const char* module_name, const std::vector<double>& numbers) {
    const pybind11::gil_scoped_acquire gil;
    const auto object = [](const Tensor& t) {
      return pybind11::reinterpret_steal<pybind11::object>(THPVariable_Wrap(t));
    };
    pybind11::list options;
    for (const double number : numbers) options.append(number);
    const pybind11::object function = pybind11::module_::import(module_name).attr("node_gradients");
    pybind11::list arguments;
    for (const Tensor* each : {&dy, &x, &weight, &bias, &statistics}) arguments.append(object(*each));
    arguments.append(options);
    arguments.append(pybind11::make_tuple(needed[0], needed[1], needed[2]));
    if (adds) {
      arguments.append(object(dsum));
      arguments.append(true);
    }
    const pybind11::tuple results = function(*arguments);
    if (adds && needed[0]) dresidual = THPVariable_Unpack(results[3].ptr());
    for (int i = 0; i < 3; ++i) found[i] = needed[i] ? THPVariable_Unpack(results[i].ptr()) : Tensor();
  }

  // Makes the gradients and reads everything but x and dy; false where the kernels do not take these tensors.
  bool prepare(at::MemoryFormat format_of_x, Values& w, Values& b, Values& s, Values (&gradients)[3]) {
    constexpr auto contiguous = at::MemoryFormat::Contiguous;
    if (dy.scalar_type() != x.scalar_type() || dy.sizes() != x.sizes() || !is_plain(dy) ||
        !read(weight, contiguous, w) || !read(bias, contiguous, b) || !read(statistics, contiguous, s)) {
      return false;
    }
    for (int i = 0; i < 3; ++i) {
      if (!needed[i]) continue;
      const auto format = i == 0 ? format_of_x : contiguous;
      found[i] = make(source(i).sizes(), source(i).scalar_type(), format, dsum.defined() ? 4 : 3);
      if (!read(found[i], format, gradients[i])) return false;
    }
    return true;
  }
};

// Counted in itself since torch 2.13.
template <class Base>
constexpr bool is_counted_in_itself = std::is_base_of_v<c10::intrusive_ptr_target, Base>;

template <class Node>
auto make_node() {
  if constexpr (is_counted_in_itself<Node>) {
    return c10::make_intrusive<Node>();
  } else {
    return std::shared_ptr<Node>(new Node, [](Node* old) { deleteNode(old); });
  }
}

// What SavedVariable::unpack takes of the node whose result was saved.
template <class Base>
auto pointer_to(Base* node) {
  if constexpr (is_counted_in_itself<Base>) {
    return c10::intrusive_ptr<Base>::reclaim_copy(node);
  } else {
    return node->shared_from_this();
  }
}

// A node of torch's graph over x, weight and bias, or over x, a residual, weight and bias: then its results are y and
// the sum, which it saves in the place of x. `Options` are those of the forward: numbers() for Python, and
// run(gradients), which finds them on plain memory; false where it does not take the tensors.
template <class Options>
struct Node : torch::autograd::Node {
  Options options;
  bool adds = false;
  SavedVariable x, weight, bias, statistics;

  variable_list apply(variable_list&& dy) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Gradients g;
    g.adds = adds;
    if (adds) g.dsum = std::move(dy[1]);
    if (!dy[0].defined()) return adds ? variable_list{g.dsum, g.dsum, {}, {}} : std::move(g.found);
    g.dy = std::move(dy[0]);
    g.x = x.unpack(pointer_to<torch::autograd::Node>(this));
    g.weight = weight.unpack();
    g.bias = bias.unpack();
    g.statistics = statistics.unpack();
    g.needed[0] = task_should_compute_output(0) || (adds && task_should_compute_output(1));
    for (int i = 1; i < 3; ++i) g.needed[i] = g.source(i).defined() && task_should_compute_output(i + adds);
    if (at::GradMode::is_enabled() || !is_unobserved() || !options.run(g)) {
      g.find_by_python(Options::python, options.numbers());
    }
    if (!adds) return std::move(g.found);
    const Tensor& dresidual = g.dresidual.defined() ? g.dresidual : g.found[0];
    return {task_should_compute_output(0) ? g.found[0] : Tensor(), task_should_compute_output(1) ? dresidual : Tensor(),
            g.found[1], g.found[2]};
  }

  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable* saved : all()) saved->reset_data();
  }

  // Compiled autograd traces what `apply` does.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    args.collect(adds);
    for (SavedVariable* saved : const_cast<Node*>(this)->all()) args.collect(*saved, adds && saved == &x);
    for (const double number : options.numbers()) args.collect(number);
  }
  variable_list apply_with_saved(const variable_list& dy, torch::dynamo::autograd::SwapSavedVariables& saved) override {
    for (SavedVariable* variable : all()) saved.before(*variable);
    variable_list found = apply(variable_list(dy));
    for (SavedVariable* variable : all()) saved.after(*variable);
    return found;
  }

 private:
  std::array<SavedVariable*, 4> all() { return {&x, &weight, &bias, &statistics}; }
};

// Makes y a result of x, weight and bias; where there is a sum, y and the sum of x, a residual, weight and bias.
template <class Node, class Options>
void attach(Tensor& y, const Options& options, const Tensor& x, const Tensor& weight, const Tensor& bias,
            const Tensor& statistics, const Tensor& residual = {}, const Tensor& sum = {}) {
  const auto node = make_node<Node>();
  using torch::autograd::collect_next_edges, torch::autograd::set_history;
  node->options = options;
  node->adds = sum.defined();
  node->set_next_edges(sum.defined() ? collect_next_edges(x, residual, weight, bias)
                                     : collect_next_edges(x, weight, bias));
  set_history(y, node);
  if (node->adds) set_history(sum, node);
  node->x = SavedVariable(node->adds ? sum : x, node->adds);
  node->weight = SavedVariable(weight, false);
  node->bias = SavedVariable(bias, false);
  node->statistics = SavedVariable(statistics, false);
}

}  // namespace
}  // namespace evenkeel
