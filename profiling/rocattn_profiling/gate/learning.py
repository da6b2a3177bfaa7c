"""A run of the gate and the record of noise: where it is, what the run begins with, and what it adds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rocattn.errors import RocattnError
from rocattn_profiling.asv.store import machine_folder
from rocattn_profiling.base.files import write_text
from rocattn_profiling.gate.rule import noise_record
from rocattn_profiling.gate.rule.noise_record import Key, Known, Measurement, NoiseSource
from rocattn_profiling.measure.machine import this_machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocattn_profiling.asv.launch import Case, Request
    from rocattn_profiling.gate.measure import SessionResult
    from rocattn_profiling.gate.sides import Context


@dataclass(frozen=True, slots=True)
class Record:
    """The record that a run reads and, if asked to, adds to.

    Attributes:
        context: What is compared, and the options of the run.
        request: How launches sample.
    """

    context: Context
    request: Request

    @property
    def path(self) -> Path:
        """The file: the one that was named, else the machine's own beside its results."""
        if self.context.options.noise_file:
            return Path(self.context.options.noise_file).expanduser()
        return self.context.results / machine_folder(this_machine()) / noise_record.FILE

    def known(self, cases: Sequence[Case]) -> Known:
        """Return what is known of the cases' noise; never raises for what is in the file."""
        path = None if self.context.options.no_noise else self.path
        pythons = {_short(facts.python) for facts in self.context.facts.values()}
        if path is not None and len(pythons) > 1:
            return Known(source=NoiseSource(why_not="not known beforehand for two versions of Python at once"))
        return noise_record.known(path, this_machine(), [self._key(case) for case in cases])

    def learn(self, cases: Sequence[Case], measured: SessionResult) -> str:
        """Add the session's launches of identical code; return one line that says what was done, or why not."""
        if measured.decision.invalid:
            return f"noise: nothing learned from a session that does not count: {measured.decision.invalid}"
        path = self.path
        try:
            count = noise_record.append(path, this_machine(), self._measurements(cases, measured))
            if count and not self.context.options.noise_file:
                _keep_out_of_git(path)
        except RocattnError as error:
            return f"noise: nothing learned: {error}"
        if not count:
            return "noise: nothing learned: no benchmark has launches that differ"
        return f"noise: learned from {count} benchmark{'' if count == 1 else 's'}: {path}"

    def _measurements(self, cases: Sequence[Case], measured: SessionResult) -> Iterator[Measurement]:
        keys = {case.label: self._key(case) for case in cases}
        for pair in measured.pairs:
            sides = {"base": pair.a, "head": pair.b}
            launches = [launch for side in self.context.options.unchanged_sides() for launch in sides[side].launches]
            yield Measurement(keys[pair.id], launches)

    def _key(self, case: Case) -> Key:
        return Key(
            label=case.label,
            version=case.benchmark.version,
            python=_short(self.context.facts["base"].python),
            sample_ns=self.request.sample_ns,
            budget_ns=self.request.budget_ns,
        )


def _keep_out_of_git(path: Path) -> None:
    """Make a record beside results ignore itself: it must not make the project's tree count as changed."""
    ignore = path.with_name(".gitignore")
    if not ignore.exists():
        write_text(ignore, f"/{path.name}\n/{ignore.name}\n")


def _short(version: str) -> str:
    """Return major and minor version: a patch release of Python changes no noise."""
    return ".".join(version.split(".")[:2])
