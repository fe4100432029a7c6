"""The machine that a run ran on, in words."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path


def processor() -> str:
    """Return the processor's name, which `platform.processor` leaves empty on most Linux systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def processors() -> str:
    """Return the processor's name and how many logical processors there are."""
    return f"{processor()}, {os.cpu_count()} logical processors"


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def platform_name() -> str:
    """Return the operating system and the machine type."""
    return f"{platform.system()} {platform.machine()}"


def peak_memory() -> int | None:
    """Return the most bytes that this process has held, or None where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
