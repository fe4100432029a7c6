"""Make .venv with evenkeel in it, phase by phase, then run a command; what is done already is left out.

Usage: python tools/set_up.py report|dev|release [command ...]      (`make demo`, `make install` and others)

report: evenkeel and what its reports need; dev: the developer tools as well; release: what builds and checks wheels,
without evenkeel. Each phase leaves a stamp in .venv with the digest of what it was made from: an interrupted run goes
on where it was, and nothing is done twice. Standard library alone, for nothing is installed yet.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this is where older ones are refused
    sys.exit("evenkeel needs Python >= 3.11; choose one: make PYTHON=python3.11 ...")

import hashlib
import os
import pty
import select
import subprocess
import termios
import time
import tomllib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

VENV = Path(".venv")
PYTHON = str(VENV / "bin" / "python")
PIP = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--constraint", "constraints.txt"]
BUILD_REQUIRES = ["setuptools>=77", "torch", "numpy"]
BUILD_KERNELS = ["setup.py", "-q", "build_ext", "--inplace"]
NATIVE = ["env", "EVENKEEL_NATIVE=1"]  # this processor's instruction set alone
KERNELS = {"report": "one to five minutes", "dev": "three to ten minutes"}
EXTRAS = {"report": ("report", "dev"), "dev": ("dev",), "release": ("release", "dev")}  # what is wanted -> what serves
QUIET = 3  # seconds without output after which the seconds are shown
CLEAR = "\r\033[K"  # of a terminal's line
INTERRUPTED = "interrupted; the same command goes on from here"
NO_VENV = "no virtual environment could be made: on Debian and Ubuntu, apt install python3-venv"


@dataclass(frozen=True)
class Phase:
    """A step: its stamp, what is said of it, the files that it depends on, and its command."""

    name: str
    says: str
    inputs: list[str]
    command: list[str]

    @property
    def stamp(self) -> Path:
        """The file that says that the phase is done."""
        return VENV / f".evenkeel-{self.name}"

    def digest(self) -> str:
        """Return what the stamp holds when nothing has changed since."""
        digest = hashlib.sha256(repr(self.command).encode())
        for path in self.inputs:
            digest.update(Path(path).read_bytes())
        return digest.hexdigest()

    def is_done(self) -> bool:
        """Whether the phase ended well and nothing has changed since."""
        return self.stamp.exists() and self.stamp.read_text() == self.digest()


def phases(extra: str) -> list[Phase]:
    """Return the steps to an environment with an extra of pyproject.toml."""
    if extra == "release":
        project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
        install = [*PIP, *project["optional-dependencies"][extra]]
        return [Phase(extra, "what builds and checks wheels: half a minute", ["constraints.txt"], install)]
    build = ["pyproject.toml", "setup.py", "constraints.txt"]
    sources = sorted(str(path) for path in Path("csrc").rglob("*.*"))
    levels = NATIVE if extra == "report" else []
    kernels = [*levels, PYTHON, *BUILD_KERNELS]
    install = [*levels, *PIP, "--no-build-isolation", "--editable", f".[{extra}]"]
    rest = {"report": "what reports need: under a minute", "dev": "the developer tools: a minute or two"}
    return [
        Phase("torch", "torch: half a minute, and 200 MB to download", build[2:], [*PIP, *BUILD_REQUIRES]),
        Phase("kernels", f"the kernels: {KERNELS[extra]} on 2 cores", [*build, *sources], kernels),
        Phase(extra, f"evenkeel and {rest[extra]}", build, install),
    ]


def relay(command: list[str]) -> int:
    """Run a command in a terminal of its own and pass on what it writes; count seconds while it writes nothing."""
    if not sys.stdout.isatty():
        return subprocess.run(command, check=False).returncode
    ours, theirs = pty.openpty()
    with suppress(termios.error):
        termios.tcsetwinsize(theirs, termios.tcgetwinsize(1))
    started = last = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    is_counting, at_start = False, True
    try:
        while True:
            if select.select([ours], [], [], 1)[0]:
                try:
                    data = os.read(ours, 65536)
                except OSError:  # so Linux says that the other end is closed
                    data = b""
                if not data:
                    return process.wait()
                write(CLEAR.encode() + data if is_counting else data)
                is_counting, at_start, last = False, data.endswith((b"\n", b"\r")), time.monotonic()
            elif at_start and time.monotonic() - last > QUIET:
                write(f"{CLEAR}... {time.monotonic() - started:.0f} s\r".encode())
                is_counting = True
    finally:
        os.close(ours)
        if process.poll() is None:
            process.terminate()
            process.wait()


def run(command: list[str]) -> int:
    """Run a command in this terminal; Ctrl-C is the command's to answer."""
    process = subprocess.Popen(command)
    while True:
        with suppress(KeyboardInterrupt):
            return process.wait()


def write(data: bytes) -> None:
    """Write at once, with the bytes that move a terminal's cursor."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def make_environment() -> None:
    """Make .venv unless there is one whose pip answers; one that was left half-made is made again."""
    works = [PYTHON, "-c", "import pip"]
    if Path(PYTHON).exists() and subprocess.run(works, check=False, capture_output=True).returncode == 0:
        return
    say("environment .venv: a few seconds")
    if subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=False).returncode:
        sys.exit(NO_VENV)


def say(text: str) -> None:
    """Write the heading of a phase."""
    print(f"\n== {text}", flush=True)


def set_up(extra: str, times: dict[str, float]) -> None:
    """Run the phases that are not done, and note their seconds."""
    if any(all(phase.is_done() for phase in phases(each)) for each in EXTRAS[extra]):
        return
    started = time.monotonic()
    make_environment()
    times["environment"] = time.monotonic() - started
    for phase in phases(extra):
        if phase.is_done():
            continue
        started, digest = time.monotonic(), phase.digest()
        say(phase.says)
        if code := relay(phase.command):
            sys.exit(f"\n`{' '.join(phase.command)}` failed with exit status {code}; the same command tries again")
        phase.stamp.write_text(digest)
        times[phase.name] = time.monotonic() - started


def main() -> None:
    """Set up, run the command if there is one, and tell how long each took."""
    extra, *command = sys.argv[1:]
    times: dict[str, float] = {}
    try:
        set_up(extra, times)
        code = 0
        if command:
            started = time.monotonic()
            say(" ".join(command))
            code = run(command)
            times[Path(command[0]).name] = time.monotonic() - started
    except KeyboardInterrupt:
        sys.stderr.write(f"{CLEAR if sys.stderr.isatty() else ''}{INTERRUPTED}\n")
        sys.exit(130)
    if times and not code:
        total = f"total {sum(times.values()):.0f} s"
        say(" · ".join([*(f"{name} {seconds:.0f} s" for name, seconds in times.items()), total]))
    sys.exit(code)


if __name__ == "__main__":
    main()
