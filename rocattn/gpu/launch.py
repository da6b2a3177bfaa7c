"""Launch plans: pure data, with a JSON form that external tools also read.

A plan lists the kernels to run in order, with grid, block and arguments; nothing in it depends on a device's memory.
The runtime executes plans; dry runs, audits and emulators read the same ones.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rocattn.errors import ConfigError

ScalarType = Literal["u32", "i32", "u64", "i64", "f32", "bytes"]
Size3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A named array that the caller passes.

    Attributes:
        shape: Extents; q, k, v, out and their gradients are [B, H, S, D] views, whatever the memory layout.
        strides: Strides of the axes in elements.
        dtype: numpy's name ("float16", "bfloat16", "float32", "bool", "int32").
        role: "input" or "output".
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    role: Literal["input", "output"]


@dataclass(frozen=True, slots=True)
class BufferArg:
    """The address of a buffer of the plan, or of the element ``offset_bytes`` after its first."""

    name: str
    kind: Literal["buffer"] = "buffer"
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A value: a number with a fixed type, or a struct's raw bytes in hex (type "bytes"). A null pointer is u64 0."""

    name: str
    type: ScalarType
    value: float | str
    kind: Literal["scalar"] = "scalar"


@dataclass(frozen=True, slots=True)
class WorkspaceArg:
    """The address of device memory that exists during the plan, shared by name; initially undefined."""

    name: str
    bytes: int
    kind: Literal["workspace"] = "workspace"


Arg = BufferArg | ScalarArg | WorkspaceArg


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """One kernel launch.

    Attributes:
        kernel: The kernel's name, as profilers and reports show it.
        source: Its file below `kernel_root`.
        defines: Compile-time macros.
        symbol: The function in the code object.
        grid: Blocks along x, y, z.
        block: Threads along x, y, z.
        args: Arguments in kernel order.
        dynamic_lds_bytes: LDS requested at launch, in addition to what the kernel declares.
        code_object: File name of its machine code, "<stem of the source>.<hash of all it is made from>.hsaco"; filled
            in by `rocattn.gpu.plan.plan`.
        slots: Blocks assumed to fit on the GPU at once; 0 if the grid does not depend on it.
    """

    kernel: str
    source: str
    defines: dict[str, str | int]
    symbol: str
    grid: Size3
    block: Size3
    args: tuple[Arg, ...]
    dynamic_lds_bytes: int = 0
    code_object: str = ""
    slots: int = 0

    @property
    def fill(self) -> float:
        """The fraction of slots occupied by a block, over all rounds; 0 without slots."""
        blocks = self.grid[0] * self.grid[1] * self.grid[2]
        return blocks / (-(-blocks // self.slots) * self.slots) if self.slots and blocks else 0.0


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All launches of one attention problem on one architecture.

    Attributes:
        arch: Target without features: "gfx1100".
        config: The problem, as in `AttentionConfig.to_dict`.
        path: "flash" or "standard".
        reason: Why not the flash path; empty for "flash".
        buffers: Buffers by name.
        launches: Launches in order, each after the previous one. Empty if there is nothing to compute.
        workspaces: Bytes of device memory by name, the maximum over the launches.
        compute_units: The compute units that it was made for.
    """

    arch: str
    config: dict[str, Any]
    path: Literal["flash", "standard"]
    reason: str
    buffers: dict[str, Buffer]
    launches: tuple[KernelLaunch, ...]
    workspaces: dict[str, int] = field(default_factory=dict)
    compute_units: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> LaunchPlan:
        """Rebuild a plan from its JSON form.

        Raises:
            ConfigError: When the values are not a launch plan; the message names the invalid part.
        """
        try:
            buffers = {name: _buffer(entry) for name, entry in values["buffers"].items()}
            launches = tuple(_launch(entry) for entry in values["launches"])
            rest = {name: values.get(name, default) for name, default in (("path", "standard"), ("reason", ""))}
            workspaces = {name: int(size) for name, size in values.get("workspaces", {}).items()}
            plan = cls(str(values["arch"]), dict(values["config"]), **rest, buffers=buffers, launches=launches,
                       workspaces=workspaces, compute_units=int(values.get("compute_units", 0)))  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigError(f"this is not a launch plan from `rocattn plan --json`: {what}") from error
        for launch in plan.launches:
            for arg in launch.args:
                if arg.kind == "buffer" and arg.name not in buffers:
                    raise ConfigError(f"{launch.kernel} takes a buffer {arg.name!r} that the plan does not have")
        return plan


def _buffer(entry: dict[str, Any]) -> Buffer:
    shape, strides = (tuple(int(x) for x in entry[name]) for name in ("shape", "strides"))
    return Buffer(shape, strides, str(entry["dtype"]), entry["role"])


def _launch(entry: dict[str, Any]) -> KernelLaunch:
    return KernelLaunch(
        str(entry["kernel"]), str(entry["source"]), dict(entry["defines"]), str(entry["symbol"]),
        _size3(entry["grid"]), _size3(entry["block"]), tuple(_arg(arg) for arg in entry["args"]),
        int(entry.get("dynamic_lds_bytes", 0)), str(entry.get("code_object", "")), int(entry.get("slots", 0)),
    )  # fmt: skip


def _size3(entry: list[int]) -> Size3:
    x, y, z = (int(value) for value in entry)
    return x, y, z


def _arg(entry: dict[str, Any]) -> Arg:
    kind = entry["kind"]
    if kind == "buffer":
        return BufferArg(str(entry["name"]), offset_bytes=int(entry.get("offset_bytes", 0)))
    if kind == "workspace":
        return WorkspaceArg(str(entry["name"]), int(entry["bytes"]))
    if kind != "scalar" or entry["type"] not in {"u32", "i32", "u64", "i64", "f32", "bytes"}:
        raise ValueError(f"an argument of kind {kind!r} and type {entry.get('type')!r}")
    return ScalarArg(str(entry["name"]), entry["type"], entry["value"])
