"""The machine code behind a benchmark of the GPU backend: just the kernels that its plans launch, on both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocattn.errors import RocattnError
from rocattn_profiling.gate.exact.audit import Kernels, compare_kernels
from rocattn_profiling.gate.measure import SIDES
from rocattn_profiling.gate.verdict import Cause, Location
from rocattn_profiling.kernels.shipped import Shipped
from rocattn_profiling.profile.collect import hardware

if TYPE_CHECKING:
    from rocattn_profiling.gate.exact.sides import Plan
    from rocattn_profiling.gate.sides import Context


def gpu_archs() -> list[str]:
    """Return the architectures of this machine's GPUs; none without one."""
    return list(dict.fromkeys(hardware.examine().archs))


def machine_code(context: Context, arch: str, old: Plan, new: Plan) -> list[Cause]:
    """Return what got worse in the machine code of two plans' kernels, what costs most first; else what differs at all.

    What got better is left out: it explains no regression.

    Args:
        context: With both trees.
        arch: The GPU.
        old: Base's plan.
        new: Head's plan.
    """
    base, head = (
        Kernels(context.trees[side], [
            Shipped(kernel=one.kernel, source=one.source, symbol=one.symbol, defines=one.defines, arch=arch)
            for one in plan.launches
        ])
        for side, plan in zip(SIDES, (old, new), strict=True)
    )  # fmt: skip
    try:
        compared = compare_kernels(base, head)
    except RocattnError as error:
        context.say(f"the machine code is not compared: {error}")
        return []
    findings = compared.comparison.findings
    worse = [one for one in findings if one.severity == "worse"]
    return [
        Cause(
            kind="machine code",
            text=one.sentence,
            about=one.metric,
            location=Location(path=f"kernels/{one.file}") if one.file else None,
        )
        for one in worse or findings
        if one.severity not in {"new", "missing", "better"}
    ]
