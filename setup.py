"""Build script: compiles csrc/ into one shared library that is loaded with `torch.ops.load_library`.

The library uses torch's stable ABI and nothing of the CPython API, so one build serves every Python and every torch
from `TORCH_TARGET` on, and the wheel is tagged `py3-none-<platform>`. Beside it, csrc/torch/direct_calls.cpp becomes
a module of CPython's limited API through which small tensors reach the kernels sooner, and csrc/torch/autograd.cpp one
of the torch and the Python at hand, through which their gradients do; another torch or Python, or a build without
Python.h, does without. Everything else is declared in pyproject.toml.

Environment: CXX (the compiler), CXXFLAGS (added to the flags), MAX_JOBS (compilers at once), EVENKEEL_NATIVE=1 (the
kernels of this processor's instruction set alone), EVENKEEL_REFERENCE_ONLY=1 (no kernels).
"""

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

TORCH_TARGET = "2.11"  # oldest torch the binary runs on
FLAGS = [
    "-DTORCH_TARGET_VERSION=0x020b000000000000",
    "-std=c++20",
    "-O3",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",  # every instruction set gives the same bits
    "-Wno-psabi",  # 64-byte vectors never cross a function that is not inlined
    "-Wall",
]
# Every *_kernels.cpp of csrc/ is compiled once per row into its own namespace; every other *.cpp once. An x86 processor
# without AVX2, FMA and F16C runs plain PyTorch.
# That tuning has g++ clear and copy vectors a register at a time; the generic one takes `rep stos` and half registers.
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-mtune=skylake-avx512"]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma", "-mf16c", "-mprefer-vector-width=512"]
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
ISAS: dict[str, list[str]] = {"avx2": AVX2, "avx512": AVX512} if IS_X86 else {"baseline": []}
NATIVE = "EVENKEEL_NATIVE"
SOURCES = Path("csrc")
LIBRARY, DIRECT_CALLS, AUTOGRAD = (f"evenkeel.kernels.{name}" for name in ("_native", "_direct_calls", "_autograd"))
MODULES = {DIRECT_CALLS: SOURCES / "torch" / "direct_calls.cpp", AUTOGRAD: SOURCES / "torch" / "autograd.cpp"}
LIBRARIES = {LIBRARY: ["torch_cpu", "c10"], DIRECT_CALLS: [], AUTOGRAD: ["torch_cpu", "c10", "torch_python"]}
OBJECTS = Path("build") / "native"  # setuptools' own folder is a fresh one in each editable install
JOB_MEMORY = 1 << 30  # bytes of the largest compiler process, that of torch's own headers

NO_COMPILER = (
    "evenkeel: no C++ compiler found (tried {tried}). Install one: `apt install g++` (Debian, Ubuntu), "
    "`dnf install gcc-c++` (Fedora), `xcode-select --install` (macOS); or set EVENKEEL_REFERENCE_ONLY=1 to install "
    "without the compiled kernels."
)
NO_PYTHON_HEADERS = (
    "evenkeel: Python.h is missing, so calls on small tensors will take up to 20 µs longer; `apt install python3-dev` "
    "(Debian, Ubuntu) or `dnf install python3-devel` (Fedora) brings it."
)
NO_TORCH = (
    "evenkeel: building the kernels needs torch, which this environment lacks: leave out --no-build-isolation, or "
    f"install torch >= {TORCH_TARGET} first."
)
BAD_JOBS = "evenkeel: MAX_JOBS must be a whole number of compilers that run at once, but is {wanted!r}."
COMPILE_FAILED = (
    "evenkeel: {compiler} could not build csrc/ (its messages are above). g++ >= 11 or clang >= 14 is needed; "
    "CXX=... chooses another compiler, EVENKEEL_REFERENCE_ONLY=1 installs without the compiled kernels."
)


@dataclass(frozen=True)
class Unit:
    """One source file compiled for one instruction set."""

    source: Path
    isa: str

    def __str__(self) -> str:
        return f"{self.source.parent.name}/{self.source.stem}" + (f" {self.isa}" if self.isa in ISAS else "")

    @property
    def weight(self) -> tuple[bool, int]:
        """What orders units by how long they take: all of torch's headers, then the bytes of csrc/ that are read."""
        return self.source == MODULES[AUTOGRAD], sum(path.stat().st_size for path in self.files)

    @property
    def files(self) -> set[Path]:
        """The source and the headers of csrc/ that it reads."""
        return {self.source, *headers_of(self.source)}

    @property
    def flags(self) -> list[str]:
        if self.source in MODULES.values():
            # no loops over elements; and all of torch's headers, not the stable ones alone
            return ["-O2", "-UTORCH_TARGET_VERSION", "-isystem", sysconfig.get_path("include")]
        if not self.source.stem.endswith("_kernels"):
            return []
        return [f"-DEVENKEEL_ISA={self.isa}", *ISAS[self.isa]]


def stop(message: str) -> NoReturn:
    """End the build with one line: an exception would bury it under pages of traceback."""
    raise SystemExit(f"\n{message}\n")


def find_compiler() -> list[str]:
    """Return the C++ compiler's command: $CXX, or the first of the usual names on PATH."""
    command = shlex.split(os.environ.get("CXX", ""))
    usual = [(sysconfig.get_config_var("CXX") or "c++").split()[0], "c++", "g++", "clang++"]
    names = command[:1] or usual
    for name in names:
        if shutil.which(name):
            return command or [name]
    stop(NO_COMPILER.format(tried=", ".join(dict.fromkeys(names))))


def torch_folder() -> Path:
    """Return where the build's torch is installed, without importing it, which takes seconds."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        stop(NO_TORCH)
    return Path(spec.origin).parent


@cache
def headers_of(source: Path) -> set[Path]:
    """Return the headers of csrc/ that a file includes, and those that they include."""
    direct = {SOURCES / name for name in re.findall(r'^#include "(.+)"', source.read_text(), re.MULTILINE)}
    return direct.union(*map(headers_of, direct))


def is_set(variable: str) -> bool:
    """Whether an environment variable asks for something."""
    return os.environ.get(variable, "0") not in ("", "0")


@cache
def wanted_isas() -> list[str]:
    """Return the instruction sets that are built: all, or with $EVENKEEL_NATIVE the best of this processor."""
    processor = Path("/proc/cpuinfo")
    if not (is_set(NATIVE) and IS_X86 and processor.exists()):
        return list(ISAS)
    has_avx512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= set(processor.read_text().split())
    return ["avx512" if has_avx512 else "avx2"]


def units(name: str) -> list[Unit]:
    """Return what has to be compiled for an extension."""
    if name in MODULES:
        return [Unit(MODULES[name], "any")]
    sources = sorted({*SOURCES.rglob("*.cpp")} - {*MODULES.values()})
    levels = {True: wanted_isas(), False: ["any"]}
    return [Unit(source, isa) for source in sources for isa in levels[source.stem.endswith("_kernels")]]


def count_jobs() -> int:
    """Return how many compilers run at once: $MAX_JOBS, or one for each core that has the memory."""
    if wanted := os.environ.get("MAX_JOBS", ""):
        return max(1, int(wanted)) if wanted.isdecimal() else stop(BAD_JOBS.format(wanted=wanted))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(cores, memory // JOB_MEMORY))


class Progress:
    """Show on stderr what is compiled: on a terminal in one line with the seconds, elsewhere a line for each unit."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.running: dict[str, float] = {}  # unit -> when it began
        self.began = time.monotonic()
        self.is_live = sys.stderr.isatty()

    def show(self) -> None:
        if self.is_live and self.running:
            number = self.done + len(self.running)
            seconds = time.monotonic() - self.began
            line = f"compiling unit {number} of {self.total}, {seconds:.0f} s: {', '.join(self.running)}"
            # what a compiler writes replaces it
            sys.stderr.write(f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}\r")
            sys.stderr.flush()

    def start(self, unit: str) -> None:
        self.running[unit] = time.monotonic()

    def finish(self, unit: str) -> None:
        seconds = time.monotonic() - self.running.pop(unit)
        self.done += 1
        if not self.is_live:
            sys.stderr.write(f"compiled unit {self.done} of {self.total}: {unit} in {seconds:.1f} s\n")

    def end(self) -> None:
        clear = "\r\033[K" if self.is_live else ""
        sys.stderr.write(
            f"{clear}compiled {self.done} of {self.total} units in {time.monotonic() - self.began:.0f} s\n"
        )


def extensions() -> list[Extension]:
    """Return what this Python can be given: on Windows the reference implementations alone."""
    if is_set("EVENKEEL_REFERENCE_ONLY") or sys.platform == "win32":
        return []
    names = [LIBRARY]
    if (Path(sysconfig.get_path("include")) / "Python.h").exists():
        names += [] if sysconfig.get_config_var("Py_GIL_DISABLED") else MODULES
    else:
        sys.stderr.write(f"\n{NO_PYTHON_HEADERS}\n")
    return [
        Extension(
            name,
            sources=sorted({str(unit.source) for unit in units(name)}),
            depends=sorted(map(str, SOURCES.rglob("*.h"))),
            language="c++",
            optional=name == AUTOGRAD,  # the torch at hand may have other headers
        )
        for name in names
    ]


class BuildNative(build_ext):
    """Compile csrc/ per instruction set and link it without Python's own flags, libraries and suffix."""

    def get_ext_filename(self, fullname: str) -> str:
        # asked for with and without the package's name
        suffixes = {"_direct_calls": ".abi3.so", "_autograd": sysconfig.get_config_var("EXT_SUFFIX")}
        return os.path.join(*fullname.split(".")) + suffixes.get(fullname.rpartition(".")[2], ".so")

    def build_extensions(self) -> None:
        """Compile the units of all extensions together, so that no core waits for the last unit of one, then link."""
        if not self.extensions:
            return
        self.command = find_compiler()
        self.flags = [*FLAGS, *shlex.split(os.environ.get("CXXFLAGS", ""))]
        # Warnings inside torch's headers are not ours, and their path must not end up in the binary.
        torch = torch_folder()
        compile_command = [*self.command, *self.flags, f"-ffile-prefix-map={torch}=torch"]
        compile_command += ["-isystem", str(torch / "include"), "-iquote", str(SOURCES)]
        self.compiler.set_executables(compiler_so_cxx=compile_command, compiler_cxx=self.command)
        # Drop the paths setuptools added for Python's headers and libraries.
        self.compiler.include_dirs = []
        self.compiler.library_dirs = [str(torch / "lib")]
        self.compiler.force = True  # link, though objects of earlier sources may be older than the library
        self.objects = {unit: self.object_of(unit) for extension in self.extensions for unit in units(extension.name)}
        self.compile_units()
        super().build_extensions()

    def compile_units(self) -> None:
        """Compile what has changed, the longest units first, so that all cores end together."""
        missing = [unit for unit in self.objects if not self.objects[unit].exists()]
        missing.sort(key=lambda unit: unit.weight, reverse=True)
        optional = {unit for extension in self.extensions if extension.optional for unit in units(extension.name)}
        if not missing:
            return
        progress = Progress(len(missing))
        with ThreadPoolExecutor(count_jobs()) as pool:
            jobs = {pool.submit(self.compile_unit, unit, progress): unit for unit in missing}
            try:
                waiting = set(jobs)
                while waiting:
                    progress.show()
                    done, waiting = wait(waiting, timeout=1, return_when=FIRST_COMPLETED)
                    if any(job.exception() and jobs[job] not in optional for job in done):
                        stop(COMPILE_FAILED.format(compiler=self.command[0]))
            finally:
                pool.shutdown(cancel_futures=True)
                progress.end()

    def compile_unit(self, unit: Unit, progress: Progress) -> None:
        """Compile one unit; an interrupted compiler leaves no half-written object under the final name."""
        final = self.objects[unit]
        progress.start(str(unit))
        (fresh,) = self.compiler.compile(
            [str(unit.source)], output_dir=str(final.with_suffix("")), extra_postargs=unit.flags
        )
        os.replace(fresh, final)
        shutil.rmtree(final.with_suffix(""))
        progress.finish(str(unit))

    def object_of(self, unit: Unit) -> Path:
        """Return where a unit's object lies: its name tells the command, the source and the headers."""
        digest = hashlib.sha256(repr([self.compiler.compiler_so_cxx, unit.flags, version("torch")]).encode())
        for path in sorted(unit.files):
            digest.update(path.read_bytes())
        return OBJECTS / f"{unit.source.parent.name}-{unit.source.stem}-{unit.isa}-{digest.hexdigest()[:16]}.o"

    def build_extension(self, ext: Extension) -> None:
        link = ["-dynamiclib"] if sys.platform == "darwin" else ["-shared", "-Wl,--as-needed", "-Wl,-z,defs"]
        if ext.name in MODULES:  # what they lack is in the interpreter
            link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
        # No rpath: torch is always loaded first, and the loader then finds its libraries by name.
        self.compiler.set_executables(linker_so_cxx=[*self.command, *link])
        library = Path(self.get_ext_fullpath(ext.name))
        objects = [self.objects[unit] for unit in units(ext.name)]
        if not all(path.exists() for path in objects):
            raise CompileError(f"{ext.name} was not compiled")
        try:
            self.compiler.link_shared_object(
                [str(path) for path in objects], str(library), libraries=LIBRARIES[ext.name], target_lang="c++"
            )
        except LinkError:
            if ext.optional:
                raise
            stop(COMPILE_FAILED.format(compiler=self.command[0]))
        if ext.name == LIBRARY:
            self.write_facts(library.with_name("_build.json"))

    def write_facts(self, path: Path) -> None:
        """Record how the library was built, for `evenkeel info`: name -> text."""
        facts = {
            "compiler": subprocess.check_output([*self.command, "--version"], text=True).splitlines()[0],
            "flags": " ".join(self.flags),
            **{f"flags {isa}": " ".join(ISAS[isa]) for isa in wanted_isas() if ISAS[isa]},
            "platform": sysconfig.get_platform(),
            "torch": version("torch"),
            "torch, oldest": TORCH_TARGET,
        }
        path.write_text(json.dumps(facts, indent=1) + "\n")

    def copy_extensions_to_source(self) -> None:
        super().copy_extensions_to_source()
        for built, in_source in self.facts_mapping().items():
            self.copy_file(built, in_source)

    def facts_mapping(self) -> dict[str, str]:
        """Return where each build record is written, and its place beside the sources."""
        build_py = self.get_finalized_command("build_py")
        libraries = [extension for extension in self.extensions if extension.name == LIBRARY]
        pairs = (self._get_inplace_equivalent(build_py, extension) for extension in libraries)
        return {
            str(Path(built).with_name("_build.json")): str(Path(in_source).with_name("_build.json"))
            for in_source, built in pairs
        }

    def get_outputs(self) -> list[str]:
        return [*super().get_outputs(), *self.facts_mapping()]

    def get_output_mapping(self) -> dict[str, str]:
        return super().get_output_mapping() | (self.facts_mapping() if self.inplace else {})


class PlatformWheel(bdist_wheel):
    """Tag the wheel for its platform only: the library depends on no Python version."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, tag = super().get_tag()
        if self.root_is_pure:
            return python, abi, tag
        return "py3", "none", tag.replace("universal2", platform.machine())


setup(ext_modules=extensions(), cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel})
