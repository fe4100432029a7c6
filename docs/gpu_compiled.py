"""A variant of a GPU kernel, compiled ahead of time for a target that need not be there, and what it takes."""

import re
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from evenkeel.kernels.triton._launch import Launch, warps_of

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_89": GPUTarget("cuda", 89, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
BYTES = {"u8": 1, "i16": 2, "bf16": 2, "fp16": 2, "fp32": 4, "i64": 8, "fp64": 8}
FLOATS = ("eps", "floor", "weight_offset", "momentum", "momentum_rest")
ALWAYS_SHORT = ("factor", "shift")  # integers of 32 bits, however large the others are


@dataclass(frozen=True)
class Variant:
    """A kernel, the types of its pointers (None: left out) and its compile-time arguments.

    Attributes:
        name: for people.
        kernel: the jitted function.
        launch: block, rows and warps.
        pointers: argument -> element type, None for one that is left out.
        constants: argument -> value.
        moved: bytes read and written for each element of a row; 0 where that is not the measure.
        inner: elements from the start of a row, or of what lies innermost, to the next; 0 without such.
        again: bytes that a program reads once more for each element, after it has been through its row.
        others: bytes that other programs read once more.
        ahead: whether it reads ahead, past the first-level cache, which then has nothing to give again.
        wide: the integers that have 64 bits.
        programs: of the call that it is taken from; 0 where a table stands for many.
        elements: of that call.
    """

    name: str
    kernel: Any
    launch: Launch
    pointers: dict[str, str | None]
    constants: dict[str, Any] = field(repr=False)
    moved: float = 0.0
    inner: int = 0
    again: float = 0.0
    others: float = 0.0
    ahead: bool = False
    wide: tuple[str, ...] = ()
    programs: int = 0
    elements: int = 0

    @property
    def in_vectors(self) -> bool:
        """Whether everything can move in whole vectors."""
        return self.inner > 0 and self.inner % 16 == 0

    @property
    def writes(self) -> bool:
        """Whether it writes a tensor of the size of what it reads."""
        return any(self.pointers.get(name) for name in ("y", "dx"))

    @property
    def counts(self) -> list[str]:
        """The integers that it is given."""
        known = self.pointers.keys() | self.constants.keys() | set(FLOATS)
        return [name for name in self.kernel.arg_names if name not in known]

    def named(self, label: str, left_out: tuple[str, ...] = (), **constants: Any) -> "Variant":
        """The same under a longer name, without some pointers and with other constants."""
        pointers = self.pointers | dict.fromkeys(left_out)
        return replace(self, name=f"{self.name} {label}", pointers=pointers, constants=self.constants | constants)


@dataclass(frozen=True)
class Resources:
    """What a compiled variant takes: registers of a thread, spills, bytes of shared memory; and its code."""

    registers: int
    spilled: int
    shared: int
    assembly: str = field(repr=False)
    layouts: str = field(repr=False)


def compiled(variant: Variant, target: GPUTarget) -> Resources:
    """Compile a variant for a target that need not be there."""
    names = variant.kernel.arg_names
    signature, constants, attributes = {}, {}, {}
    for index, name in enumerate(names):
        kind = variant.pointers.get(name)
        if kind is not None:
            signature[name] = f"*{kind}"
            attributes[(index,)] = [["tt.divisibility", 16]]
        elif name in variant.pointers or name in variant.constants:
            signature[name] = "constexpr"
            constants[(index,)] = variant.constants.get(name)
        else:
            wide = name in variant.wide and name not in ALWAYS_SHORT
            signature[name] = "fp32" if name in FLOATS else "i64" if wide else "i32"
    source = ASTSource(variant.kernel, signature, constants, attributes)
    chosen = {"num_warps": warps_of(variant.launch.warps, target.warp_size), "enable_fp_fusion": False}
    kernel = triton.compile(source, target=target, options=chosen)
    layouts = re.sub(r'ttg\.target = "[^"]*"|loc\(.*?\)|^#loc.*$', "", kernel.asm["ttgir"], flags=re.MULTILINE)
    if target.backend == "hip":
        return from_amd(kernel.asm["amdgcn"], kernel.metadata.shared, layouts)
    return from_cubin(kernel, layouts)


def from_cubin(kernel: Any, layouts: str) -> Resources:
    """What cuobjdump, which Triton brings, says of the machine code."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])

        def told(option: str) -> str:
            return subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout

        found = {name: int(value) for name, value in re.findall(r"\b([A-Z]+):(\d+)", told("-res-usage"))}
        # of a stack the assembler sometimes reserves 8 bytes that no instruction touches: the instructions count
        spills = len(re.findall(r"\b(?:LDL|STL)\b", told("-sass"))) if found["STACK"] else 0
    return Resources(found["REG"], spills + found["LOCAL"], kernel.metadata.shared, kernel.asm["ptx"], layouts)


def from_amd(assembly: str, shared: int, layouts: str) -> Resources:
    """What the assembler's notes say."""
    notes = {name: int(value) for name, value in re.findall(r"\.(\w+):\s+(\d+)", assembly)}
    # scalar registers that are too many are kept in lanes of a vector register, not in memory
    spilled = notes["vgpr_spill_count"] + notes["private_segment_fixed_size"]
    return Resources(notes["vgpr_count"], spilled, shared, assembly, layouts)
