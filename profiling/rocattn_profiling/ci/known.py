"""A known program to profile and a known kernel to trace on any GPU, and the audit's numbers next to measured times.

``python -m rocattn_profiling.ci.known`` is the program: a causal prompt and a decode step in float16, three times each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocattn.backends.gpu import GpuBackend
from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError

if TYPE_CHECKING:
    from rocattn_profiling.kernels.facts import KernelFacts
    from rocattn_profiling.measure.records import Record

KERNEL = "flash_attention_causal"
"""The traced kernel: that of the program's prompt."""
FOLDERS = ("profile", "trace")
"""The step's collections: all counters, and the thread trace."""
_FEW = "occupancy"  # counters next to the trace, to distinguish it from another launch's
# Batch, tokens and heads of the prompt. A trace covers one compute unit, so blocks must reach all of them; the
# stand-in needs minutes for that.
_PROMPT, _OF_STAND_IN = (4, 2048, 16), (1, 512, 8)
_TIMES = 3


def commands(out: Path, arch: str) -> list[list[str]]:
    """Return the rocattn commands that profile the program and trace its kernel; only the second may be rejected.

    Args:
        out: The step's folder.
        arch: The GPU's architecture; "" for the machine's only one.
    """
    named = ["--arch", arch] if arch else []
    program = ["--", sys.executable, "-m", __name__]
    profile, trace = (str(out / name) for name in FOLDERS)
    return [
        ["profile", "--out", profile, *named, *program],
        ["profile", "--thread-trace", "--metrics", _FEW, "--kernel", KERNEL, "--out", trace, *named, *program],
    ]


def beside(records: Iterable[Record], audited: Iterable[KernelFacts]) -> list[dict[str, Any]]:
    """Return a row for each kernel of each problem timed on a GPU: its times, and the audit's numbers.

    Args:
        records: Records of bench.
        audited: The audit's kernels. A kernel not among them has a row that states so, without numbers.
    """
    from rocattn.gpu.plan import plan
    from rocattn_profiling.kernels.shipped import Shipped
    from rocattn_profiling.measure.stats import summarize

    known = {(facts.arch, facts.name, facts.choices): facts for facts in audited}
    rows = []
    for record in records:
        if record.backend != GpuBackend.name or not record.launches:
            continue
        took = summarize(record)
        timed = {
            "problem": record.label, "gpu": record.machine.gpu, "arch": record.machine.gfx, "time_ns": took.p50_ns,
            "tflops": took.tflops, "host_ns": [launch.host_ns for launch in record.launches],
            "kernels_ns": [launch.kernels_ns for launch in record.launches],
        }  # fmt: skip
        try:
            launches = plan(AttentionConfig.from_dict(record.config), record.machine.gfx).launches
        except RocattnError as error:
            rows.append(timed | {"kernel": "", "not_audited": str(error)})
            continue
        for launch in launches:
            of = Shipped(
                kernel=launch.kernel, source=launch.source, symbol=launch.symbol, defines=launch.defines,
                arch=record.machine.gfx,
            )  # fmt: skip
            facts = known.get((of.arch, of.name, of.choices))
            numbers = _numbers(facts) if facts else {"not_audited": "the audit of this job has no such kernel"}
            rows.append(timed | {"kernel": of.name} | numbers)
    return rows


def _numbers(facts: KernelFacts) -> dict[str, Any]:
    loop, waves = facts.loop, facts.occupancy
    return {
        "vgprs": facts.vgprs, "vgpr_spills": facts.spills.vgprs, "lds_bytes": facts.lds_bytes,
        "waves_per_simd": waves.waves_per_simd if waves else None,
        "loop_issue_cycles": loop.issue_cycles if loop else None,
        "issue_bound_pct": loop.issue_bound_pct if loop else None,
    }  # fmt: skip


def main() -> None:
    """Compute the prompt and the decode step on the GPU."""
    import numpy as np

    import rocattn

    rng = np.random.default_rng(0)

    def arrays(*shapes: tuple[int, ...]) -> list[Any]:
        return [rng.standard_normal(shape, np.float32).astype(np.float16) for shape in shapes]

    backend = GpuBackend.name
    batch, tokens, heads = _OF_STAND_IN if rocattn.BACKENDS.get(backend).is_stand_in else _PROMPT
    prompt = arrays((batch, tokens, heads, 128), *[(batch, tokens, heads // 4, 128)] * 2)
    step = arrays((1, 1, 32, 128), *[(1, 4096, 8, 128)] * 2)
    for _ in range(_TIMES):
        rocattn.attention(*prompt, causal=True, backend=backend)
        rocattn.attention(*step, backend=backend)


if __name__ == "__main__":
    main()
