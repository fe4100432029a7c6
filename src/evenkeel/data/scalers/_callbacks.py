"""scikit-learn's callbacks, which its version 1.9 brought; before that nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """No callbacks."""

    def with_callbacks(method: Any) -> Any:
        """The method as it is."""
        return method


__all__ = ["CallbackSupportMixin", "fit_task", "with_callbacks"]


@contextmanager
def fit_task(estimator: Any, X: Any, y: Any, **metadata: Any) -> Iterator[None]:
    """Tell an estimator's callbacks of the one task that its fit is, in a method that `with_callbacks` decorates."""
    if not hasattr(estimator, "_init_callback_context"):
        yield
        return
    context = estimator._init_callback_context()
    task = {"estimator": estimator, "X": X, "y": y, "metadata": metadata}
    context.call_on_fit_task_begin(**task)
    yield
    context.call_on_fit_task_end(**task, reconstruction_attributes={})
