"""Backends for testing `rocattn verify`: the reference, with a change of choice before or after it computes."""

import numpy as np

from rocattn.backends.cpu import CpuBackend
from rocattn_profiling.verify.symptoms import fitting


def likeliest(config, inputs, out, lse, *, what="out"):
    """The mistake that fits an output best, in words; "" if none does or none can be tried."""
    fits = fitting(config, inputs, out, lse, what=what)
    return fits[0].words if fits else ""


class Changed(CpuBackend):
    """Computes as "cpu" does; ``before(config, operands)`` may replace both, ``after(out, lse)`` may spoil both."""

    name = "changed"

    def __init__(self, *, before=None, after=None, gradients=None):
        self._before, self._after, self._gradients = before, after, gradients

    def forward(self, config, operands, out, lse):
        """Compute the output."""
        if self._before:
            config, operands = self._before(config, operands)
        super().forward(config, operands, out, lse)
        if self._after:
            with np.errstate(all="ignore"):
                self._after(out, lse)

    def backward(self, config, operands, dout, out, lse, dq, dk, dv):
        """Compute the gradients."""
        super().backward(config, operands, dout, out, lse, dq, dk, dv)
        if self._gradients:
            self._gradients(dq, dk, dv)
