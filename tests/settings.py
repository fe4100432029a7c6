"""The settings in which a caller may run a norm, each of which has to change nothing."""

import contextlib

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class LoggingFunctions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class LoggingDispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Seen(TorchDispatchMode):
    """Collects the names of our operators."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "evenkeel":
            self.names.append(function._opname)
        return function(*args, **(kwargs or {}))


class Own(torch.Tensor):
    """A subclass."""


def default_device(device):
    @contextlib.contextmanager
    def setting():
        torch.set_default_device(device)
        try:
            yield
        finally:
            torch.set_default_device(None)

    return setting


@contextlib.contextmanager
def thread_count(count):
    """So many threads of torch's."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def on_threads(call, counts=(1, 2, 3)):
    """What a function returns on each number of threads."""
    found = []
    for count in counts:
        with thread_count(count):
            found.append(call())
    return found


# (context, what becomes of an input)
SETTINGS = {
    "default device": (default_device("cpu"), lambda t: t),
    "default device elsewhere": (default_device("meta"), lambda t: t),  # the inputs say where a result belongs
    "device context": (lambda: torch.device("cpu"), lambda t: t),
    "function mode": (LoggingFunctions, lambda t: t),
    "dispatch mode": (LoggingDispatch, lambda t: t),
    "subclass": (contextlib.nullcontext, lambda t: t.as_subclass(Own)),
}
