# ruff: noqa: D102, D103, ARG002 - the names say it, and a backend must take what it does not use
"""Backends that misbehave in one way each, for benching: registered when this module is imported, as a user's would be.

Each computes through "cpu" and then does its worst, told apart by what no well-behaved backend would do.
"""

import os
import signal
import sys
import threading

from rocattn.backend import YES, Backend, Support
from rocattn.backends import BACKENDS


class Odd(Backend):
    """Computes as "cpu" does, then calls ``twist`` on what it is about to return."""

    def __init__(self, name, twist=lambda _out: None, *, workspace=0, support=YES):
        self.name, self._twist, self._workspace, self._support = name, twist, workspace, support
        self.priority = -100

    def supports(self, config):
        return self._support

    def workspace_bytes(self, config):
        return self._workspace

    def forward(self, config, operands, out, lse):
        if self.name != "odd-idle":
            BACKENDS.get("cpu").forward(config, operands, out, lse)
        self._twist(out)

        if self.name == "odd-writer":
            operands.q[...] *= 0.5

    def backward(self, config, operands, dout, out, lse, dq, dk, dv):
        BACKENDS.get("cpu").backward(config, operands, dout, out, lse, dq, dk, dv)
        self._twist(dk)


def crash(_out):
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(_out):
    sys.stderr.write("the last words\n")
    sys.stderr.flush()
    os._exit(7)


def chatter(_out):
    print('{"series": [], "failed": "not a result"}')
    os.write(1, b'{"start_ns": 1}\n')
    os.write(2, b"noise\n")


def scale(out):
    out *= 1.01


def spoil_last_row(out):
    out[..., -1, :] = 0


def hang(_out):
    threading.Event().wait()


def fail(_out):
    raise ArithmeticError("the sum\nis odd")


_calls = []


def fail_late(_out):
    _calls.append(1)
    if len(_calls) > 15:
        raise MemoryError


for odd in (
    Odd("odd-good"),
    Odd("odd-crash", crash),
    Odd("odd-leave", leave),
    Odd("odd-chatter", chatter),
    Odd("odd-scaled", scale),
    Odd("odd-row", spoil_last_row),
    Odd("odd-idle"),
    Odd("odd-writer"),
    Odd("odd-hang", hang),
    Odd("odd-raise", fail),
    Odd("odd-late", fail_late),
    Odd("odd-large", workspace=137_400_000_000_000),
    Odd("odd-unable", support=Support(ok=False, reason="needs a moon")),
):
    BACKENDS.register(odd)
