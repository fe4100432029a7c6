"""Watches for the loops of others: Hugging Face's Trainer and Lightning."""

from __future__ import annotations

import importlib
import os
from typing import Any

from evenkeel._errors import EvenkeelError
from evenkeel.doctor._watch import Watch

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
    base = required("transformers", "TrainerCallback")

    def begin(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.watch = Watch(given["model"], plain_optimizer(given["optimizer"]), every=every)
        self.watch.__enter__()

    def step(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
        self.watch.step()

    def end(self: Any, args: Any, state: Any, control: Any, **given: Any) -> None:
        finish(self, page)

    hooks = {"on_train_begin": begin, "on_optimizer_step": step, "on_train_end": end}
    return type("EvenkeelCallback", (base,), {"report": None, **hooks})()


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
    base = required("lightning.pytorch", "Callback")

    def begin(self: Any, trainer: Any, pl_module: Any) -> None:
        self.watch = Watch(pl_module, plain_optimizer(trainer.optimizers[0]), every=every)
        self.watch.__enter__()

    def step(self: Any, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self.watch.step(loss)

    def end(self: Any, trainer: Any, pl_module: Any) -> None:
        finish(self, page)

    hooks = {"on_train_start": begin, "on_train_batch_end": step, "on_train_end": end}
    return type("EvenkeelCallback", (base,), {"report": None, **hooks})()


def finish(callback: Any, page: str | os.PathLike[str] | None) -> None:
    """End a watch, and keep its report."""
    callback.watch.__exit__()
    callback.report = callback.watch.report()
    if page is not None:
        callback.report.save(page)


def plain_optimizer(optimizer: Any) -> Any:
    """The torch optimizer inside a wrapper."""
    return getattr(optimizer, "optimizer", optimizer)


def required(module: str, name: str) -> Any:
    """Import what a callback derives from."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        package = module.partition(".")[0]
        raise EvenkeelError(f"this callback needs the package {package}; run: pip install {package}") from error
