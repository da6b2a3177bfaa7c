"""The gate's plug-in for this repository: compares plans, kernels and backends, and names them as causes.

Nothing here is timed, so nothing is left to chance: a change with worse consequences is a regression the first time.
A regression whose pin is updated in the same commit counts as accepted in review. After an improvement the pin should
be tightened, or a later regression could hide in the slack.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn.gpu.arch import TESTED
from rocattn.toolchain.compilers import compiler_environment
from rocattn.toolchain.inputs import inputs_of
from rocattn_profiling.asv.series import readable
from rocattn_profiling.base.reasons import Reason
from rocattn_profiling.gate.context import Context
from rocattn_profiling.gate.model import SIDES, Cause, Entry, SideName
from rocattn_profiling.gate.plugin import Plugin as Base
from rocattn_profiling.kernels import sentences
from rocattn_profiling.kernels.shipped import Shipped
from rocattn_profiling.profile.collect import hardware
from rocattn_profiling.workloads.grids import GRIDS

from .answers import Answers, ProbeError, ask, ready, usual_problems
from .machine_code import KERNELS, compare_machine_code, error_at, failed_entry, machine_code_causes
from .plans import FLASH_PATH, compare, geometry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from rocattn.config import AttentionConfig
    from rocattn_profiling.asv.launch import Case

PLANS_FROM = ("rocattn", KERNELS)
KERNELS_FROM = (*PLANS_FROM, "profiling/rocattn_profiling/kernels")
EXACT = frozenset({"audit", "plan", "workspace"})
_GPU_MODULE = "bench_gpu."  # its benchmarks have no backend parameter
_IN_GPU_MODULE = re.compile(r"bench_gpu(?![?*{])(?:[^|()]|\([^()]*\))*")
_DTYPES = ("float32", "float16", "bfloat16")
_CPU_KERNELS = f"{KERNELS}/cpu"
_CPU_SOURCES = {"forward": ("forward.cpp", "decode.cpp"), "backward": ("backward.cpp",)}
_PLAN_SOURCES = ("rocattn/gpu/plan.py", "rocattn/gpu/flash.py", "rocattn/registry.py", "rocattn/backends/__init__.py")
_MOST_FILES = 6
ADVICE = sentences.ADVICE | {
    FLASH_PATH: "`can_use_flash_attention` in rocattn/gpu/flash.py gives the reason: widen what it allows, or accept "
    "the change with a waiver"
}
"""`Cause.about` -> advice."""


def has_plans(tree: Path) -> bool:
    """Whether a checkout is new enough to have plans and kernels."""
    return (tree / "rocattn" / "gpu" / "plan.py").is_file() and (tree / KERNELS / "hip").is_dir()


class Plugin(Base):
    """Compares machine code, plans, workspaces and backend choices; names these and their sources as causes."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._configs = _configs()
        self._named: set[str] = set()
        self._audits: dict[tuple[str, str], Entry] = {}
        self._answers: dict[SideName, dict[str, Answers]] = {}

    @classmethod
    def unmeasurable(cls, patterns: Sequence[str]) -> Reason[str] | None:
        """Return why nothing can be measured: the patterns match only GPU benchmarks, and there is no GPU."""
        if not patterns or not all(map(_IN_GPU_MODULE.fullmatch, patterns)):
            return None
        machine = hardware.examine()
        if machine.gpus or machine.kfd != "missing":
            return None
        text = "the benchmarks of bench_gpu need an AMD GPU, and this machine has none (no /dev/kfd)"
        return Reason("no_gpu", text, "machine code is compared without one: rocattn kernels audit --against HEAD")

    def prepare(self, cases: Sequence[Case]) -> None:
        """Compile both sides' CPU kernels if any benchmark runs them."""
        self._named = {readable(value) for case in cases for value in case.parameters.values()}
        if self.context.trees and not compiler_environment():
            self.context.note(
                "there is no compiler for the CPU kernels: cpu-flash was not measured (rocattn doctor says why)"
            )
        if "cpu-flash" in self._named:
            ready(self.context)

    def entries(self) -> list[Entry]:
        """Compare everything that needs no clock; omissions are noted in the context."""
        context = self.context
        base, head = (has_plans(context.trees[side]) for side in SIDES)
        if not head:
            lost = RocattnError("head no longer has plans and kernels; base has")
            return [failed_entry("plan", "plans and kernels", lost)]
        if not base:
            _left_out(context, "exact metrics", "base is too old to have plans and kernels")
            return []
        entries = [
            msgspec.structs.replace(entry, causes=_advised(entry.causes)) if entry.status == "regression" else entry
            for entry in [*_compare_plans(context), *_compare_kernels(context, self._sources_of)]
        ]
        self._audits = {(entry.arch, entry.label): entry for entry in entries if entry.metric == "audit"}
        return entries

    def causes(self, entry: Entry) -> list[Cause]:
        """Name a backend that declines, changed launches and machine code, and the sources of what a benchmark runs."""
        if entry.metric in EXACT:
            return self._sources_of_exact(entry)
        audit = self._audits.get((_parameter(entry, "arch"), _parameter(entry, "kernel")))
        if audit is not None:  # a machine-code number tracked as a benchmark
            return audit.causes
        config, backend = self._configs.get(_parameter(entry, "config")), _backend(entry)
        if not backend or config is None:
            direction = "backward" if "backward" in entry.name else "forward"
            return self._cpu_sources(direction) if backend == "cpu-flash" else []
        self._ask(config)
        base, head = (self._answers[side].get(config.label) for side in SIDES)
        causes = _refusal(config, backend, base, head)
        if backend == "gpu":
            causes += self._launches(base, head)
        elif backend == "cpu-flash" and not _declines(backend, head):
            causes += self._cpu_sources(config.direction)
        return _advised(causes)

    def _ask(self, config: AttentionConfig) -> None:
        """Ask both sides about a problem; the first time, about all problems of the run's benchmarks."""
        if self._answers and config.label in self._answers["head"]:
            return
        named = self._configs.keys() & (set() if self._answers else self._named)
        problems = {label: self._configs[label] for label in sorted({*named, config.label})}
        for side in SIDES:
            try:
                answers = ask(self.context, side, problems, gpu_archs())
            except ProbeError as error:
                self.context.say(f"the backends' own reasons are left out: {error}")
                answers = {}
            self._answers[side] = {label: Answers() for label in problems} | self._answers.get(side, {}) | answers

    def _launches(self, base: Answers | None, head: Answers | None) -> list[Cause]:
        """Name the differences in what both sides launch on this machine's GPUs, in its machine code and sources."""
        causes: list[Cause] = []
        code: list[Cause] = []
        sources: set[str] = set()
        for arch in gpu_archs():
            old, new = (answers.plans.get(arch) if answers else None for answers in (base, head))
            if old is None or new is None or not old.launches or not new.launches:
                continue
            if old.path != new.path:
                text = f"On {arch}, the {old.path} path gives way to the {new.path} path: {new.reason}"
                causes.append(Cause(kind="backend", text=text, about=FLASH_PATH if old.path == "flash" else ""))
            elif old.hash != new.hash:
                causes.append(Cause(kind="launch", text=f"On {arch}, {geometry(old, new)}"))
            if self.context.trees:
                code += machine_code_causes(self.context, arch, old, new)
                sources |= {path for launch in new.launches for path in self._kernel_sources(launch.source)}
                sources |= self._planners() if old.hash != new.hash else set()
        return [*causes, *self._changed(sources), *code]

    def _sources_of(self, kernel: Shipped) -> list[Cause]:
        """Name the changed files that a kernel is compiled from."""
        return self._changed(self._kernel_sources(kernel.source))

    def _sources_of_exact(self, entry: Entry) -> list[Cause]:
        """Name the changed files behind an exact number: a kernel's sources, or the code that plans and selects."""
        if entry.metric == "audit":  # its causes begin with the kernel's own sources (`_sources_of`)
            near, far = set(), self._planners()
        else:
            # The label is "select cpu-flash" or "workspace gpu": put the backend's file first.
            near = {f"rocattn/backends/{entry.label.rpartition(' ')[2].replace('-', '_')}.py"}
            far = {*_PLAN_SOURCES, *self._planners()}
        return [*self._changed(near), *self._changed(far - near)][:_MOST_FILES]

    def _cpu_sources(self, direction: str) -> list[Cause]:
        """Name the changed sources of the CPU kernels, those that a direction is compiled from first."""
        if not self.context.trees:
            return []
        inside: set[str] = set()
        for name in _CPU_SOURCES[direction]:
            inside |= _inputs(self.context.trees["head"] / _CPU_KERNELS, name, _CPU_KERNELS)
        others = {path for path in self.context.changes if path.startswith(f"{_CPU_KERNELS}/")}
        return [*self._changed(inside), *self._changed(others - inside)]

    def _kernel_sources(self, source: str) -> set[str]:
        """Return the paths in head that a GPU kernel is compiled from."""
        if not self.context.trees:
            return set()
        return _inputs(self.context.trees["head"] / KERNELS, source, f"{KERNELS}/{source.rpartition('/')[0]}")

    def _planners(self) -> set[str]:
        """Return the changed paths that choose launches and tiles."""
        return {path for path in self.context.changes if path.startswith("rocattn/gpu/")}

    def _changed(self, paths: Collection[str]) -> list[Cause]:
        return [change.cause() for path, change in self.context.changes.items() if path in paths]


def _inputs(folder: Path, source: str, beside: str) -> set[str]:
    """Return the paths of a source and its headers; empty if they cannot be determined.

    Args:
        folder: The kernels' folder, which contains ``include``.
        source: Path of the source relative to it.
        beside: Path in the repository of the files that the source includes from its own folder.
    """
    try:
        names = [name for name, _ in inputs_of(folder / "include", folder / source)]
    except RocattnError:
        return set()
    top = beside if beside == _CPU_KERNELS else KERNELS
    return {f"{top}/{name}" if name.startswith("include/") else f"{beside}/{name}" for name in names}


def _compare_plans(context: Context) -> list[Entry]:
    """Compare plans, workspaces and choices, unless all of their sources are byte-identical."""
    if not _differ(context, PLANS_FROM):
        reason = "the library and its kernels are base's, byte for byte"
        return [
            Entry(label=f"all {name}", name=name, metric=metric, status="pass", reason=reason)
            for name, metric in (("plans and backend choices", "plan"), ("workspaces", "workspace"))
        ]
    problems = usual_problems()
    try:
        base = ask(context, "base", problems, TESTED)
    except ProbeError as error:
        _left_out(context, "plans and workspaces", str(error))
        return []
    try:
        head = ask(context, "head", problems, TESTED)
    except ProbeError as error:
        return [failed_entry("plan", "plans and backend choices", error)]
    return compare(base, head, TESTED)


def _compare_kernels(context: Context, sources_of: Callable[[Shipped], list[Cause]]) -> list[Entry]:
    """Compare machine code, unless all of its sources are byte-identical."""
    if _differ(context, KERNELS_FROM):
        return compare_machine_code(context, sources_of)
    reason = "the kernels and the code that chooses them are base's, byte for byte"
    return [Entry(label="all kernels", name="kernels", metric="audit", status="pass", reason=reason)]


def _left_out(context: Context, what: str, why: str) -> None:
    context.leave_out(what, Reason("unread", why), f"{what} are left out: {why}")


def _differ(context: Context, folders: Sequence[str]) -> bool:
    """Whether any file in the given folders differs between the sides."""
    base, head = ([_digest(context.trees[side] / folder) for folder in folders] for side in SIDES)
    return base != head


def _digest(folder: Path) -> str:
    """Return a hash of the names and contents of a folder's files, except Python's caches."""
    total = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(folder).as_posix()}\0{content}\0".encode())
    return total.hexdigest()


def _refusal(config: AttentionConfig, backend: str, base: Answers | None, head: Answers | None) -> list[Cause]:
    """Name a backend that computes a problem on base but not on head, with its reason."""
    before = base.backends.get(backend) if base else None
    if base is None or head is None or before is None or not before.able:
        return []
    after = head.backends.get(backend)
    if after is not None and after.able:
        return []
    reason = f"it says: {after.why}" if after else "it is no longer registered"
    selected = f"; {head.selected or 'no backend'} is selected instead" if base.selected == backend else ""
    text = f"{backend} computes {config.label} on base and not on head: {reason}{selected}"
    return [Cause(kind="backend", text=text, location=error_at(text))]


def _declines(backend: str, head: Answers | None) -> bool:
    """Whether head's backend works on this machine but declines the problem before running any kernel."""
    answer = head.backends.get(backend) if head else None
    return answer is not None and answer.available and not answer.supports


def gpu_archs() -> list[str]:
    """Return the architectures of this machine's GPUs; empty without a GPU."""
    return list(dict.fromkeys(hardware.examine().archs))


def _advised(causes: Sequence[Cause]) -> list[Cause]:
    """Return the causes with advice, each piece only once."""
    return list(_with_advice(causes))


def _with_advice(causes: Sequence[Cause]) -> Iterator[Cause]:
    given: set[str] = set()
    for cause in causes:
        advice = ADVICE.get(cause.about, "")
        yield msgspec.structs.replace(cause, text=f"{cause.text}; {advice}") if advice not in {"", *given} else cause
        given.add(advice)


def _configs() -> dict[str, AttentionConfig]:
    """Return every problem of the grids by label, in both directions and every dtype."""
    configs = {}
    for grid in GRIDS.values():
        for direction in grid.directions:
            for config in grid.configs(direction=direction):
                typed = [config.replace(dtype=dtype) for dtype in _DTYPES]
                configs.update({problem.label: problem for problem in typed})
    return configs


def _backend(entry: Entry) -> str:
    """Return the backend of a benchmark; "" if it names none."""
    return "gpu" if entry.name.startswith(_GPU_MODULE) else _parameter(entry, "backend")


def _parameter(entry: Entry, name: str) -> str:
    """Return the value of a parameter that is a string; "" if there is none."""
    return readable(entry.params.get(name, ""))
