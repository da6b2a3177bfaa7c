"""What ``rocattn doctor`` finds: rows, the backends' answers, and their JSON form."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

import rocattn
from rocattn.gpu.probe import GpuProbe  # noqa: TC001 - msgspec reads the annotations
from rocattn.toolchain import Compiler  # noqa: TC001 - the same

SCHEMA = 1

Status = Literal["ok", "warning", "missing"]


class Check(msgspec.Struct, frozen=True):
    """One row: a thing, whether it is there, what it is, and what to do if it is not right."""

    group: str
    name: str
    status: Status
    detail: str
    remedy: str = ""


class BackendCheck(msgspec.Struct, frozen=True):
    """A backend's answers: whether it is available here and supports a plain float32 config, and its reason if not.

    ``is_stand_in`` says that it runs on something in place of the hardware it is for.
    """

    name: str
    available: bool
    supports: bool
    works: bool
    reason: str = ""
    is_stand_in: bool = False


class Report(msgspec.Struct, frozen=True):
    """Everything that was found; ``ok`` says that attention works on the CPU."""

    ok: bool
    checks: list[Check]
    compilers: list[Compiler]
    gpu: GpuProbe
    backends: list[BackendCheck]

    def to_builtins(self) -> dict[str, Any]:
        """Return the JSON form: these fields, schema and version, and which compiler is chosen for what."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        gpu, host = chosen_compilers(self.compilers)
        for compiler, row in zip(self.compilers, values["compilers"], strict=True):
            row["chosen"], row["chosen_host"] = compiler is gpu, compiler is host
        return {"schema": SCHEMA, "rocattn": rocattn.__version__} | values


def chosen_compilers(compilers: list[Compiler]) -> tuple[Compiler | None, Compiler | None]:
    """Return the first compiler for GPU kernels and the first for this CPU."""
    gpu = next((compiler for compiler in compilers if compiler.usable), None)
    return gpu, next((compiler for compiler in compilers if not compiler.host_reason), None)
