"""What a launch plan is made of: pure data, with the JSON form that tools outside this project read too.

A plan names every kernel to run in order, with its grid, block and arguments; nothing in it depends on a device's
memory. The runtime executes plans; dry runs, audits and emulators read the same ones.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

ScalarType = Literal["u32", "i32", "u64", "i64", "f32", "bytes"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named array that the caller brings.

    Attributes:
        shape: Extents; q, k, v, out and their gradients are [B, H, S, D] views, whatever the layout in memory.
        strides: Elements from index to index, axis by axis.
        dtype: numpy's name ("float16", "bfloat16", "float32", "bool").
        role: "input" or "output".
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    role: Literal["input", "output"]


@dataclass(frozen=True, slots=True)
class BufferArg:
    """The address of a buffer of the plan."""

    name: str
    kind: Literal["buffer"] = "buffer"


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A value: a number of a fixed type, or a struct's raw bytes in hex (type "bytes"). A null pointer is u64 0."""

    name: str
    type: ScalarType
    value: float | str
    kind: Literal["scalar"] = "scalar"


@dataclass(frozen=True, slots=True)
class WorkspaceArg:
    """The address of device memory that lives for the plan; launches share it by name. Its content starts undefined."""

    name: str
    bytes: int
    kind: Literal["workspace"] = "workspace"


Arg = BufferArg | ScalarArg | WorkspaceArg


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch.

    Attributes:
        kernel: The kernel's name, as profilers and reports show it.
        source: Its file below `kernel_root`.
        defines: Compile-time macros.
        symbol: The function in the code object.
        grid: Blocks along x, y, z.
        block: Threads along x, y, z.
        args: Arguments in kernel order.
        dynamic_lds_bytes: LDS asked for at launch, beside what the kernel declares.
    """

    kernel: str
    source: str
    defines: dict[str, str | int]
    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    args: tuple[Arg, ...]
    dynamic_lds_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All launches of one attention problem on one architecture.

    Attributes:
        arch: Target without features: "gfx1100".
        config: The problem, as `AttentionConfig.as_dict` gives it.
        path: "flash" or "standard".
        reason: Why not the flash path; empty for it.
        buffers: By name.
        launches: In order, each after the one before.
    """

    arch: str
    config: dict[str, Any]
    path: Literal["flash", "standard"]
    reason: str
    buffers: dict[str, Buffer]
    launches: tuple[Launch, ...]
    workspaces: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)
