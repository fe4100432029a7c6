"""`evenkeel info`: what is installed, how it was built and what runs here."""

from __future__ import annotations

from evenkeel.cli.options import Json

__all__ = ["info"]


def info(as_json: Json = False) -> None:
    """Print versions, backends, how the kernels were built, the SIMD level in use and threads."""
    from evenkeel.cli.info import show_info

    show_info(as_json=as_json)
