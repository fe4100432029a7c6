"""The data flow of a model on example inputs: which operation made each tensor, and which read it.

One run is recorded as torch dispatches it, so that whatever runs can be followed: nothing is known by a name.
Parameters and buffers are known by their memory, modules by their calls.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from evenkeel.recognition import isolated

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from torch import Tensor, nn

    from evenkeel.recognition import Call

__all__ = ["Graph", "ModuleCall", "Node", "Value", "plain_operators", "trace"]

MODULE, WRITTEN = "module", "written through a view"
HANDS = ("aten.alias", "aten.detach")
LIKE = "empty_like full_like ones_like rand_like randn_like zeros_like"
SIZED = "new_empty new_empty_strided new_full new_ones new_zeros"
SHAPES = tuple(f"aten.{name}" for name in f"{LIKE} {SIZED}".split())  # what reads a shape, and no number


@dataclass(eq=False, repr=False)
class Value:
    """A tensor at one moment; after it was written into, it is another value.

    Attributes:
        shape: its shape.
        dtype: its dtype.
        producer: what made it; None of inputs, parameters, buffers and constants.
        readers: what reads it, in the order of the run; one that reads it twice is there twice.
        tensor: the parameter or buffer that it is; None of others.
        names: the qualified names of the parameter or buffer.
        is_result: whether the model returns it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    producer: Node | None = None
    readers: list[Node] = field(default_factory=list)
    tensor: Tensor | None = None
    names: tuple[str, ...] = ()
    is_result: bool = False


@dataclass(eq=False, repr=False)
class ModuleCall:
    """One call of a module: what forward was given, after hooks before it, and what it returned, before hooks after."""

    module: nn.Module
    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...] = ()
    first: int = 0  # of the operations inside


@dataclass(eq=False, repr=False)
class Node:
    """One operation.

    Attributes:
        op: its name without the overload, such as ``aten.add``; ``module`` where a whole call is one operation.
        inputs: the values that it reads, in order.
        outputs: those it makes.
        arguments: of an operator, by the names of its schema, with values in the place of tensors.
        calls: the calls of modules that it is in, the innermost last.
        module: of which it is a call, where ``op`` is ``module``.
    """

    op: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...] = ()
    arguments: dict[str, Any] = field(default_factory=dict)
    calls: tuple[ModuleCall, ...] = ()
    module: nn.Module | None = None

    @property
    def is_lost(self) -> bool:
        """Whether it hands a tensor to what torch does not see, numpy for one: nobody reads or returns the result."""
        return self.op in HANDS and not any(value.readers or value.is_result for value in self.outputs)


@dataclass(eq=False, repr=False)
class Graph:
    """The data flow of one run.

    Attributes:
        nodes: the operations, in order.
        calls: the calls of modules, in the order in which they began; those inside of units are left out.
        results: what the model returned.
        parameters: the values of parameters and buffers, by their first names.
    """

    nodes: list[Node]
    calls: list[ModuleCall]
    results: tuple[Value, ...]
    parameters: dict[str, Value]

    def calls_of(self, module: nn.Module) -> list[ModuleCall]:
        """The calls of a module."""
        return [call for call in self.calls if call.module is module]

    def names_with(self, values: Collection[Value]) -> tuple[str, ...]:
        """The names of the modules that return one of these values."""
        wanted = {id(value) for value in values}
        return tuple(call.name for call in self.calls if any(id(value) in wanted for value in call.outputs))

    def node_of(self, module: nn.Module) -> Node | None:
        """The one operation that is the call of a unit; None where it was not called, or several times."""
        found = [node for node in self.nodes if node.module is module]
        return found[0] if len(found) == 1 else None


def trace(model: nn.Module, call: Call, units: Collection[nn.Module] = ()) -> Graph:
    """Run a model and record its data flow, in the mode that it is in; its buffers and random numbers stay.

    Args:
        model: any model; of a compiled one, what was compiled is run.
        call: its inputs.
        units: modules each call of which is one operation: norms.
    """
    inner: nn.Module = getattr(model, "_orig_mod", model)
    recorder = Recorder(inner, {id(module) for module in units})
    buffers = [(buffer, buffer.clone()) for buffer in inner.buffers() if not buffer.is_meta]
    with ExitStack() as stack:
        stack.enter_context(isolated())
        stack.enter_context(plain_operators())
        for handle in recorder.hooks(inner):
            stack.callback(handle.remove)
        try:
            with recorder:
                result = call(inner)
        finally:
            for buffer, before in buffers:
                buffer.copy_(before)
    return recorder.graph(result)


@contextmanager
def plain_operators() -> Iterator[None]:
    """Run nothing that is compiled, and attention by the operators that it has while it is trained."""
    fast = torch.backends.mha.get_fastpath_enabled()
    # importing what compiles takes seconds; where it was not imported, nothing is compiled
    with torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext():
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


class Recorder(TorchDispatchMode):
    """Writes down what is dispatched, and which module is being called."""

    def __init__(self, model: nn.Module, units: set[int]) -> None:
        super().__init__()
        self.model, self.units = model, units
        self.values: Any = WeakTensorKeyDictionary()
        self.storages: dict[int, list[Any]] = {}
        self.nodes: list[Node] = []
        self.calls: list[ModuleCall] = []
        self.stack: list[ModuleCall] = []
        self.inside: list[ModuleCall] = []  # the unit that is being called
        self.parameters: dict[str, Value] = {}
        named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        for name, tensor in named:
            value = self.values.get(tensor)
            if value is None:
                value = self.values[tensor] = Value(tuple(tensor.shape), tensor.dtype, tensor=tensor)
                self.parameters[name] = value
            value.names = (*value.names, name)

    def hooks(self, model: nn.Module) -> Iterator[Any]:
        """Follow the calls of every module: after hooks before a call that are there, before hooks after it."""
        names: dict[int, str] = {}
        for name, module in model.named_modules():
            names[id(module)] = name
            yield module.register_forward_pre_hook(self.entering(name), with_kwargs=True)
            yield module.register_forward_hook(self.leaving, with_kwargs=True, prepend=True)

    def entering(self, name: str) -> Any:
        """A hook before a module of this name."""

        def enter(module: nn.Module, arguments: Any, keywords: Any) -> None:
            call = ModuleCall(module, name, tuple(self.values_in([arguments, keywords])), first=len(self.nodes))
            if not self.inside:
                self.calls.append(call)
                if id(module) in self.units:
                    self.inside.append(call)
            self.stack.append(call)

        return enter

    def leaving(self, module: nn.Module, arguments: Any, keywords: Any, result: Any) -> None:
        """The hook after a module."""
        while self.stack and self.stack[-1].module is not module:  # one that raised, and was caught
            self.stack.pop()
        call = self.stack.pop()
        tensors = list(tensors_in(result))
        if self.inside and self.inside[-1] is call:
            self.inside.pop()
            self.close_unit(call, tensors)
        elif not self.inside and self.went_unseen(call, tensors):
            self.close_unit(call, tensors)
        call.outputs = tuple(self.value(tensor) for tensor in tensors)

    def went_unseen(self, call: ModuleCall, tensors: list[Tensor]) -> bool:
        """Whether a call computes where torch does not dispatch: its results come from nowhere, not from its inputs."""
        given, inner = {id(value) for value in call.inputs}, {id(node) for node in self.nodes[call.first :]}
        seen: dict[int, Value] = {}
        left = [self.value(tensor) for tensor in tensors]
        while left:
            value = left.pop()
            if id(value) not in seen:
                seen[id(value)] = value
                left += value.producer.inputs if value.producer is not None and id(value.producer) in inner else ()
        nowhere = (v.producer is None and v.tensor is None and 0 not in v.shape for v in seen.values())
        return bool(given) and not given & set(seen) and any(nowhere)

    def close_unit(self, call: ModuleCall, tensors: list[Tensor]) -> None:
        """Make one operation of a module's call; what it reads besides its inputs and its own tensors counts too."""
        inner = self.nodes[call.first :]
        made = {id(value) for node in inner for value in node.outputs}
        own = {id(tensor) for tensor in [*call.module.parameters(), *call.module.buffers()]}
        read = [v for node in inner for v in node.inputs if id(v) not in made and id(v.tensor) not in own]
        inputs = dict.fromkeys([*call.inputs, *read])
        del self.nodes[call.first :]
        for value in {id(v): v for node in inner for v in node.inputs}.values():
            value.readers = [node for node in value.readers if node not in inner]
        node = Node(MODULE, tuple(inputs), calls=tuple(self.stack), module=call.module)
        kept = {id(value) for value in call.inputs}
        for tensor in tensors:
            if id(self.values.get(tensor)) not in kept:
                self.values[tensor] = Value(tuple(tensor.shape), tensor.dtype, node)
        outputs = (self.values[tensor] for tensor in tensors)
        node.outputs = tuple(value for value in outputs if value.producer is node)
        self.add(node)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and write it down."""
        kwargs = kwargs or {}
        schema = func._schema.arguments
        names = [argument.name for argument in schema]
        given = dict(zip(names, args, strict=False)) | kwargs
        arguments = {name: self.replaced(value) for name, value in given.items()}
        op = str(func.overloadpacket)
        inputs = () if op in SHAPES else tuple(values_of(arguments))
        node = Node(op, inputs, arguments=arguments, calls=tuple(self.stack))
        result = func(*args, **kwargs)
        written = [
            given[a.name] for a in schema if a.alias_info is not None and a.alias_info.is_write and a.name in given
        ]
        changed = [tensor for value in written for tensor in tensors_in(value)]
        made = [tensor for tensor in tensors_in(result) if not any(tensor is one for one in changed)]
        for tensor in [*changed, *made]:
            if tensor not in self.values or any(tensor is one for one in changed):
                self.set(tensor, node)
        node.outputs = tuple(self.values[tensor] for tensor in [*changed, *made])
        self.add(node)
        for tensor in changed:
            self.write_through(tensor, node)
        return result

    def write_through(self, tensor: Tensor, node: Node) -> None:
        """Other tensors of the same memory have other values now."""
        for other in self.sharing(tensor):
            if other is not tensor:
                through = Node(WRITTEN, (self.values[other], self.values[tensor]), calls=node.calls)
                self.set(other, through)
                through.outputs = (self.values[other],)
                self.add(through)

    def add(self, node: Node) -> None:
        """Append an operation."""
        self.nodes.append(node)
        for value in node.inputs:
            value.readers.append(node)

    def set(self, tensor: Tensor, node: Node) -> None:
        """Give a tensor a new value."""
        if tensor not in self.values:
            self.remember(tensor)
        self.values[tensor] = Value(tuple(tensor.shape), tensor.dtype, node)

    def value(self, tensor: Tensor) -> Value:
        """The value of a tensor; of one that nothing made here, a constant."""
        if tensor not in self.values:
            self.remember(tensor)
            self.values[tensor] = Value(tuple(tensor.shape), tensor.dtype)
        found: Value = self.values[tensor]
        return found

    def remember(self, tensor: Tensor) -> None:
        """Note whose memory it has."""
        from torch.utils.weak import TensorWeakRef

        key = memory_of(tensor)
        if key is not None:
            self.storages.setdefault(key, []).append(TensorWeakRef(tensor))

    def sharing(self, tensor: Tensor) -> list[Tensor]:
        """The tensors that have its memory."""
        key = memory_of(tensor)
        if key is None:
            return []
        owned = [value.tensor for value in self.parameters.values() if value.tensor is not None]
        found = [other for ref in self.storages.get(key, []) if (other := ref()) is not None]
        return [*(other for other in owned if memory_of(other) == key), *found]

    def values_in(self, given: Any) -> Iterator[Value]:
        """The values of the tensors of anything nested."""
        for tensor in tensors_in(given):
            yield self.value(tensor)

    def replaced(self, given: Any) -> Any:
        """The same with values in the place of tensors."""
        if isinstance(given, torch.Tensor):
            return self.value(given)
        if isinstance(given, list | tuple):
            return [self.replaced(item) for item in given]
        return given

    def graph(self, result: Any) -> Graph:
        """What was recorded."""
        results = tuple(self.values_in(result))
        for value in results:
            value.is_result = True
        for node in reversed(list(self.nodes)):  # views that nobody looks at again
            if node.op == WRITTEN and not any(value.readers or value.is_result for value in node.outputs):
                self.nodes.remove(node)
                for value in node.inputs:
                    value.readers.remove(node)
        return Graph(self.nodes, self.calls, results, self.parameters)


def memory_of(tensor: Tensor) -> int | None:
    """The address of a tensor's memory; None where it has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # sparse, or a subclass without memory
        return None


def values_of(given: Any) -> Iterator[Value]:
    """The values in nested arguments."""
    if isinstance(given, Value):
        yield given
    elif isinstance(given, dict):
        for item in given.values():
            yield from values_of(item)
    elif isinstance(given, list):
        for item in given:
            yield from values_of(item)


def tensors_in(given: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """Every tensor of nested lists, mappings and objects, which results of models are; each object once."""
    seen = set() if seen is None else seen
    if isinstance(given, torch.Tensor):
        yield given
        return
    if id(given) in seen or isinstance(given, str | bytes | int | float | type | torch.nn.Module):
        return
    seen.add(id(given))
    if isinstance(given, Mapping):
        inner: Any = given.values()
    elif isinstance(given, list | tuple | set):
        inner = given
    elif dataclasses.is_dataclass(given) or hasattr(given, "__dict__"):
        inner = vars(given).values()
    else:
        return
    for item in inner:
        yield from tensors_in(item, seen)
