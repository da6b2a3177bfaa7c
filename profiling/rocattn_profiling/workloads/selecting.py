"""What `BackendRegistry.select` chooses, as one more thing to measure: attention as a user without a name gets it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from rocattn.backends import BACKENDS
from rocattn.registry import YES, Backend, Support

if TYPE_CHECKING:
    from pathlib import Path

    from rocattn.config import AttentionConfig
    from rocattn.layouts import Operands
    from rocattn.registry import Array

SELECT = "select"
"""Its name beside those of backends; a measured call then names none."""


class SelectBackend(Backend):
    """Whatever the registry chooses for a config."""

    name = SELECT
    priority = -(10**6)  # never chosen itself: cpu supports everything

    def supports(self, config: AttentionConfig) -> Support:  # noqa: ARG002 - every config is supported by some backend
        """Say yes."""
        return YES

    def workspace_bytes(self, config: AttentionConfig) -> int:
        """Return the chosen backend's workspace."""
        return BACKENDS.select(config).workspace_bytes(config)

    def forward(self, config: AttentionConfig, operands: Operands, out: Array, lse: Array | None) -> None:
        """Run the chosen backend."""
        BACKENDS.select(config).forward(config, operands, out, lse)

    def backward(
        self, config: AttentionConfig, operands: Operands, dout: Array, out: Array, lse: Array,
        dq: Array, dk: Array, dv: Array,
    ) -> None:  # fmt: skip
        """Run the chosen backend."""
        BACKENDS.select(config).backward(config, operands, dout, out, lse, dq, dk, dv)


def measure_selection(path: Path, *, force: bool) -> str:
    """Use thresholds in this process and register `SELECT`; returns a hash of the file.

    Raises:
        ThresholdsError: When the file cannot be read, or is of another machine or thread count.
    """
    BACKENDS.use_thresholds(path, force=force)
    BACKENDS.register(SelectBackend())
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
