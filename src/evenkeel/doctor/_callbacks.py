"""Watches for the loops of others: Hugging Face's Trainer and Lightning."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from evenkeel._errors import EvenkeelError
from evenkeel.doctor._watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["lightning_callback", "transformers_callback"]


def transformers_callback(*, every: int = 50, page: str | os.PathLike[str] | None = None) -> Any:
    """Return a `TrainerCallback` that watches a Hugging Face `Trainer`.

    Args:
        every: after so many steps something is measured.
        page: where the report is saved at the end of the training; None for nowhere.

    Returns:
        The callback; its ``report`` is that of the last training, None before.

    Raises:
        EvenkeelError: transformers is not installed.

    Example:
        >>> import evenkeel as ek
        >>> callback = ek.doctor.transformers_callback(every=20)  # Trainer(..., callbacks=[callback])
        >>> callback.report is None
        True
    """

    def begun(args: Any, state: Any, control: Any, **given: Any) -> tuple[Any, Any, int]:
        return given["model"], given["optimizer"], state.global_step

    def progress(args: Any, state: Any, control: Any, **given: Any) -> tuple[int, Any]:
        return state.global_step, None

    events = ("on_train_begin", "on_optimizer_step", "on_train_end")
    return callback("transformers", "TrainerCallback", events, begun, progress, every, page)


def lightning_callback(*, every: int = 50, page: str | os.PathLike[str] | None = None) -> Any:
    """Return a `Callback` that watches a Lightning `Trainer` with one optimizer.

    Args:
        every: after so many steps something is measured.
        page: where the report is saved at the end of the training; None for nowhere.

    Returns:
        The callback; its ``report`` is that of the last training, None before.

    Raises:
        EvenkeelError: lightning is not installed.

    Example:
        >>> import evenkeel as ek
        >>> try:
        ...     callback = ek.doctor.lightning_callback()  # Trainer(callbacks=[callback])
        ... except ek.EvenkeelError as error:
        ...     message = str(error)  # where lightning is not installed
    """

    def begun(trainer: Any, pl_module: Any) -> tuple[Any, Any, int]:
        return pl_module, trainer.optimizers[0], trainer.global_step

    def progress(trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> tuple[int, Any]:
        # the first step of the optimizer is over when it is 1
        return trainer.global_step - 1, outputs.get("loss") if isinstance(outputs, dict) else outputs

    events = ("on_train_start", "on_train_batch_end", "on_train_end")
    return callback("lightning.pytorch", "Callback", events, begun, progress, every, page)


def callback(
    module: str,
    base: str,
    events: tuple[str, str, str],
    begun: Callable[..., tuple[Any, Any, int]],
    progress: Callable[..., tuple[int, Any]],
    every: int,
    page: str | os.PathLike[str] | None,
) -> Any:
    """Return an object of a class that derives from another package's, which watches between two of its events.

    Args:
        module: of the class to derive from.
        base: its name.
        events: the names of the methods that are called at the beginning, after a step and at the end.
        begun: (what the first is called with) -> the model, the optimizer, and how many steps were taken before.
        progress: (what the second is called with) -> how many steps were taken before this one, and the loss or None;
            calls between two steps, as in the accumulation of gradients, are left out.
        every: after so many steps something is measured.
        page: where the report is saved at the end.
    """

    def begin(self: Any, *given: Any, **named: Any) -> None:
        model, optimizer, before = begun(*given, **named)
        # wrappers hold the optimizer of torch
        self.watch = Watch(model, getattr(optimizer, "optimizer", optimizer), every=every)
        self.watch.__enter__()
        self.taken = before - 1

    def step(self: Any, *given: Any, **named: Any) -> None:
        taken, loss = progress(*given, **named)
        if taken > self.taken:
            self.taken = taken
            self.watch.step(loss)

    def end(self: Any, *given: Any, **named: Any) -> None:
        self.watch.__exit__()
        self.report = self.watch.report()
        if page is not None:
            self.report.save(page)

    methods = dict(zip(events, (begin, step, end), strict=True))
    return type("EvenkeelCallback", (required(module, base),), {"report": None, **methods})()


def required(module: str, name: str) -> Any:
    """Import what a callback derives from."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        package = module.partition(".")[0]
        raise EvenkeelError(f"this callback needs the package {package}; run: pip install {package}") from error
