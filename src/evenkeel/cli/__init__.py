"""The command line: one thin file per command."""

from evenkeel.cli.main import main

__all__ = ["main"]
