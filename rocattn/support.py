"""The answer to whether something can compute a config: a backend's, and of the kernels that it may choose from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Support:
    """Yes, or no with its reason."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


YES = Support(ok=True)
