"""Small problems on an emulated GPU: from a plan to the verdict of rocattn's own error rule."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rocattn.backend import YES, Backend, Support
from rocattn.backends.cpu import CpuBackend
from rocattn.config import AttentionConfig
from rocattn.gpu.plan import plan
from rocattn_profiling.verify.execution import Spilled, compute, laid_out
from rocattn_profiling.workloads.accuracy import judge_gradients, judge_output
from rocattn_profiling.workloads.inputs import make_inputs

if TYPE_CHECKING:
    from machine import Machine

    from rocattn.backend import Array, Operands


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        name: As it is asked for.
        fields: Of its config.
        standard: Whether the standard path computes it.
    """

    name: str
    fields: dict[str, Any]
    standard: bool = False

    @property
    def config(self) -> AttentionConfig:
        """Its config: one head, 17 queries and 33 keys unless it says otherwise."""
        base = {"batch": 1, "num_heads": 1, "num_kv_heads": 1, "seq_q": 17, "seq_k": 33, "head_dim": 64}
        return AttentionConfig(**{"dtype": "float16", "return_lse": True, **base, **self.fields})


_BACK = {"direction": "backward", "return_lse": False}
PROBLEMS = [
    Problem("f16", {}),
    Problem("bf16", {"dtype": "bfloat16"}),
    Problem("f32", {"dtype": "float32"}),
    Problem("causal", {"causal": True, "seq_k": 65}),
    Problem("d128", {"head_dim": 128, "seq_k": 129}),
    Problem("d128-causal-bf16", {"head_dim": 128, "causal": True, "dtype": "bfloat16"}),
    Problem("d128-f32", {"head_dim": 128, "seq_k": 129, "dtype": "float32"}),
    Problem("d256", {"head_dim": 256}),
    Problem("d33", {"head_dim": 33, "head_dim_v": 20, "causal": True}),
    Problem("d80-96", {"head_dim": 80, "head_dim_v": 96, "num_heads": 2, "layout": "BSE"}),
    Problem("mask-bias-window", {"mask": "additive", "mask_shape": (1, 1, 17, 33), "alibi": True, "window": (9, 3)}),
    Problem("softcap-sinks", {"softcap": 20.0, "sinks": True, "causal": True, "num_heads": 2}),
    Problem("mask-bool", {"mask": "bool", "mask_shape": (1, 2, 17, 33), "num_heads": 2, "dtype": "bfloat16"}),
    Problem("f32-options", {"mask": "additive", "mask_shape": (1, 1, 17, 33), "softcap": 20.0, "dtype": "float32"}),
    Problem("decode", {"seq_q": 1, "seq_k": 600, "num_heads": 2, "head_dim": 128}),
    Problem(
        "decode-gqa",
        {"seq_q": 2, "seq_k": 700, "num_heads": 4, "head_dim": 64, "causal": True, "sinks": True, "dtype": "bfloat16"},
    ),
    Problem("decode-f32", {"seq_q": 1, "seq_k": 515, "num_heads": 2, "dtype": "float32"}),
    Problem("standard-f32", {"alibi": True, "dtype": "float32"}, standard=True),
    Problem("standard", {"causal": True, "mask": "bool", "mask_shape": (1, 1, 17, 33)}, standard=True),
    Problem("backward", dict(_BACK, causal=True)),
    Problem("backward-f32", dict(_BACK, dtype="float32")),
    Problem(
        "backward-options",
        dict(_BACK, mask="additive", mask_shape=(1, 1, 17, 33), alibi=True, softcap=20.0, num_heads=2),
    ),
    Problem("backward-d128", dict(_BACK, head_dim=128, dtype="bfloat16")),
    Problem("backward-d256", dict(_BACK, head_dim=256, head_dim_v=192, window=(9, 3))),
]


@dataclass
class Verdict:
    """How a problem came out.

    Attributes:
        problem: Its name.
        label: Its config in words.
        ratio: The error over the largest allowed one; inf where it could not be computed.
        fault: What went wrong; empty if it is right.
        instructions: Executed ones.
        seconds: Of the emulation.
    """

    problem: str
    label: str
    ratio: float
    fault: str = ""
    instructions: int = 0
    seconds: float = 0.0
    outputs: dict[str, Any] = field(default_factory=dict, repr=False)


class EmulatedGpu(Backend):
    """The kernels of a plan on an emulated GPU; a backward pass takes its forward pass from the CPU."""

    name = "emulator"

    def __init__(self, machine: Machine, problem: Problem) -> None:
        self._machine, self._problem = machine, problem

    def supports(self, config: AttentionConfig) -> Support:
        """Say yes: the plan says what cannot be computed."""
        del config
        return YES

    def workspace_bytes(self, config: AttentionConfig) -> int:
        """Return the bytes of the plan's workspaces."""
        return sum(plan(config, self._machine.arch).workspaces.values())

    def forward(self, config: AttentionConfig, operands: Operands, out: Array, lse: Array | None) -> None:
        """Write attention into ``out`` and ``lse``."""
        if self._problem.config.direction == "backward":
            CpuBackend().forward(config, operands, out, lse)
            return
        self._run(config, operands, {"out": out} | ({} if lse is None else {"lse": lse}))

    def backward(
        self, config: AttentionConfig, operands: Operands, dout: Array, out: Array, lse: Array,
        dq: Array, dk: Array, dv: Array,
    ) -> None:  # fmt: skip
        """Write the gradients into ``dq``, ``dk`` and ``dv``."""
        self._run(config, operands, {"dout": dout, "out": out, "lse": lse, "dq": dq, "dk": dk, "dv": dv})

    def _run(self, config: AttentionConfig, operands: Operands, more: dict[str, Array]) -> None:
        arrays = {"q": operands.q, "k": operands.k, "v": operands.v} | more
        strides = {name: _strides(array) for name, array in arrays.items() if name != "lse"}
        for name in ("mask", "alibi_slopes", "sinks"):
            if (array := getattr(operands, name)) is not None:
                arrays[name] = np.ascontiguousarray(array)
        mask_dtype = None if operands.mask is None else operands.mask.dtype.name
        made = plan(config, self._machine.arch, strides=strides, mask_dtype=mask_dtype,
                    use_flash_attention=not self._problem.standard)  # fmt: skip
        self._machine.run(made, {name: array.ctypes.data for name, array in arrays.items()})


def _strides(array: Array) -> tuple[int, ...]:
    return tuple(step // array.itemsize for step in array.strides)


def judge(machine: Machine, problem: Problem, storage: str) -> Verdict:
    """Compute a problem and compare it with float64.

    Args:
        machine: What computes it.
        problem: The problem.
        storage: "plain", or "moat": the arrays lie in NaN, at odd addresses, and nothing else may be written.
    """
    config, start, before = problem.config, time.perf_counter(), machine.executed.total()
    inputs = laid_out(make_inputs(config), storage)
    try:
        outputs = compute(config, inputs, EmulatedGpu(machine, problem), storage=storage)
    except Spilled as error:
        return Verdict(problem.name, config.label, np.inf, str(error))
    except RuntimeError as error:  # the emulator's word for an instruction that it does not know
        return Verdict(problem.name, config.label, np.inf, str(error).partition("\n")[0])
    done, seconds = machine.executed.total() - before, time.perf_counter() - start
    if config.direction == "backward":
        judged = judge_gradients(config, inputs, outputs["dq"], outputs["dk"], outputs["dv"])
    else:
        judged = judge_output(config, inputs, outputs["out"], outputs.get("lse"))
    worst = max(judged.verdicts, key=lambda verdict: verdict.ratio)
    fault = "" if worst.ratio <= 1 else f"{worst.what} is off by {worst.max_abs_error:.2g}"
    return Verdict(problem.name, config.label, worst.ratio, fault, done, seconds, outputs)
