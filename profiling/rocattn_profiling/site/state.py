"""Summaries of other commands' results next to the site, for its front page."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from rocattn.errors import RocattnError
from rocattn_profiling.asv.series import commits_of
from rocattn_profiling.base.files import DocumentError, decoded
from rocattn_profiling.base.gpus import architecture
from rocattn_profiling.kernels.audit import read_audit
from rocattn_profiling.kernels.pins import pins_of, read_pins
from rocattn_profiling.pages.quantities import natural, short_date
from rocattn_profiling.pages.render import count
from rocattn_profiling.profile.collect.store import PROFILE, read_profile
from rocattn_profiling.site.changepoints import CONFIRMED
from rocattn_profiling.site.changes import where_of
from rocattn_profiling.site.commits import CommitInfo, History

if TYPE_CHECKING:
    from rocattn_profiling.asv.series import Series
    from rocattn_profiling.gate.model import GateResult
    from rocattn_profiling.kernels.pins import Pin, Pins

T = TypeVar("T")
HEADLINE = (
    "flash_attention_causal f16 D=128",
    "flash_decode f16 D=128",
    "attention_backward_dkdv f16 D=128 PLAIN_SCORES=1",
)
"""Kernels that represent all others on the front page; they are those of the quick audit suite."""
TORCH_GROUPS = {
    "inference": "float32 forward", "gemma": "float32 forward", "reduced": "bfloat16 and float16 forward",
    "decode": "decode", "backward": "float32 backward",
}  # fmt: skip
"""Group in ``research/peers/against_torch.py`` -> kind of work on the front page."""
PAGE_LIMIT_BYTES = 32 << 20
MONTHS_OLD = 60
"""Days after which the last measurement is marked as old."""
_MONTH = 30.44


@dataclass(frozen=True, slots=True)
class ArchState:
    """The kernels of one architecture.

    Attributes:
        arch, family: "gfx942", "CDNA 3".
        kernels: Number of kernels; ``vgpr_spilling`` and ``sgpr_spilling`` of them spill registers.
        worst: The kernel with the most spilled VGPRs, and their number; ("", 0) if none spills.
        waves: The smallest, median and largest number of waves per SIMD.
        slots: Wave slots per SIMD.
        headline: VGPRs and waves of the `HEADLINE` kernels; None for an absent kernel.
    """

    arch: str
    family: str
    kernels: int
    vgpr_spilling: int
    sgpr_spilling: int
    worst: tuple[str, int]
    waves: tuple[float, float, float] | None
    slots: int
    headline: list[tuple[int, float | None] | None]


@dataclass(frozen=True, slots=True)
class TorchRow:
    """One kind of work: PyTorch's median time over ours."""

    work: str
    configs: int
    mean: float
    worst: float
    best: float


@dataclass(frozen=True, slots=True)
class TorchState:
    """The CPU kernels compared with PyTorch, as measured by ``against_torch.py --json``."""

    version: str
    threads: int
    measured_ms: int
    rows: list[TorchRow]


class VerifyState(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of ``verify.json``."""

    cases: int
    ran: int
    failed: int
    skipped: int
    level: str = ""


@dataclass(frozen=True, slots=True)
class ProfileState:
    """The last collection of `rocattn profile`."""

    tool: str
    arch: str
    measured: int
    passes: int
    complete: bool
    command: str


@dataclass(frozen=True, slots=True)
class JudgedState:
    """The subject of the gate's verdict, for the front page.

    Attributes:
        title: Head, by branch and commit, against base.
        counts: Whether head is a commit on the site's branch, so that the verdict is about the branch's state.
    """

    title: str
    counts: bool


def judged_state(gate: GateResult, history: History, branch: str) -> JudgedState:
    """Return the subject of a verdict.

    Args:
        gate: The verdict.
        history: The repository's commits.
        branch: A different branch with the verdict's head; "" if there is none.
    """
    head = gate.head.revision
    base = (gate.base.revision or gate.base).short
    commit = history.commits.get(head.sha) if head and not head.dirty else None
    counts, ago = commit is not None and commit.on_branch, ""
    if commit and counts:
        branch = history.branch
        later = sum(other.on_branch and other.order > commit.order for other in history.commits.values())
        ago = f", {count(later, 'commit')} ago," if later else ""
    if head and head.dirty:
        what = "uncommitted changes"
    else:
        what = f"{branch} at {head.short}" if head and branch else (head or gate.head).short
    return JudgedState(f"gate: {what}{ago} against {base}", counts)


@dataclass(frozen=True, slots=True)
class Broken:
    """A benchmark whose newest points failed; ``since`` is the first of their commits, "" if it never had a value.

    Attributes:
        label: The first of the ``lines`` lines that fail like this.
        commits: Number of failed points per line.
    """

    label: str
    where: str
    since: str
    commits: int
    lines: int


def broken_lines(series: Iterable[Series], history: History) -> list[Broken]:
    """Return the benchmarks that fail at one of the newest commits measured in their place, latest failures first.

    Args:
        series: Points in commit order; those of other branches are left out.
        history: The repository's commits.
    """
    order = {sha: info.order for sha, info in history.commits.items() if info.on_branch}
    lines: dict[str, list[Series]] = {}
    for line in series:
        lines.setdefault(where_of(line), []).append(line)
    found: dict[tuple[str, str, str], list[tuple[str, int]]] = {}
    for where, listed in lines.items():
        measured = commits_of(line.points for line in listed).keys() & order.keys()
        # A benchmark that none of the newest commits measured was removed.
        newest = set(sorted(measured, key=lambda sha: order[sha])[-CONFIRMED:])
        for line in listed:
            backwards = (point for point in reversed(line.points) if point.sha in order)
            failed, worked = [], False
            for point in backwards:
                if worked := point.value is not None:
                    break
                failed.append(point.sha)
            if failed and failed[0] in newest:
                key = (line.benchmark, where, failed[-1] if worked else "")
                found.setdefault(key, []).append((line.label, len(failed)))
    broken = [Broken(own[0][0], where, since, own[0][1], len(own)) for (_, where, since), own in found.items()]
    return sorted(broken, key=lambda one: (not one.since, one.commits, natural(one.label), one.where))


@dataclass(frozen=True, slots=True)
class LastMeasured:
    """The newest measured commit, and how far the branch's newest commit is ahead of it."""

    commit: CommitInfo
    behind: int
    days: int

    @property
    def old(self) -> bool:
        """Whether it is months old."""
        return bool(self.behind) and self.days >= MONTHS_OLD

    @property
    def age(self) -> str:
        """How far it lags behind, as text."""
        time = count(round(self.days / _MONTH), "month") if self.days >= MONTHS_OLD else count(self.days, "day")
        return f"{time} and {count(self.behind, 'commit')}"


def last_measured(series: Iterable[Series], history: History) -> LastMeasured | None:
    """Return the newest commit of the branch with a result; None if there is none."""
    commits = history.commits
    shas = commits_of(line.points for line in series).keys() & commits.keys()
    last = max((commits[sha] for sha in shas if commits[sha].on_branch), key=lambda info: info.order, default=None)
    if last is None:
        return None
    later = [info for info in commits.values() if info.on_branch and info.order > last.order]
    newest_ms = max((info.date_ms for info in later), default=last.date_ms)
    return LastMeasured(last, len(later), max(0, newest_ms - last.date_ms) // 86_400_000)


@dataclass(frozen=True, slots=True)
class Attached:
    """A page of another command that the site includes."""

    title: str
    path: str
    text: str


@dataclass(slots=True)
class Standing:
    """Everything on the front page except gate, bench and history; empty fields where there is no result."""

    kernels: list[ArchState] = field(default_factory=list)
    kernels_source: str = ""
    verify: VerifyState | None = None
    torch: TorchState | None = None
    profile: ProfileState | None = None
    attached: list[Attached] = field(default_factory=list)

    def page(self, title: str) -> str:
        """Return the path of an attached page by its title; "" if there is none."""
        return next((page.path for page in self.attached if page.title == title), "")


def read_standing(results: Path, pins: Path, marker: str, note: Callable[[str], None]) -> Standing:
    """Read all results; an unreadable file is noted and left out.

    Args:
        results: The folder with the outputs of `verify`, `audit`, `profile`, … (``out``).
        pins: The repository's pinned audits, used if nothing was audited.
        marker: Text near the beginning of our pages; other pages are not copied.
        note: Called with a line for each omission.
    """
    standing = Standing()

    def tried(read: Callable[[Path], T], path: Path) -> T | None:
        try:
            return read(path)
        except RocattnError as error:
            note(str(error))
            return None

    if (audited := results / "audit" / "audit.json").is_file():
        standing.kernels = (
            tried(lambda path: [arch_state(pinned) for pinned in pins_of(read_audit(path))], audited) or []
        )
        standing.kernels_source = f"the audit of {short_date(_changed_ms(audited))}"
    if not standing.kernels:
        pinned = [tried(lambda path: arch_state(read_pins(path)), path) for path in sorted(pins.glob("gfx*.json"))]
        standing.kernels = [state for state in pinned if state]
        standing.kernels_source = "the numbers pinned in the repository"
    standing.kernels.sort(key=lambda state: natural(state.arch))
    if (path := results / "verify" / "verify.json").is_file():
        standing.verify = tried(lambda path: _decode(path, VerifyState), path)
    if (path := results / "profile" / PROFILE).is_file():
        standing.profile = tried(profile_state, path)
    if peers := sorted((results / "peers").glob("*torch*.json"), key=_changed_ms):
        standing.torch = tried(torch_state, peers[-1])
    for title, path in _pages(results):
        if text := tried(lambda path: _page_text(path, marker), path):
            standing.attached.append(Attached(title, f"reports/{path.parent.name}-{path.stem}.html", text))
    return standing


def arch_state(pins: Pins) -> ArchState:
    """Sum up the kernels of one architecture."""
    facts = architecture(pins.arch)
    waves = sorted(w for pin in pins.kernels.values() if (w := _waves(pin, facts.waves_per_simd)) is not None)
    spilling = {name: pin.vgpr_spills for name, pin in pins.kernels.items() if pin.vgpr_spills}
    worst = max(spilling.items(), key=lambda item: item[1], default=("", 0))
    chosen = [pins.kernels.get(name) for name in HEADLINE]
    return ArchState(
        pins.arch, facts.family, len(pins.kernels), len(spilling),
        sum(bool(pin.sgpr_spills) for pin in pins.kernels.values()), worst,
        (waves[0], statistics.median(waves), waves[-1]) if waves else None, facts.waves_per_simd,
        [(pin.vgprs, _waves(pin, facts.waves_per_simd)) if pin else None for pin in chosen],
    )  # fmt: skip


def torch_state(path: Path) -> TorchState:
    """Read the output of ``against_torch.py --json``: geometric means of PyTorch's median time over ours.

    Raises:
        RocattnError: It is not such a file.
    """
    data = _decode(path, _TorchFile)
    ratios: dict[str, list[float]] = {}
    for row in data.rows:
        if row.group in TORCH_GROUPS and row.torch_s and row.ours_s and min(*row.torch_s, *row.ours_s) > 0:
            ratio = statistics.median(row.torch_s) / statistics.median(row.ours_s)
            ratios.setdefault(TORCH_GROUPS[row.group], []).append(ratio)
    rows = [
        TorchRow(work, len(own), math.exp(statistics.fmean(map(math.log, own))), min(own), max(own))
        for work, own in ratios.items()
    ]
    return TorchState(data.torch, data.threads, _changed_ms(path), rows)


def profile_state(path: Path) -> ProfileState:
    """Sum up a collection of `rocattn profile`."""
    collection = read_profile(path)
    return ProfileState(
        collection.tool.name, collection.arch, collection.measured, len(collection.passes), collection.complete,
        " ".join(collection.command),
    )  # fmt: skip


class _TorchRow(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    torch_s: list[float]
    ours_s: list[float]


class _TorchFile(msgspec.Struct, frozen=True, kw_only=True):
    threads: int
    torch: str
    rows: list[_TorchRow]


def _waves(pin: Pin, slots: int) -> float | None:
    return None if pin.lost_wave_slots is None else slots - pin.lost_wave_slots


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return decoded(path.read_bytes(), kind)
    except (OSError, DocumentError) as error:
        raise RocattnError(f"{path} cannot be shown: {error}") from error


def _pages(results: Path) -> Iterable[tuple[str, Path]]:
    """Yield the standalone pages that other commands wrote, with their titles."""
    titles: Mapping[str, str] = {
        "verify/index.html": "Verification", "memory/memory.html": "Memory", "profile/profile.html": "Profile",
        "report/profile.html": "Profile",
    }  # fmt: skip
    yielded = set()
    for name, title in titles.items():
        if (path := results / name).is_file() and title not in yielded:
            yielded.add(title)
            yield title, path
    # Further profiles are in separate folders: out/profile-decode/profile.html.
    for path in sorted(results.glob("profile-*/profile.html")):
        yield f"Profile: {path.parent.name.removeprefix('profile-')}", path


def _page_text(path: Path, marker: str) -> str:
    try:
        if path.stat().st_size > PAGE_LIMIT_BYTES:
            raise RocattnError(f"{path} is larger than {PAGE_LIMIT_BYTES >> 20} MiB: not copied")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RocattnError(f"cannot read {path}: {error}") from error
    if marker not in text[:2000]:
        raise RocattnError(f"{path} was not made by rocattn: not copied")
    return text


def _changed_ms(path: Path) -> int:
    return int(path.stat().st_mtime * 1000)
