"""The wheel as a user gets it: built from a copy of the sources, installed where no compiler is, and used there."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import evenkeel

ROOT = Path(__file__).parents[1]
OBJECTS = Path("build") / "native"
NOT_SOURCES = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "runs", "*.so", "_build.json", "*.egg-info", "__pycache__", ".*_cache"
)
NORMALIZE = """
import evenkeel, torch
x = torch.randn(3, 7, dtype=torch.float64)
y = evenkeel.functional.layer_norm(x, (7,), backend="cpu")
print(evenkeel.__file__)
print((y - evenkeel.functional.layer_norm_reference(x, (7,))).abs().max().item() < 1e-12)
"""

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def run(command: list[object], path: str | None = None, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command with its output captured, optionally with another PATH and nothing that hints at a compiler."""
    environment = {k: v for k, v in os.environ.items() if k not in ("CXX", "CXXFLAGS", "PYTHONPATH")}
    environment |= {} if path is None else {"PATH": path}
    environment |= options.pop("env", {})  # type: ignore[arg-type]
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [str(word) for word in command], env=environment, capture_output=True, text=True, **options
    )


def build_wheel(sources: Path, path: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel into sources/dist with this environment's torch and setuptools."""
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-index", "--no-build-isolation", "-w"]
    return run([*command, "dist"], path, cwd=sources, env=env)


def copy_sources(target: Path) -> Path:
    return Path(shutil.copytree(ROOT, target / "evenkeel", ignore=NOT_SOURCES))


def install(wheel: Path, target: Path) -> Path:
    """Install a wheel into a fresh environment that borrows this one's packages; return its folder of programs."""
    venv.create(target, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(target), "platbase": str(target)}))
    # A folder named in a .pth file is searched last, and its own .pth files (an editable evenkeel) are not read.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", target / "bin" / "python", "install", "--quiet"]
    result = run([*pip, "--no-deps", "--no-index", "--ignore-installed", wheel])
    assert result.returncode == 0, result.stderr
    return target / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = copy_sources(tmp_path_factory.mktemp("native"))
    if (ROOT / OBJECTS).exists():  # what the editable install compiled by the same command of the same sources
        shutil.copytree(ROOT / OBJECTS, sources / OBJECTS)
    result = build_wheel(sources)
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = (sources / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def reference_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = copy_sources(tmp_path_factory.mktemp("reference"))
    result = build_wheel(sources, path="", EVENKEEL_REFERENCE_ONLY="1")
    assert result.returncode == 0, result.stdout + result.stderr
    (built,) = (sources / "dist").iterdir()
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="module")
def library(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract("evenkeel/kernels/_native.so", tmp_path_factory.mktemp("library")))


def test_wheel_serves_every_python_of_its_platform(wheel: Path) -> None:
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    tag = f"py3-none-{platform}"
    assert wheel.name == f"evenkeel-{evenkeel.__version__}-{tag}.whl"
    with zipfile.ZipFile(wheel) as archive:
        facts = archive.read(f"evenkeel-{evenkeel.__version__}.dist-info/WHEEL").decode()
    assert f"Tag: {tag}\n" in facts
    assert "Root-Is-Purelib: false\n" in facts


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "evenkeel").rglob("*.py")}
    assets = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").glob("evenkeel/*/assets/*.*")}
    autograd = f"_autograd{sysconfig.get_config_var('EXT_SUFFIX')}"
    kernels = {f"evenkeel/kernels/{name}" for name in ("_native.so", "_direct_calls.abi3.so", autograd, "_build.json")}
    built = {"evenkeel/py.typed"} | kernels
    assert assets
    assert {name for name in names if not name.startswith("evenkeel-")} == package | assets | built
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_library_needs_torch_and_no_python(library: Path) -> None:
    dynamic = run(["readelf", "--dynamic", "--wide", library]).stdout
    symbols = run(["readelf", "--dyn-syms", "--wide", library]).stdout
    needed = set(re.findall(r"NEEDED.*\[(.+?)\]", dynamic))
    assert "libtorch_cpu.so" in needed
    assert not [name for name in needed if "python" in name]
    assert not re.search(r"RPATH|RUNPATH", dynamic)
    assert "aoti_torch" in symbols
    assert not re.search(r"\b_?Py[A-Z_]", symbols)


def test_library_names_no_folder_of_the_build(library: Path) -> None:
    assert str(Path(torch.__file__).parent).encode() not in library.read_bytes()


def test_wheel_works_without_a_compiler(programs: Path) -> None:
    result = run([programs / "python", "-c", NORMALIZE], path=str(programs), cwd=programs)
    assert result.returncode == 0, result.stderr
    location, agrees = result.stdout.splitlines()
    assert location.startswith(str(programs.parent))
    assert agrees == "True"


def test_nodes_built_for_another_torch_are_not_loaded(programs: Path) -> None:
    program = """
import sys, torch
torch.__version__ = "2.11.0"
import evenkeel
x = torch.randn(3, 7, requires_grad=True)
evenkeel.functional.layer_norm(x, (7,), backend="cpu").norm().backward()
print(x.grad is not None, "evenkeel.kernels._autograd" in sys.modules)
"""
    for change, loaded in (("", "True"), (program.splitlines()[2], "False")):
        text = program.replace('torch.__version__ = "2.11.0"', change)
        result = run([programs / "python", "-c", text], cwd=programs)
        assert result.stdout == f"True {loaded}\n", result.stderr


def test_info_of_the_wheel_tells_how_it_was_built(programs: Path) -> None:
    result = run([programs / "evenkeel", "info", "--json"], path=str(programs), cwd=programs)
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["backends"]["cpu"].startswith("available")
    assert facts["compiled"]["torch"] == torch.__version__
    assert "-std=c++20" in facts["compiled"]["flags"]
    assert facts["compiled"]["simd level"]
    assert facts["compiled"]["small tensors"] == "past torch's dispatcher"
    assert facts["compiled"]["their gradients"] == "through C++"


def test_reference_only_wheel_is_pure_and_says_so(reference_wheel: Path, tmp_path: Path) -> None:
    assert reference_wheel.name == f"evenkeel-{evenkeel.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(reference_wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith((".so", "_build.json"))]
    programs = install(reference_wheel, tmp_path)
    result = run([programs / "python", "-c", NORMALIZE], cwd=programs)
    assert "BackendError: backend='cpu' cannot run this call" in result.stderr
    facts = json.loads(run([programs / "evenkeel", "info", "--json"], cwd=programs).stdout)
    assert not facts["backends"]["cpu"].startswith("available")
    assert facts["backends"]["reference"].startswith("available")


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    result = build_wheel(copy_sources(tmp_path), path=str(tmp_path))
    assert result.returncode != 0
    output = result.stdout + result.stderr
    assert "no C++ compiler found" in output
    assert "apt install g++" in output
    assert "EVENKEEL_REFERENCE_ONLY=1" in output
    assert "Traceback" not in output


def test_a_failing_compiler_is_named(tmp_path: Path) -> None:
    compiler = tmp_path / "old-compiler"
    compiler.write_text("#!/bin/sh\necho unrecognized option -std=c++20 >&2\nexit 1\n")
    compiler.chmod(0o755)
    result = build_wheel(copy_sources(tmp_path), CXX=str(compiler))
    output = result.stdout + result.stderr
    assert result.returncode != 0
    assert "unrecognized option -std=c++20" in output
    assert "could not build csrc/" in output
    assert "Traceback" not in output


def test_source_distribution_holds_what_the_build_needs(tmp_path: Path) -> None:
    sources = copy_sources(tmp_path)
    result = run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", "dist", "."], cwd=sources)
    assert result.returncode == 0, result.stdout + result.stderr
    (archive,) = (sources / "dist").glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    expected = {path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*.*")}
    expected |= {Path("constraints.txt"), Path("Makefile"), Path("tools/set_up.py"), Path(".github/workflows/test.yml")}
    assert expected <= {path.relative_to(unpacked) for path in unpacked.rglob("*")}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere there is one instruction set")
def test_a_native_library_has_the_kernels_of_this_processor_alone(tmp_path: Path) -> None:
    build = [sys.executable, "setup.py", "-q", "build_ext"]
    folders = ["--build-lib", tmp_path, "--build-temp", tmp_path / "temp"]
    result = run([*build, *folders], cwd=ROOT, env={"EVENKEEL_NATIVE": "1"})
    assert result.returncode == 0, result.stderr
    kernels = tmp_path / "evenkeel" / "kernels"
    program = f"import torch; torch.ops.load_library({str(kernels / '_native.so')!r})"
    program += "; print(torch.ops.evenkeel.simd_level())"
    asked = [run([sys.executable, "-c", program], env={"EVENKEEL_SIMD": level}) for level in ("avx2", "avx512")]
    (level,) = {answer.stdout.strip() for answer in asked}
    assert level == torch.ops.evenkeel.simd_level()
    facts = json.loads((kernels / "_build.json").read_text())
    assert [name for name in facts if name.startswith("flags ")] == [f"flags {level}"]


def test_without_python_headers_only_the_library_is_built() -> None:
    program = """
import sysconfig, setuptools
from distutils.core import run_setup
found = sysconfig.get_path
sysconfig.get_path = lambda name, *args, **more: "missing" if name == "include" else found(name, *args, **more)
print([extension.name for extension in run_setup("setup.py", stop_after="init").ext_modules])
"""
    result = run([sys.executable, "-W", "ignore", "-c", program], cwd=ROOT)
    assert result.stdout == "['evenkeel.kernels._native']\n", result.stderr
    assert "Python.h is missing" in result.stderr
    assert "python3-dev" in result.stderr


def test_package_data_declares_types() -> None:
    assert (Path(evenkeel.__file__).parent / "py.typed").exists()
