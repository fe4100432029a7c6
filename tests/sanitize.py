"""Build the extension in a copy with g++'s address and undefined-behaviour sanitizers and run the kernels' tests.

Usage: python tests/sanitize.py [pytest arguments]      (`make sanitize`)

The kernels are those of this processor's best instruction set: no other would run here. Needs g++ with libasan and
libubsan (Debian: they come with g++), torch and pytest in the running environment, about 2 GB of memory and, on two
cores, up to an hour. By hand, in a copy of the repository:

    CXX="g++ -fsanitize=address,undefined -fno-sanitize-recover=undefined -g" CXXFLAGS=-O1 EVENKEEL_NATIVE=1 \\
        python setup.py build_ext --inplace
    LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libubsan.so)" \\
        ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=8 PYTHONPATH=src python -m pytest tests/kernels

Leaks are not looked for: torch and Python keep memory until the process ends. What is preloaded has to be the library
of the compiler that built. The sanitizers' report goes to the terminal and ends the run.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("csrc", "src", "tests", "setup.py", "pyproject.toml", "README.md", "LICENSE", "docs")
COMPILER = "g++"
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -g"
OPTIMIZATION = "-O1"  # after setup.py's -O3: with that a build took more than nine minutes on a busy machine
QUARANTINE_MB = 8  # a test of the pool measures the process, in which freed memory counts as long as it waits here
# these start processes of their own, which the preloaded library slows to minutes; and Triton's run nothing of C++
OF_PROCESSES = ("simd_level", "forked", "missing_extension", "older", "compile", "order_of_members")
LEFT_OUT = " and ".join(f"not {name}" for name in (*OF_PROCESSES, "triton"))


def library(name):
    """The path of one of the compiler's libraries."""
    path = subprocess.check_output([COMPILER, f"-print-file-name={name}"], text=True).strip()
    if not Path(path).is_absolute():
        sys.exit(f"{COMPILER} has no {name}; install it (Debian: apt install g++)")
    return path


def main():
    if shutil.which(COMPILER) is None:
        sys.exit(f"{COMPILER} is not installed (Debian: apt install g++)")
    preload = " ".join(library(name) for name in ("libasan.so", "libubsan.so"))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in COPIED:
            source = ROOT / name
            ignored = shutil.ignore_patterns("*.so", "__pycache__")
            shutil.copytree(source, copy / name, ignore=ignored) if source.is_dir() else shutil.copy(source, copy)
        sys.stderr.write("building with the sanitizers\n")
        environment = {**os.environ, "CXX": f"{COMPILER} {FLAGS}", "CXXFLAGS": OPTIMIZATION, "EVENKEEL_NATIVE": "1"}
        subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=copy, env=environment, check=True
        )
        environment = {
            **os.environ,
            "LD_PRELOAD": preload,
            "ASAN_OPTIONS": f"detect_leaks=0:quarantine_size_mb={QUARANTINE_MB}",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "PYTHONPATH": str(copy / "src"),
        }
        arguments = sys.argv[1:] or ["tests/kernels", "-m", "not slow", "-k", LEFT_OUT]
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments]
        sys.exit(subprocess.run(command, cwd=copy, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
