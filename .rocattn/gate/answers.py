"""Asks each revision's code, in its environment, what it plans, allocates and selects."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rocattn.errors import RocattnError, complaint
from rocattn_profiling.base.process import StartError, run_group
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.model import SIDES, SideName
from rocattn_profiling.workloads.grids import GRIDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rocattn.config import AttentionConfig

PROBE = Path(__file__).with_name("probe.py")
TIMEOUT_S = 300.0


class ProbeError(RocattnError):
    """Raised when a revision does not answer; the message is one line."""


class PlannedLaunch(msgspec.Struct, frozen=True):
    """One launch of a plan; see `rocattn.gpu.launch.KernelLaunch`."""

    kernel: str
    source: str
    symbol: str
    defines: dict[str, str | int]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_lds_bytes: int = 0


class PlanAnswer(msgspec.Struct, frozen=True):
    """What one side launches for a problem on an architecture.

    Attributes:
        path, reason, launches, workspaces: See `rocattn.gpu.launch.LaunchPlan`.
        hash: Hash of everything that is launched, with its arguments.
        problem: Why there is no plan; "" if there is.
        absent: Why this revision makes no plans at all.
    """

    path: str = ""
    reason: str = ""
    launches: tuple[PlannedLaunch, ...] = ()
    workspaces: dict[str, int] = {}
    hash: str = ""
    problem: str = ""
    absent: str = ""


class BackendAnswer(msgspec.Struct, frozen=True):
    """A backend's answer to a problem.

    Attributes:
        available, supports: Whether it works on this machine, and whether it computes the problem.
        priority: The able backend with the highest priority is selected.
        stand_in: Whether it runs on a stand-in for its hardware.
        why: Its reason if it is not available or does not support the problem.
        workspace_bytes: Host memory that it allocates, in bytes; None if unknown.
    """

    available: bool
    supports: bool
    priority: int
    stand_in: bool = False
    why: str = ""
    workspace_bytes: int | None = None

    @property
    def able(self) -> bool:
        """Whether it can be selected."""
        return self.available and self.supports


class Answers(msgspec.Struct, frozen=True):
    """One side's answers to one problem; ``unknown`` if its code has no such problem."""

    selected: str = ""
    why: str = ""
    backends: dict[str, BackendAnswer] = {}
    plans: dict[str, PlanAnswer] = {}
    unknown: str = ""


class _Answer(msgspec.Struct, frozen=True):
    problems: dict[str, Answers] = {}
    absent: str = ""


def usual_problems() -> dict[str, AttentionConfig]:
    """Return the fixed problems by label: the quick grids, also in the GPU's dtypes, and each option once."""
    problems = [config for name in ("inference", "gemma", "decode") for config in GRIDS[name].configs(quick=True)]
    problems += [config.replace(dtype="float16") for config in problems]
    some = GRIDS["inference"].configs(quick=True)
    problems += [
        config.replace(direction="backward", dtype=dtype) for config in some for dtype in ("float32", "float16")
    ]
    prompt = max(some, key=lambda config: (config.seq_q, config.causal)).replace(dtype="float16")
    problems += [prompt.replace(dtype="bfloat16"), prompt.replace(layout="BHSD"), prompt.replace(layout="BSE")]
    options: tuple[dict[str, Any], ...] = (
        {"mask": "bool", "mask_shape": (1, 1, prompt.seq_q, prompt.seq_k), "causal": False},
        {"mask": "additive", "mask_shape": prompt.scores_shape, "causal": False},
        {"window": (128, 0)}, {"softcap": 30.0}, {"alibi": True}, {"sinks": True}, {"return_lse": True},
        {"head_dim": 80, "head_dim_v": 80}, {"head_dim": 192, "head_dim_v": 128}, {"num_kv_heads": 2},
    )  # fmt: skip
    problems += [prompt.replace(**changed) for changed in options]
    problems += [prompt.replace(**changed, direction="backward") for changed in options[:3]]
    return {config.label: config for config in problems}


def ready(context: Context) -> None:
    """Compile both sides' CPU kernels, so that a benchmark's time limit does not include the compiler.

    Compiling takes a minute or more on a busy machine. Base's kernels are usually in the cache already, so head would
    exceed a time limit just because it is new.
    """
    some = GRIDS["inference"].configs(quick=True)[0]
    context.say("compiling the CPU kernels of both sides, unless they are cached")
    for side in SIDES:
        # If a side cannot answer, its benchmarks fail with the reason.
        with contextlib.suppress(ProbeError):
            ask(context, side, {some.label: some}, ())


def ask(
    context: Context, side: SideName, problems: Mapping[str, AttentionConfig], archs: Sequence[str]
) -> dict[str, Answers]:
    """Ask one side's code about problems.

    Raises:
        ProbeError: It has no rocattn, or does not answer.
    """
    launcher = context.launchers[side]
    with tempfile.TemporaryDirectory(prefix="probe-", dir=launcher.scratch) as folder:
        answer, request = Path(folder, "answer.json"), Path(folder, "request.json")
        asked = {key: config.to_dict() for key, config in problems.items()}
        request.write_bytes(msgspec.json.encode({"problems": asked, "archs": list(archs), "answer": str(answer)}))
        # A copy: Python puts the script's folder on the path, and Python 3.10 has no option to prevent that.
        command = [launcher.python, "-s", shutil.copy(PROBE, folder), str(request)]
        log = Path(folder, "log")
        with log.open("wb") as output:
            try:
                ended = run_group(
                    command, cwd=Path(folder), env=launcher.environment, stdout=output, stderr=output,
                    timeout_s=TIMEOUT_S, grace_s=0.0,
                )  # fmt: skip
            except StartError as error:
                raise ProbeError(f"{side} does not report its plans: {error}") from error
        if ended.status is None:
            raise ProbeError(f"{side} did not report its plans within {TIMEOUT_S:.0f} s")
        if not answer.exists():
            raise ProbeError(f"{side} does not report its plans: {complaint(log.read_text(errors='replace'))}")
        try:
            said = msgspec.json.decode(answer.read_bytes(), type=_Answer)
        except msgspec.DecodeError as error:
            raise ProbeError(f"{side}'s plans cannot be read: {error}") from error
    if said.absent:
        raise ProbeError(f"{side} has no rocattn: {said.absent}")
    return said.problems
