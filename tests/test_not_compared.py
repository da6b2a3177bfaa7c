"""What a command did not look at: its headline says so, its JSON lists it with a code, and its status is README's.

A row is a situation: 0 where only a default is missing, 3 where nothing was compared, or not all that was named or that
a verdict always covers.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.base.reasons import Coverage, NotCompared, Reason, counted
from rocattn_profiling.gate.headline import conclude
from rocattn_profiling.gate.model import Entry, coverage_of
from rocattn_profiling.gate.plugin import load_plugin
from rocattn_profiling.profile.collect import hardware

from .test_earlier_results import ASSEMBLY, SHAPE, TRACE, place, records, run, verdict  # noqa: F401 - fixtures
from .test_exit_status import MEMORY, MINE, VERIFY, modules  # noqa: F401 - the fixture

pytestmark = pytest.mark.slow
NUMBERS = ("vgpr_count: 8", "sgpr_count: 8", "vgpr_spill_count: 0", "sgpr_spill_count: 0")
NUMBERS += ("private_segment_fixed_size: 0", "group_segment_fixed_size: 0", "max_flat_workgroup_size: 64")
NUMBERS += ("wavefront_size: 64", "kernarg_segment_size: 8")
SAID = "".join(f"    .{number}\n" for number in NUMBERS)
WHOLE = ASSEMBLY + f"\t.amdgpu_metadata\n---\namdhsa.kernels:\n  - .name: matmul\n{SAID}...\n\t.end_amdgpu_metadata\n"
CALL = WHOLE.replace("\ts_endpgm", "\ts_swappc_b64 s[30:31], s[4:5]\n\ts_endpgm")
AUDIT = "kernels audit k.s --against base.json --out OUT"
OTHER = TRACE.replace("scale", "other")
FEW = json.dumps({
    "id": 1, "a": {"launches": [{"round": 0, "samples": [1.0]}]}, "b": {"launches": [{"round": 0, "samples": [1.1]}]},
}) + "\n"  # fmt: skip
ONE_MORE = TRACE + OTHER.splitlines()[1] + "\n"


@dataclass
class Row:
    """A command line in a situation.

    Attributes:
        line: What is run, with --json.
        files: Text by name, written first; of ``base.s`` an audit is made, base.json.
        says: Of the output.
        code: Of what was not compared, in the JSON; "" for nothing.
        status: Its exit status.
    """

    line: str
    files: dict[str, str]
    says: str
    code: str
    status: int


ROWS = {
    # kernels audit: no change where a side is not known is no pass
    "kernels alike": Row(AUDIT, {"k.s": WHOLE, "base.s": WHOLE}, "no kernel got worse or better\n", "", 0),
    "a target without tables": Row(
        AUDIT, {name: WHOLE.replace("gfx942", "gfx908") for name in ("k.s", "base.s")},
        "in what was compared; not compared: hot loop of 1 kernel (no instruction rates are known for gfx908)",
        "unknown_processor", 3,
    ),
    "a function that is called": Row(
        AUDIT, {"k.s": CALL, "base.s": CALL}, "not compared: code called of 1 kernel", "called", 3
    ),
    "a call that is gone": Row(AUDIT, {"k.s": WHOLE, "base.s": CALL}, "(in the earlier audit, functions", "called", 3),
    "numbers that are not said": Row(
        AUDIT, {"k.s": ASSEMBLY, "base.s": ASSEMBLY}, "spilled VGPRs of 1 kernel (the file does not say)", "unsaid", 3
    ),
    "another name": Row(AUDIT, {"k.s": WHOLE.replace("matmul", "gemm"), "base.s": WHOLE}, "0 variants of", "gone", 3),
    "a file that cannot be read": Row(
        AUDIT.replace("k.s", "k.s empty.s"), {"k.s": WHOLE, "base.s": WHOLE}, "not compared: 1 file (", "problem", 3
    ),
    "an audit alone": Row("kernels audit k.s --out OUT", {"k.s": ASSEMBLY}, "1 kernel of k.s", "", 0),
    # a backend: missing from the defaults, and named
    "verify a default": Row(f"{VERIFY} {MINE}", {}, "; not checked: ", "unavailable", 0),
    "verify a name": Row(f"{VERIFY} {MINE} --backend absent cpu", {}, "absent (it was left at home)", "unavailable", 3),
    "verify a refusal": Row(f"{VERIFY} {MINE} --backend refusing cpu", {}, "refusing (not today)", "unsupported", 3),
    "verify one": Row(f"{VERIFY} --backend cpu", {}, "0 not supported; written", "", 0),
    "bench a default": Row(
        f"bench {SHAPE} {MINE} --out OUT", {}, "1 problem on absent (not supported: it was left at home)", "skipped", 0
    ),
    "bench a name": Row(
        f"bench {SHAPE} {MINE} --backend absent cpu --out OUT", {},
        "bench: 1 of 2 results measured; not measured: absent", "unmeasured", 3,
    ),
    "bench nothing": Row(
        f"bench --quick {MINE} --backend absent --no-store --out OUT", {},
        "problems on absent: not supported: it was left at home", "unmeasured", 3,
    ),
    "memory of a name": Row(
        f"{MEMORY} {MINE} --backend cpu absent", {}, "memory: 2 of 2 lengths measured; not measured: absent",
        "unsupported", 3,
    ),
    # stored pairs
    "a line that is no pair": Row(
        "gate judge bad.jsonl --out OUT/j", {"bad.jsonl": "{}\n"}, "not judged: 1 line (no pair)", "no_pair", 3
    ),
    "a pair": Row("gate judge pairs.jsonl --out OUT/j", {}, "1 pass: ", "", 0),
    "an open pair": Row("gate judge few.jsonl --out OUT/j", {"few.jsonl": FEW}, "1 inconclusive: ", "", 0),
    "an open pair, strict": Row(
        "gate judge few.jsonl --strict --out OUT/j", {"few.jsonl": FEW}, "1 inconclusive: ", "", 2
    ),
    # two profiles
    "a profile against itself": Row("report trace.csv --against trace.csv --out OUT", {}, "The report is at", "", 0),
    "a kernel of one profile": Row(
        "report more.csv --against trace.csv --out OUT", {"more.csv": ONE_MORE},
        "not compared: 1 kernel (only the later profile has it)", "one_side", 0,
    ),
    "profiles of other kernels": Row(
        "report other.csv --against trace.csv --out OUT", {"other.csv": OTHER.replace("6400", "128")},
        "only the earlier profile", "one_side", 3,
    ),
    # pages
    "a site without a verdict": Row(
        "site --results nosuch --records bench --out OUT", {},
        "; not shown: the gate's verdict (there is none)", "no_results", 0,
    ),
    "a site without what was named": Row(
        "site --records nosuch --gate gate --out OUT", {}, "bench records (there is none in nosuch)",
        "no_results", 3,
    ),
    # counters
    "a metric that cannot be counted": Row(
        "profile --arch gfx1100 --metrics lds matrix_busy_pct --out OUT -- ./app.sh", {},
        "not measured: matrix_busy_pct", "not_countable", 3,
    ),
    # the job
    "a job of nothing": Row(
        "ci --skip verify bench audit gate profile site --out OUT", {},
        "verify, bench, audit, gate, profile and site skipped", "asked", 3,
    ),
    "a job without an audit": Row(
        "ci --skip audit profile --out OUT", {}, "PASS for what ran: outputs are right", "asked", 0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_was_not_compared_is_said_and_decides_the_status(modules, capsys, name):  # noqa: F811 - the fixture
    """In the output, in the JSON, and in the exit status."""
    row = ROWS[name]
    for file, text in row.files.items():
        Path(file).write_text(text)
    if "base.s" in row.files:
        Path("base").mkdir()
        Path("base.s").rename("base/k.s")
        assert run("kernels audit base/k.s --out before") == 0
        Path("before/audit.json").rename("base.json")
    if row.line.startswith("kernels"):  # with --json no card
        assert run(row.line) == row.status
    said = capsys.readouterr()
    status = run(row.line.replace(" --out", " --json --out"))
    told = capsys.readouterr()
    assert row.says in f"{said.out}{said.err}{told.err}".replace("\n  ", " "), told
    assert status == row.status, told
    listed = json.loads(told.out)["not_compared"]
    assert all(each.keys() == {"what", "code", "text", "remedy", "needed"} for each in listed)
    assert {each["code"] for each in listed} >= ({row.code} if row.code else set())
    assert bool(listed) == bool(row.code)
    assert any(each["needed"] for each in listed) <= (row.status == 3)


def test_equal_reasons_are_one_line_with_their_number():
    """Eight problems for one reason are not eight lines; a headline names three, the needed ones first."""
    alike = [("# problem on gpu", "# problems on gpu", Reason("skipped", "no GPU", "rocattn doctor"))] * 8
    (one,) = counted(alike)
    assert (one.what, one.code, one.line) == (
        "8 problems on gpu",
        "skipped",
        "8 problems on gpu: no GPU; rocattn doctor",
    )
    others = [NotCompared(what=name, code="c", text="", needed=name == "d") for name in "abcd"]
    assert Coverage(undecided=2, not_compared=tuple(others)).gaps() == "2 undecided; not compared: d, a, b, 1 more"
    assert Coverage(compared=1).gaps() == ""


@pytest.mark.parametrize(
    ("coverage", "status"),
    [
        (Coverage(), 3), (Coverage(compared=1), 0), (Coverage(undecided=1), 0),
        (Coverage(compared=1, not_compared=counted([("#", "#", Reason("c", ""))])), 0),
        (Coverage(compared=1, not_compared=counted([("#", "#", Reason("c", ""))], needed=True)), 3),
    ],
)  # fmt: skip
def test_the_status_follows_from_what_was_compared(coverage, status):
    """What is wrong outranks it; an open question counts only under --strict."""
    assert coverage.status() == status
    assert coverage.status(failed=True) == 1
    assert coverage.status(strict=True) == (2 if coverage.undecided else status)


@pytest.mark.parametrize(
    ("statuses", "more", "overall", "says"),
    [
        ("pass pass", "", "pass", "all 2 benchmarks are within 5 %"),
        ("pass skipped skipped", "", "pass", "1 benchmark is within 5 %; not compared: 2 benchmarks skipped (no GPU)"),
        ("skipped", "", "not measured", "no benchmark ran on both sides; not compared: 1 benchmark skipped (no GPU)"),
        (
            "pass broken new",
            "",
            "pass",
            "1 benchmark broken on both sides (no GPU), 1 benchmark that runs only on head (no GPU)",
        ),
        ("regression skipped", "", "regression", "(cause not found); not compared: 1 benchmark skipped (no GPU)"),
        ("pass", "listed", "pass", "; not compared: machine code (no compiler)"),
        ("pass", "needed", "not measured", "; not compared: machine code (no compiler)"),
        ("regression", "needed", "regression", "; not compared: machine code (no compiler)"),
    ],
)
def test_a_gate_says_what_it_did_not_compare(statuses, more, overall, says):
    """In the sentence of every verdict; what is needed and missing is no pass."""
    entries = [Entry(label=name, name=name, status=name, reason="" if name == "pass" else "no GPU")
               for name in statuses.split()]  # fmt: skip
    part = NotCompared(what="machine code", code="unread", text="no compiler", needed=more == "needed")
    got, sentence = conclude(entries, "", tolerance=0.05, more=[part] if more else [])
    assert got == overall
    assert sentence.endswith(says)
    assert coverage_of(entries).compared == sum(name in {"pass", "regression"} for name in statuses.split())


@pytest.mark.parametrize(
    ("patterns", "kfd", "refused"),
    [
        (("bench_gpu.QuickEvents",), "missing", True), (("bench_gpu.(Prefill|Decode)", "bench_gpu"), "missing", True),
        (("bench_gpu.QuickEvents",), "no permission", False), ((), "missing", False),
        (("bench_gpu.QuickEvents", "cpu"), "missing", False), (("bench_gpu|cpu",), "missing", False),
        (("bench_gpu?",), "missing", False),
    ],
)  # fmt: skip
def test_gpu_benchmarks_without_a_gpu_end_before_the_builds(place, monkeypatch, capsys, patterns, kfd, refused):  # noqa: F811
    """With the reason and status 3; where anything else may be measured, the run goes on."""
    names = ("rocattn/gpu/plan.py", "kernels/hip/k.hip", "benchmarks/__init__.py", "benchmarks/bench_gpu.py")
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    monkeypatch.setattr(hardware, "examine", lambda: SimpleNamespace(gpus=(), kfd=kfd, archs=()))
    shutil.copytree(Path(__file__).parents[1] / ".rocattn/gate", ".rocattn/gate")
    why = load_plugin(Path()).unmeasurable(patterns)
    assert (why is not None) == refused
    if refused:
        assert why.code == "no_gpu"
        Path("asv.conf.json").write_text('{"project": "p", "repo": ".", "benchmark_dir": "benchmarks"}')
        for words in (("add", "."), ("-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "2")):
            subprocess.run(["git", *words], check=True)
        chosen = [word for pattern in patterns for word in ("--bench", pattern)]
        assert run(" ".join(["gate run --head HEAD --out", "OUT", *chosen])) == 3
        *sides, refusal = capsys.readouterr().err.splitlines()
        assert [side.split()[0] for side in sides] == ["base", "head"]
        assert refusal == snapshot(
            "rocattn gate: nothing was built, because nothing could be measured: the benchmarks of bench_gpu need an "
            "AMD GPU, and this machine has none (no /dev/kfd); machine code is compared without one: rocattn kernels "
            "audit --against HEAD"
        )
