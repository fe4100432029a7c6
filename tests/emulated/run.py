"""Build the kernels for 64-bit Arm, run them in an emulator, and compare every bit with this processor's.

Usage: python tests/emulated/run.py      (`make arm`)

Needs an x86-64 processor with AVX2, g++, torch's headers, and the cross compiler and emulator of `PACKAGES`. Everything
of csrc/ that knows no Python is compiled for Arm; driver.cpp calls the kernels without torch. Bits of NaN are not
compared: the sign of a new one is the processor's.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import numpy as np

ROOT = Path(__file__).parents[2]
DRIVER = Path(__file__).with_name("driver.cpp")
BUILD = ROOT / "build" / "emulated"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
PACKAGES = "g++-aarch64-linux-gnu and qemu-user"
# target -> compiler, ISA and flags after setup.py's own. The native build shows that optimization changes no bit.
TARGETS = {"arm": ([COMPILER], "baseline", []), "native": (["g++"], "avx2", ["-O1"])}
LINK = ["-static", "-pthread", "-Wl,--unresolved-symbols=ignore-all"]  # torch's functions, which nothing here calls


def load_setup():
    """The names of setup.py, without running its setup."""
    names = {"__name__": "setup"}
    with patch("setuptools.setup"):
        exec(compile((ROOT / "setup.py").read_text(), "setup.py", "exec"), names)
    return names


def find_missing():
    """What cannot be run here and why, in one line, or nothing."""
    if platform.machine() != "x86_64" or not sys.platform.startswith("linux"):
        return "`make arm` compares with the kernels of an x86-64 Linux: this is neither"
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        return "`make arm` compares with the AVX2 kernels, which this processor cannot run"
    missing = [name for name in ("g++", COMPILER, EMULATOR) if shutil.which(name) is None]
    return f"{' and '.join(missing)} not found: on Debian and Ubuntu, apt install {PACKAGES}" if missing else ""


def jobs_of(setup, target):
    """(object, command) of each unit of the library and of the driver; torch/ is only compiled."""
    compiler, isa, more = TARGETS[target]
    include = ["-isystem", str(setup["torch_folder"]() / "include"), "-iquote", str(ROOT / "csrc")]
    flags = [*setup["FLAGS"], *more]
    kernel_flags = [f"-DEVENKEEL_ISA={isa}", *setup["ISAS"].get(isa, [])]
    jobs = {}
    for source in sorted({unit.source for unit in setup["units"](setup["LIBRARY"])} | {DRIVER}):
        own = kernel_flags if source.stem.endswith("_kernels") else []
        command = [*compiler, *flags, *include, *own, "-c", str(source)]
        digest = hashlib.sha256(json.dumps(command).encode())
        headers = set((ROOT / "csrc").rglob("*.h")) if source == DRIVER else setup["headers_of"](source)
        for path in [source, *sorted(headers)]:
            digest.update(path.read_bytes())
        jobs[BUILD / target / f"{source.parent.name}-{source.stem}-{digest.hexdigest()[:16]}.o"] = command
    return jobs


def compile_one(job):
    path, command = job
    if path.exists():
        return
    fresh = path.with_suffix(".new")
    subprocess.run([*command, "-o", fresh], check=True)
    fresh.rename(path)
    sys.stderr.write(f"compiled {path.parent.name} {command[-1]}\n")


def build(setup):
    """Compile and link both; return target -> program."""
    jobs = {target: jobs_of(setup, target) for target in TARGETS}
    for target in TARGETS:
        (BUILD / target).mkdir(parents=True, exist_ok=True)
    every = [job for each in jobs.values() for job in each.items()]
    with ThreadPoolExecutor(setup["count_jobs"]()) as pool:
        list(pool.map(compile_one, sorted(every, key=lambda job: -Path(job[1][-1]).stat().st_size)))
    programs = {}
    for target, (compiler, *_) in TARGETS.items():
        programs[target] = BUILD / target / "driver"
        objects = [path for path in jobs[target] if not path.name.startswith("torch-")]
        subprocess.run([*compiler, *objects, *LINK, "-o", programs[target]], check=True)
    return programs


def results(command, level):
    """(name, dtype, numbers) of each result that a driver writes; its SIMD level is asserted."""
    environment = {**os.environ, "EVENKEEL_SIMD": level}
    run = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert run.stderr.decode().strip() == level, run.stderr
    at, found = 0, []
    while at < len(run.stdout):
        end = run.stdout.index(b"\n", at)
        name, dtype, count = re.fullmatch(r"(.+) (\w+) (\d+)", run.stdout[at:end].decode()).groups()
        stored = np.dtype("uint16" if dtype == "bfloat16" else dtype)
        found.append((name, dtype, np.frombuffer(run.stdout, stored, int(count), end + 1)))
        at = end + 1 + int(count) * stored.itemsize
    return found


def without_nan(dtype, numbers):
    """The bits of numbers, those of any NaN as one."""
    bits = numbers.view(f"uint{8 * numbers.itemsize}")
    is_nan = (bits & 0x7FFF) > 0x7F80 if dtype == "bfloat16" else numbers != numbers
    return np.where(is_nan, np.iinfo(bits.dtype).max, bits)


def main():
    if missing := find_missing():
        sys.exit(missing)
    os.chdir(ROOT)
    programs = build(load_setup())
    native, arm = results([programs["native"]], "avx2"), results([EMULATOR, programs["arm"]], "baseline")
    assert [each[:2] for each in native] == [each[:2] for each in arm]
    assert len(native) > 1000
    differing = [
        f"{name} {dtype}: {np.count_nonzero(different)} of {len(ours)} differ"
        for (name, dtype, ours), (*_, theirs) in zip(native, arm, strict=True)
        if (different := without_nan(dtype, ours) != without_nan(dtype, theirs)).any()
    ]
    numbers = sum(len(each[2]) for each in native)
    summary = f"{len(native)} results, {numbers} numbers: {len(differing)} results differ in a bit"
    sys.stdout.write("\n".join([*differing, summary, ""]))
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()
