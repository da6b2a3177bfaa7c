"""One run of the gate, from two names of revisions to a verdict on disk."""

from __future__ import annotations

import contextlib
import hashlib
import time
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.files import write_text
from rocattn_profiling.gate import render, verdict
from rocattn_profiling.gate.look import FULL_LOOKS, QUICK_LOOKS, Policy
from rocattn_profiling.gate.measure import SIDES, LaunchStore, Session
from rocattn_profiling.gate.verdict import Entry
from rocattn_profiling.measure import asv_launch, environments, revisions
from rocattn_profiling.measure.machine import this_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rocattn_profiling.gate.measure import Measured, SideName, Step
    from rocattn_profiling.measure.asv_launch import Case, Config, Launcher, Suite
    from rocattn_profiling.measure.environments import Environment
    from rocattn_profiling.measure.revisions import Revision

QUICK_REQUEST = asv_launch.Request(sample_ns=3_000_000, budget_ns=60_000_000)
FULL_REQUEST = asv_launch.Request(sample_ns=5_000_000, budget_ns=200_000_000)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller chose.

    Attributes:
        base: A revision; "" for the parent of head (of a dirty tree: HEAD).
        head: A revision or "WORKTREE"; "" for HEAD, if the tree is clean.
        suite: A benchmark folder or an asv.conf.json, relative to the repository; "" for ``asv.conf.json``.
        patterns: Regular expressions; a benchmark is measured if one finds its label.
        quick: Fewer looks, shorter launches, and only classes named ``Quick…`` where the suite has any.
        rounds: Most rounds; 0 for the usual.
        min_effect: Smallest relative change that counts.
        seed: Of every order; 0 to derive it from revisions and settings.
        fresh: Forget an unfinished run.
    """

    base: str = ""
    head: str = ""
    suite: str = ""
    patterns: tuple[str, ...] = ()
    quick: bool = False
    rounds: int = 0
    min_effect: float = 0.05
    seed: int = 0
    fresh: bool = False

    def policy(self) -> Policy:
        """Return the rule these options ask for."""
        looks: tuple[int, ...] = QUICK_LOOKS if self.quick else FULL_LOOKS
        if self.rounds:
            looks = (*(look for look in looks if look < self.rounds), self.rounds)
        return Policy(min_effect=self.min_effect, looks=looks)


def choose_revisions(repo: Path, options: Options) -> tuple[Revision, Revision]:
    """Return base and head.

    Raises:
        RevisionError: When one does not exist, or the tree is dirty and ``head`` was not named.
    """
    if not options.head and revisions.is_dirty(repo):
        raise revisions.RevisionError(
            "the working tree has changes: commit them, or name what to measure with --head WORKTREE or --head HEAD"
        )
    head = revisions.resolve(repo, options.head or "HEAD")
    if options.base:
        return revisions.resolve(repo, options.base), head
    return (revisions.resolve(repo, "HEAD") if head.dirty else revisions.parent(repo, head)), head


def run_gate(
    repo: Path,
    out: Path,
    options: Options | None = None,
    *,
    on_step: Callable[[Step], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> verdict.GateResult:
    """Measure two revisions side by side and decide; writes ``verdict.json``, ``verdict.txt`` and ``launches.jsonl``.

    Args:
        repo: A folder inside the repository.
        out: Folder for the results; an unfinished run in it is gone on with.
        options: What to compare and how.
        on_step: Told after every launch.
        say: Told one line about every longer stage.

    Raises:
        RevisionError: A revision does not exist, or the tree is dirty.
        BuildError: A revision does not build: nothing was measured.
        CacheError: The cache folder takes no files.
        SuiteError: There is no suite, or no benchmark matches.
        RocattnError: ``out`` takes no files.
    """
    options = options or Options()
    repo = revisions.find_repository(repo)
    base, head = choose_revisions(repo, options)
    say(f"base {base.short} {base.subject}")
    say(f"head {head.short} {head.subject}")
    sides = _build(repo, base, head, say)
    work = out / "work"
    revisions.prune_checkouts(work)
    with _out_errors(out), revisions.checkout(repo, head, work) as tree:
        config = asv_launch.read_config(tree, options.suite or None)
        launchers = _launchers(sides, tree, config)
        suites = {side: launchers[side].discover() for side in SIDES}
        cases = _chosen(suites["head"], options)
        gone = _lost_modules(suites, options)
        if not cases and not gone:
            raise asv_launch.SuiteError(_nothing(suites["head"], options))
        policy = options.policy()
        key = _key(base, head, options, policy, sides)
        seed = options.seed or int(key[:8], 16)
        store = LaunchStore(out / "launches.jsonl", key, fresh=options.fresh)
        if store.resumed:
            say(f"going on with an interrupted run: {store.resumed} launches are there")
        request = QUICK_REQUEST if options.quick else FULL_REQUEST
        removed = _removed(repo, base, sides["base"], suites["head"], work, options)
        measured = Session(launchers, cases, policy, request, seed, store, on_step).run()
    entries = sorted([*verdict.entries_of(cases, measured), *gone, *removed], key=_worst_first)
    result = _result((base, head), sides, options, policy, seed, measured, entries, config)
    verdict.write(result, out / "verdict.json")
    write_text(out / "verdict.txt", render.text(result))
    store.finish()
    return result


def _build(repo: Path, base: Revision, head: Revision, say: Callable[[str], None]) -> dict[SideName, Environment]:
    """Build both sides in the same way: if one has to go offline, both do."""
    started = time.monotonic()
    built = {}
    for side, revision in zip(SIDES, (base, head), strict=True):
        say(f"building {side}: {revision.name} ({revision.short})")
        built[side] = environments.build(repo, revision)
    if built["base"].offline != built["head"].offline:
        built = {side: environments.build(repo, r, offline=True) for side, r in zip(SIDES, (base, head), strict=True)}
    say(f"both sides are built ({time.monotonic() - started:.0f} s)")
    return built


@contextlib.contextmanager
def _out_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RocattnError(
            f"cannot write in {out}: {error.strerror or error}; name another folder with --out"
        ) from error


def _launchers(sides: dict[SideName, Environment], tree: Path, config: Config) -> dict[SideName, Launcher]:
    """Return both sides' launchers on the head's benchmark folder, as asv has it."""
    suite = tree / config.benchmark_dir
    return {
        side: asv_launch.Launcher(sides[side].python, suite, tree.parent / side, config.environment, config.timeout_s)
        for side in SIDES
    }


def _chosen(suite: Suite, options: Options) -> list[Case]:
    """Return the cases to measure: those that match, and in quick mode the quick classes where there are any."""
    cases = suite.cases(options.patterns)
    return asv_launch.quick_cases(cases) if options.quick and not options.patterns else cases


def _nothing(suite: Suite, options: Options) -> str:
    if suite.broken:
        module, why = next(iter(suite.broken.items()))
        return f"no benchmark can be imported: {module}: {why}"
    if options.patterns:
        return f"no benchmark matches {' or '.join(options.patterns)}: nothing would be measured"
    return "the suite has no benchmarks: nothing would be measured"


def _lost_modules(suites: dict[SideName, Suite], options: Options) -> list[Entry]:
    """Return entries for what head cannot even import, or discovers no more though base does."""
    broken = suites["head"].broken
    entries: list[Entry] = []
    for module, why in broken.items():
        status: verdict.Status = "broken" if module in suites["base"].broken else "failed"
        entries.append(Entry(label=module, name=module, status=status, reason=f"cannot be imported: {why}"))
    known = {case.label for case in suites["head"].cases()}
    for case in suites["base"].cases(options.patterns):
        # Benchmarks of a module that head cannot import are told by the module's own entry.
        if case.label not in known and not any(case.label.startswith(f"{module}.") for module in broken):
            reason = "base offers it and head does not, from the same benchmark files"
            entries.append(Entry(label=case.label, name=case.benchmark.name, status="missing", reason=reason))
    return entries


def _removed(
    repo: Path, base: Revision, environment: Environment, head_suite: Suite, work: Path, options: Options
) -> list[Entry]:
    """Return entries for benchmarks of base's own suite that head's no longer has."""
    with revisions.checkout(repo, base, work) as tree:
        try:
            config = asv_launch.read_config(tree, options.suite or None)
            suite = tree / config.benchmark_dir
            launcher = asv_launch.Launcher(environment.python, suite, tree.parent / "list", config.environment)
            before = launcher.discover()
        except asv_launch.SuiteError:
            return []  # base has no suite that can be listed: then nothing was removed from it
    known = {benchmark.name for benchmark in head_suite.benchmarks}
    lost = {case.benchmark.name for case in before.cases(options.patterns)} - known
    lost = {name for name in lost if not any(name.startswith(f"{module}.") for module in head_suite.broken)}
    return [Entry(label=n, name=n, status="removed", reason="head's suite no longer has it") for n in sorted(lost)]


def _key(base: Revision, head: Revision, options: Options, policy: Policy, sides: dict[SideName, Environment]) -> str:
    """Identify a session: the same key means the same revisions, environments, settings and benchmarks."""
    parts = [base.sha, head.sha, *(sides[side].folder for side in SIDES)]
    chosen = msgspec.structs.replace(options, fresh=False, base="", head="")
    parts += [msgspec.json.encode(chosen).decode(), msgspec.json.encode(policy).decode()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _worst_first(entry: Entry) -> tuple[int, float, str]:
    ratio = entry.decision.ratio if entry.decision is not None else 0.0
    return verdict.ORDER.index(entry.status), -ratio, entry.label


def _result(
    revisions_: tuple[Revision, Revision],
    sides: dict[SideName, Environment],
    options: Options,
    policy: Policy,
    seed: int,
    measured: Measured,
    entries: list[Entry],
    config: Config,
) -> verdict.GateResult:
    overall, sentence = verdict.conclude(entries, measured.decision.invalid)
    facts = {
        side: verdict.SideFacts(
            revision=revision,
            python=sides[side].python_version,
            packages=sides[side].packages,
            offline=sides[side].offline,
        )
        for side, revision in zip(SIDES, revisions_, strict=True)
    }
    differing = environments.differences(sides["base"], sides["head"])
    return verdict.GateResult(
        verdict=overall,
        sentence=sentence,
        created_ms=time.time_ns() // 1_000_000,
        base=facts["base"],
        head=facts["head"],
        machine=this_machine(),
        environment_differences=differing,
        policy=policy,
        quick=options.quick,
        seed=seed,
        launches=measured.launches,
        suite=config.benchmark_dir,
        patterns=list(options.patterns),
        suite_shift=measured.decision.shift,
        canary_shift=measured.decision.canary,
        invalid=measured.decision.invalid,
        notes=_notes(revisions_, sides, differing, measured),
        counts={s: n for s in verdict.ORDER if (n := sum(entry.status == s for entry in entries))},
        entries=entries,
    )


def _notes(
    revisions_: tuple[Revision, Revision],
    sides: dict[SideName, Environment],
    differing: dict[str, tuple[str, str]],
    measured: Measured,
) -> list[str]:
    notes = []
    if any(environment.offline for environment in sides.values()):
        notes.append(
            "offline: dependencies are those of the running interpreter on both sides, not the revisions' own locks"
        )
    if differing:
        listed = [f"{name} {old or 'absent'} -> {new or 'absent'}" for name, (old, new) in differing.items()]
        notes.append(f"the environments differ: {', '.join(listed)}")
    if revisions_[0].tree == revisions_[1].tree:
        notes.append("base and head have identical files: this run measures the machine's noise")
    if not this_machine().compiler:
        notes.append("there is no compiler for the CPU kernels: cpu-flash was not measured (rocattn doctor says why)")
    decision = measured.decision
    if decision.decisions:
        notes.append(f"all benchmarks together: x{decision.shift:.3f}; fixed work: x{decision.canary:.3f}")
    return notes
