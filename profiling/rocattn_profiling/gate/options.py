"""What the caller of the gate chose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.gate.rule.policy import FULL_LOOKS, MIN_EFFECT, QUICK_LOOKS, Policy

if TYPE_CHECKING:
    from rocattn_profiling.gate.measure import SideName


class OptionError(RocattnError):
    """Raised when options contradict each other."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What to compare and how.

    Attributes:
        base: A revision; "" for the parent of head (of a dirty tree: HEAD).
        head: A revision or "WORKTREE"; "" for HEAD, if the tree is clean.
        base_python, head_python: Pythons of existing environments, instead of revisions.
        python: The interpreter to build revisions with; "" for the running one.
        suite: A benchmark folder or an asv.conf.json, relative to the repository; "" for ``asv.conf.json``.
        patterns: Regular expressions; a benchmark is measured if one finds its label.
        quick: Fewer looks, shorter launches, and only classes named ``Quick…`` where the suite has any.
        rounds: Most rounds; 0 for the usual.
        min_effect: The tolerance; see `rocattn_profiling.gate.rule.policy.Policy`.
        seed: Of every order; 0 to derive it from revisions and settings.
        fresh: Forget an unfinished run.
        exact: Compare exact metrics too.
        noise_file: The record of earlier noise; "" for the machine's own, beside its results.
        no_noise: Neither read nor keep one.
        learn: Keep this session's launches of identical code in the record.
    """

    base: str = ""
    head: str = ""
    base_python: str = ""
    head_python: str = ""
    python: str = ""
    suite: str = ""
    patterns: tuple[str, ...] = ()
    quick: bool = False
    rounds: int = 0
    min_effect: float = MIN_EFFECT
    seed: int = 0
    fresh: bool = False
    exact: bool = True
    noise_file: str = ""
    no_noise: bool = False
    learn: bool = False

    def check(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            OptionError: When existing environments and revisions are mixed, or one side is missing.
        """
        if (self.base_python or self.head_python) and (self.base or self.head):
            raise OptionError("--base and --head are revisions, --base-python and --head-python environments: not both")
        if self.python and self.base_python:
            raise OptionError("--python says what revisions are built with: existing environments have their own")
        if bool(self.base_python) != bool(self.head_python):
            missing = "--head-python" if self.base_python else "--base-python"
            raise OptionError(f"{missing} is missing: two existing environments are compared, one a side")
        if self.no_noise and (self.noise_file or self.learn):
            raise OptionError("--no-noise leaves the record of noise alone: it goes with neither --noise nor --learn")

    def policy(self) -> Policy:
        """Return the rule these options ask for."""
        looks: tuple[int, ...] = QUICK_LOOKS if self.quick else FULL_LOOKS
        if self.rounds:
            looks = (*(look for look in looks if look < self.rounds), self.rounds)
        return Policy(min_effect=self.min_effect, looks=looks)

    def unchanged_sides(self) -> tuple[SideName, ...]:
        """Return the sides whose launches are of one code: base is itself, whatever head changes."""
        return ("base",)
