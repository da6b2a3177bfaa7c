"""Why an entry is worse: what differs on its path, the likeliest cause first, and a paragraph that one can act on.

Nothing here decides. What is said was looked up: the backend's own answer, both sides' plans and machine code, the
functions that the added time is in, the changed lines of files that ran, the packages that were loaded. Where nothing
differs, that is said, too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.gate.exact.audit import error_at
from rocattn_profiling.gate.exact.plans import FLASH_PATH, geometry
from rocattn_profiling.gate.exact.sides import ProbeError, ask
from rocattn_profiling.gate.explain import counters as explain_counters
from rocattn_profiling.gate.explain import trace as explain_trace
from rocattn_profiling.gate.explain.gpu import gpu_archs, machine_code
from rocattn_profiling.gate.explain.paths import Paths
from rocattn_profiling.gate.formats.render import quantity
from rocattn_profiling.gate.measure import SIDES
from rocattn_profiling.gate.verdict import Cause, Entry, badness
from rocattn_profiling.workloads.grids import GRIDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rocattn.config import AttentionConfig
    from rocattn_profiling.gate.exact.sides import Answers, Plan
    from rocattn_profiling.gate.explain.paths import OnPath
    from rocattn_profiling.gate.explain.trace import Move
    from rocattn_profiling.gate.sides import Context

EXACT = {"audit", "plan", "workspace"}
WORSE = {"regression", "failed", "missing"}
_DTYPES = ("float32", "float16", "bfloat16")
_GPU_MODULE = "bench_gpu."  # its benchmarks name no backend
_MOST_FILES = 6
_NAMED = 2  # causes that the paragraph itself names
_PLAN_SOURCES = ("rocattn/gpu/plan.py", "rocattn/gpu/flash.py", "rocattn/registry.py", "rocattn/backends/__init__.py")
_OCCUPANCY = "Take back registers or LDS until the next step of occupancy (`rocattn kernels occupancy`)."
ADVICE = {
    "spills": "Fewer registers avoid it: smaller QUERY_FRAGMENTS or KEYS_PER_TILE in rocattn/gpu/tiles.py, a lower "
    "MIN_WAVES, or values that live over a shorter range.",
    "scratch": "Index arrays by constants only, and have every function that takes one inlined.",
    "occupancy": _OCCUPANCY,
    "blocks": _OCCUPANCY,
    "issue cycles": "`rocattn kernels audit --lines` shows the costliest lines of the loop.",
    FLASH_PATH: "`can_use_flash_attention` in rocattn/gpu/flash.py gives the reason: widen what it allows, or "
    "accept the change with a waiver.",
}
"""What to try, by what got worse: `Entry.about` and `Cause.about`."""


def explain(entries: Sequence[Entry], context: Context) -> list[Entry]:
    """Fill ``causes`` and ``explanation`` of every entry that is worse.

    Args:
        entries: All of a gate's; those that are not worse come back as they are.
        context: Both sides while they lie checked out.
    """
    worse = [entry for entry in entries if entry.status in WORSE]
    if not worse:
        return list(entries)
    context.say(f"looking for causes: {len(worse)} to explain")
    try:
        explained = _Explainer(context, worse)
    except (RocattnError, OSError) as error:
        context.say(f"no causes are given: {error}")
        return list(entries)
    # The worst first: it is they that are run again where there are many, and of a class the worst stands for all.
    order = sorted(range(len(entries)), key=lambda at: -badness(entries[at]))
    found = {at: _explained(explained, entries[at], context) for at in order if entries[at].status in WORSE}
    return [found.get(at, entry) for at, entry in enumerate(entries)]


def _explained(explained: _Explainer, entry: Entry, context: Context) -> Entry:
    """Return an entry with its causes; as it is where they cannot be found: the verdict stands without them."""
    try:
        return explained.entry(entry)
    except (RocattnError, OSError) as error:
        context.say(f"no causes of {entry.label}: {error}")
        return entry


class _Explainer:
    """Explains the worse entries of one gate."""

    def __init__(self, context: Context, worse: Sequence[Entry]) -> None:
        self._context = context
        self._paths = Paths(context)
        self._worse = worse
        self._audits = {(entry.arch, entry.label): entry for entry in worse if entry.metric == "audit"}
        self._configs = _configs()
        self._archs = gpu_archs()
        self._answers = self._asked()
        self._counters = explain_counters.Counters(context, [entry for entry in worse if entry.metric == "time"])

    def _asked(self) -> tuple[dict[str, Answers], dict[str, Answers]]:
        """Ask both sides about the problems that worse benchmarks name."""
        problems = {}
        for entry in self._worse:
            config = self._config(entry)
            if config is not None:
                problems[config.label] = config
        if not problems:
            return {}, {}
        try:
            base, head = (ask(self._context, side, problems, self._archs) for side in SIDES)
        except ProbeError as error:
            self._context.say(f"the backends' own reasons are left out: {error}")
            return {}, {}
        return base, head

    def _config(self, entry: Entry) -> AttentionConfig | None:
        """Return the problem that a benchmark of ours names."""
        return self._configs.get(_word(entry, "config")) if _backend(entry) else None

    def entry(self, entry: Entry) -> Entry:
        """Return an entry with its causes and their explanation."""
        if entry.metric in EXACT:
            causes = [*entry.causes, *self._exact_sources(entry)]
            return msgspec.structs.replace(entry, causes=causes, explanation=self._exact_text(entry, causes))
        causes = self._backend(entry)
        if audited := self._audits.get((_word(entry, "arch"), _word(entry, "kernel"))):
            causes += [*audited.causes, *self._exact_sources(audited)]
            return msgspec.structs.replace(entry, causes=causes, explanation=_paragraph(entry, causes))
        causes += self._gpu(entry)
        causes += self._counters.of(entry)
        config = self._config(entry)
        direction = config.direction if config else "backward" if "backward" in entry.name else "forward"
        traces = self._paths.traces(entry) if entry.status == "regression" else None
        moved = explain_trace.moves(*traces) if traces and entry.metric == "time" else []
        launched = [one for _, old, new in self._plans(entry) for one in self._paths.of_plans(old, new)]
        files = self._paths.files(entry, traces, direction, launched, refused=self._refused(entry, config))
        raised = self._paths.of_traceback(entry)
        causes += [raised] if raised else []
        near = [one.change.cause(one.ran) for one in files if one.rank == 0]
        rest = [one.change.cause(one.ran) for one in files if one.rank > 0]
        packages = self._paths.packages(traces)
        causes += [*near[:_MOST_FILES], *packages, *rest[: max(0, _MOST_FILES - len(near))]]
        text = self._text(entry, causes, moved, files, traced=traces is not None)
        return msgspec.structs.replace(entry, causes=self._placed(causes), explanation=text)

    def _placed(self, causes: list[Cause]) -> list[Cause]:
        """Take places out where there is no repository that they could be in."""
        return causes if self._paths.trees else [msgspec.structs.replace(one, location=None) for one in causes]

    def _backend(self, entry: Entry) -> list[Cause]:
        """Return what became of the backend that a benchmark names."""
        config, name = self._config(entry), _backend(entry)
        if config is None:
            return []
        base, head = (answers.get(config.label) for answers in self._answers)
        before = base.backends.get(name) if base else None
        if base is None or head is None or before is None or not before.able:
            return []
        after = head.backends.get(name)
        if after is not None and after.able:
            return []
        why = f"it says: {after.why}" if after else "it is not registered any more"
        chosen = f"; {head.selected or 'no backend'} is selected instead" if base.selected == name else ""
        text = f"{name} computes {config.label} on base and not on head: {why}{chosen}"
        return [Cause(kind="backend", text=text, location=error_at(text))]

    def _refused(self, entry: Entry, config: AttentionConfig | None) -> bool:
        """Whether head's backend works on this machine and declines the problem all the same."""
        head = self._answers[1].get(config.label) if config else None
        answer = head.backends.get(_backend(entry)) if head else None
        return answer is not None and answer.available and not answer.supports

    def _plans(self, entry: Entry) -> Iterator[tuple[str, Plan, Plan]]:
        """Give what both sides launch for a benchmark of the GPU backend on each of this machine's GPUs."""
        config = self._config(entry)
        if config is None or _backend(entry) != "gpu":
            return
        base, head = (answers.get(config.label) for answers in self._answers)
        for arch in self._archs:
            old, new = (answers.plans.get(arch) if answers else None for answers in (base, head))
            if old is not None and new is not None and old.launches and new.launches:
                yield arch, old, new

    def _gpu(self, entry: Entry) -> list[Cause]:
        """Return what differs in the launches and the machine code of a benchmark of the GPU backend."""
        found = []
        for arch, old, new in self._plans(entry):
            if old.path != new.path:
                text = f"On {arch}, the {old.path} path gives way to the {new.path} path: {new.reason}"
                lost = FLASH_PATH if old.path == "flash" else ""
                found.append(Cause(kind="backend", text=text, about=lost))
            elif old.hash != new.hash:
                found.append(Cause(kind="launch", text=f"On {arch}, {geometry(old, new)}"))
            if self._paths.trees:
                found += machine_code(self._context, arch, old, new)
        return found

    def _exact_sources(self, entry: Entry) -> list[Cause]:
        """Return the changed files that an exact number is made from."""
        if not self._paths.trees:
            return []
        found = self._paths.made_from(entry, _PLAN_SOURCES)
        return [one.change.cause() for one in found[:_MOST_FILES]]

    def _exact_text(self, entry: Entry, causes: Sequence[Cause]) -> str:
        where = f" on {entry.arch}" if entry.arch else ""
        sources = [cause.text for cause in causes if cause.kind == "source"][:_NAMED]
        changed = f" Changed in what it is made from: {'; '.join(sources)}." if sources else ""
        advice = ADVICE.get(entry.about, "")
        return f"{entry.label}{where}: {_closed(entry.reason)}{changed} {advice}".strip()

    def _text(
        self, entry: Entry, causes: Sequence[Cause], moved: Sequence[Move], files: Sequence[OnPath], *, traced: bool
    ) -> str:
        parts = [_opening(entry)]
        told = [cause for cause in causes if cause.kind in {"backend", "launch", "machine code", "counters"}]
        # Of each kind the first, before a second of any: counters come after all that the machine code shows.
        first = list({cause.kind: cause for cause in reversed(told)}.values())[::-1]
        named = sorted([*first, *(one for one in told if one not in first)][: max(_NAMED, len(first))], key=told.index)
        parts += [_closed(cause.text) for cause in named]
        if moved:
            other = self._paths.traced(entry)
            which = "" if other == entry.label else f"where {other} was run, "
            parts.append(_closed(f"Under a profiler, {which}{'; '.join(move.sentence for move in moved)}"))
        near = [one.change.cause(one.ran).text for one in files if one.rank == 0]
        far = [_loaded(one) if traced else one.change.path for one in files if one.rank > 0]
        packages = [cause.text for cause in causes if cause.kind == "environment"]
        if near:
            more = f", and {len(near) - _NAMED} more files" if len(near) > _NAMED else ""
            parts.append(_closed(f"{'Of what it runs' if traced else 'On its path'}, {'; '.join(near[:_NAMED])}{more}"))
        elif far and not told:
            shown = ", ".join(far[:_MOST_FILES])
            loaded = "No function that it runs was changed; files that it loads were"
            parts.append(f"{loaded if traced else 'Of what it imports, these files changed'}: {shown}.")
        if packages:
            more = f" and {len(packages) - _MOST_FILES} more packages" if len(packages) > _MOST_FILES else ""
            parts.append(f"The environments differ in {', '.join(packages[:_MOST_FILES])}{more}.")
        if not (told or near or far or packages or traced or self._paths.trees):
            parts.append("No package's version differs; which files do is only seen where both sides run it, profiled.")
        elif not (told or near or far or packages):
            suspects = (
                "suspect where code and data come to lie in memory, or the machine"
                if entry.status == "regression"
                else "look at the benchmark's own file, which both sides run as head has it, then at the machine"
            )
            loads = "it loads differs" if traced or not self._paths.changes else "it was seen to import differs"
            parts.append(f"Nothing that {loads} between base and head, neither files nor packages: {suspects}.")
        if advice := next((ADVICE[one.about] for one in named if one.about in ADVICE), ""):
            parts.append(advice)
        return " ".join([*parts, self._next_step(entry, bool(near or told))])

    def _next_step(self, entry: Entry, known: bool) -> str:
        alone = f"--bench '{_exactly(entry.label)}'"
        if entry.status != "regression":
            return f"It counts as not measured until it runs again: `{self._context.again} {alone}` tries it alone."
        if known:
            return f"Take that change back and measure it alone: `{self._context.undone} {alone}`."
        return f"Measure it alone, with more rounds: `{self._context.again} {alone} --rounds 20`."


def _configs() -> dict[str, AttentionConfig]:
    """Return every problem of the grids by label, in both directions and in every type."""
    found = {}
    for grid in GRIDS.values():
        for direction in grid.directions:
            for config in grid.configs(direction=direction):
                typed = [config.replace(dtype=dtype) for dtype in _DTYPES]
                found.update({one.label: one for one in typed})
    return found


def _backend(entry: Entry) -> str:
    """Return the backend that a benchmark of ours is of; "" for others."""
    return "gpu" if entry.name.startswith(_GPU_MODULE) else _word(entry, "backend")


def _word(entry: Entry, name: str) -> str:
    """Return the value of a parameter that is a string; "" if it has none."""
    return entry.params.get(name, "").strip("'\"")


def _opening(entry: Entry) -> str:
    if entry.status != "regression":
        verb = "fails" if entry.status == "failed" else "cannot run"
        return f"{entry.label} ran on base and {verb} on head: {_closed(entry.reason)}"
    if entry.decision is None:
        return f"{entry.label} is worse: {_closed(entry.reason)}"
    change = f"{quantity(entry.base, entry.unit)} -> {quantity(entry.head, entry.unit)}"
    larger = "takes" if entry.metric == "time" else "is"
    percent = f" ({100 * (entry.decision.ratio - 1):+.1f} %)" if entry.decision.has_ratio else ""
    return f"{entry.label} {larger} {change}{percent}."


def _exactly(label: str) -> str:
    """Return the expression that finds one label alone, for between a shell's quotes and between backticks."""
    escaped = re.sub(r"[.^$*+?()\[\]{}|\\]", r"\\\g<0>", label)
    quotable = re.sub(r"['`]|[^\s -~]", ".", escaped)
    on_one_line = re.sub(r"(?! \S)\s+", r"\\s+", quotable)
    return f"^{on_one_line}$"


def _loaded(one: OnPath) -> str:
    """Return a file that a benchmark loads, with what changed of it outside of functions: what these may use."""
    hunk = one.change.worth_a_look() if one.change.outside else None
    return f"{one.change.path} (line {hunk.line}: `{hunk.shown}`)" if hunk else one.change.path


def _paragraph(entry: Entry, causes: Sequence[Cause]) -> str:
    """Return the paragraph of a number that is tracked of a kernel's machine code."""
    told = [_closed(cause.text) for cause in causes[: _NAMED + 1]]
    return " ".join([_opening(entry), *told, ADVICE.get(causes[0].about, "") if causes else ""]).strip()


def _closed(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."
