"""Plans, workspaces and backends of both sides, compared: what fails by its consequence, and what is only listed."""

import msgspec
import pytest
from inline_snapshot import snapshot
from own_gate import plans as exact_plans
from own_gate.answers import Answers, BackendAnswer, PlanAnswer, PlannedLaunch

from ..conftest import fold

ARCHS = ("gfx1100", "gfx942")
FLASH = PlannedLaunch("flash_attention_causal", "hip/x.hip", "x", {"KEYS_PER_TILE": 32}, (2, 4, 1), (128, 1, 1))
PARTS = tuple(msgspec.structs.replace(FLASH, kernel=name) for name in ("qk_matmul", "softmax", "pv_matmul"))
TAKEN = PlanAnswer(path="flash", launches=(FLASH,), hash="a")
LEFT = PlanAnswer(
    path="standard", reason="windows are not allowed", launches=PARTS, workspaces={"scores": 8192}, hash="b"
)
CPU, TILED = BackendAnswer(True, True, 0, workspace_bytes=8192), BackendAnswer(True, True, 10, workspace_bytes=0)


def answers(**changes):
    """One side's answers to two problems, "p" and "q"; what is given is p's."""
    usual = {
        "selected": "cpu-flash",
        "backends": {"cpu": CPU, "cpu-flash": TILED},
        "plans": dict.fromkeys(ARCHS, TAKEN),
    }
    return {"p": Answers(**(usual | changes)), "q": Answers(**usual)}


def at(plan):
    """Return the plans of one answer on every architecture."""
    return {"plans": dict.fromkeys(ARCHS, plan)}


def of(selected="cpu-flash", cpu=CPU, tiled=TILED, **more):
    """Return the backends of one answer, without those that are None, and which of them is selected."""
    found = {"cpu": cpu, "cpu-flash": tiled, **more}
    return {"selected": selected, "backends": {name: one for name, one in found.items() if one is not None}}


def cpu(size):
    """Return an answer whose CPU backend has a workspace of so many bytes."""
    return of(cpu=msgspec.structs.replace(CPU, workspace_bytes=size))


def other(answer, **facts):
    """Return an answer with something changed."""
    return msgspec.structs.replace(answer, **facts)


NO_PLAN = PlanAnswer(problem="ConfigError: D = 300 is too large")
NO_PLANNER = PlanAnswer(absent="ImportError: no tiles")
UNABLE = other(TILED, supports=False, why="no causal masks")
NO_CPU = other(CPU, available=False, why="no device")
GROWN = other(TAKEN, workspaces={"partials": 4096}, hash="c")
EQUAL = {"cpu": other(CPU, priority=TILED.priority)}


DIFFERENT = {
    # What is equal on all architectures is said once.
    "flash path lost on one": ({}, {"plans": {"gfx1100": LEFT, "gfx942": TAKEN}}),
    "flash path lost": ({}, at(LEFT)), "flash path won": (at(LEFT), {}),
    # What is won base could not say anything of; what cannot be imported any more was not measured, so not passed.
    "plan lost": ({}, at(NO_PLAN)), "plan won": (at(NO_PLAN), {}), "never a plan": (at(NO_PLAN), at(NO_PLAN)),
    "planner lost": ({}, at(NO_PLANNER)), "base is too old to plan": (at(NO_PLANNER), {}),
    "workspace of nothing": ({}, at(GROWN)),
    "workspace": ({"plans": {"gfx942": GROWN}}, {"plans": {"gfx942": other(GROWN, workspaces={"a": 8192, "b": 8192})}}),
    "CPU workspace": ({}, cpu(12288)), "less than a page": ({}, cpu(8200)), "less": ({}, cpu(0)),
    "selected one unable": ({}, of("cpu", tiled=UNABLE)), "selected one gone": ({}, of("cpu", tiled=None)),
    "slower one selected": ({}, of("cpu")),
    "selected one away": ({}, of("cpu", tiled=other(TILED, available=False, why="no compiler"))),
    "none selected": ({}, of("", cpu=other(CPU, available=False), tiled=UNABLE)),
    # These may be the faster ones: the clock decides.
    "unknown to base": ({}, of("npu", npu=other(TILED, priority=5))), "equal": (of(**EQUAL), of("cpu", **EQUAL)),
    # Who names a backend in a call needs it, selected or not; that it does not run on this machine is no loss.
    "unable": ({}, of(cpu=other(CPU, supports=False, why="no windows"))), "not on this machine": ({}, of(cpu=NO_CPU)),
    "unable, and not here": (of(cpu=NO_CPU), of(cpu=other(NO_CPU, supports=False))), "gone": ({}, of(cpu=None)),
}  # fmt: skip


def test_a_difference_is_judged_by_its_consequence():
    """What is lost is a regression, what is won an improvement or new, and another geometry is only listed."""
    told = ""
    for name, (base, head) in DIFFERENT.items():
        told += f"{name}:\n"
        for one in exact_plans.compare(answers(**base), answers(**head), ARCHS):
            if one.status != "pass":
                ratio = f", {one.base:g} -> {one.head:g}, x{one.decision.ratio:g}" if one.decision else ""
                told += " ".join(filter(None, ["-", one.label, one.arch, f"({one.status}{ratio}): {one.reason}\n"]))
    assert fold(told) == snapshot("""\
flash path lost on one:
- flash path gfx1100 (regression, 2 -> 1, x2): 1 of 2 problems: the flash path (flash_attention_causal) gives way
    to the standard path (qk_matmul + softmax + pv_matmul): windows are not allowed (p)
flash path lost:
- flash path (regression, 2 -> 1, x2): 1 of 2 problems: the flash path (flash_attention_causal) gives way to the
    standard path (qk_matmul + softmax + pv_matmul): windows are not allowed (p)
flash path won:
- flash path (improvement, 1 -> 2, x0.5): 1 of 2 problems: the standard path (qk_matmul + softmax + pv_matmul)
    gives way to the flash path (flash_attention_causal) (p)
plan lost:
- plans (regression, 2 -> 1, x2): 1 of 2 problems: head has no plan (ConfigError: D = 300 is too large); base
    launches flash_attention_causal (p)
plan won:
- plans (new): 1 of 2 problems: base has none: ConfigError: D = 300 is too large (p)
never a plan:
planner lost:
- plans (regression, 2 -> 1, x2): 1 of 2 problems: head has no plan (ImportError: no tiles); base launches
    flash_attention_causal (p)
base is too old to plan:
workspace of nothing:
- workspace gpu (regression): 0 -> 4096 bytes of workspace of p
- changed plans or choices (ungated): 2 plans or choices not as in base, none with a slower path: shown, not judged
workspace:
- workspace gpu gfx942 (regression, 4096 -> 16384, x4): 4096 -> 16384 bytes of workspace of p
CPU workspace:
- workspace cpu (regression, 8192 -> 12288, x1.5): 8192 -> 12288 bytes of workspace of p
less than a page:
- changed workspaces (ungated): 1 workspace not as in base, none with a slower path: shown, not judged
less:
- workspace cpu (improvement): 8192 -> 0 bytes of workspace of p
selected one unable:
- select cpu-flash (regression, 2 -> 1, x2): 1 of 2 problems: cpu is selected, since cpu-flash, which base selects,
    no longer can: no causal masks (p)
selected one gone:
- select cpu-flash (regression, 2 -> 1, x2): 1 of 2 problems: cpu is selected, since cpu-flash, which base selects,
    is no longer registered (p)
slower one selected:
- select cpu-flash (regression, 2 -> 1, x2): 1 of 2 problems: cpu is selected, which base ranks below cpu-flash (p)
selected one away:
- select cpu-flash (regression, 2 -> 1, x2): 1 of 2 problems: cpu is selected, since cpu-flash, which base selects,
    no longer can: no compiler (p)
none selected:
- select cpu-flash (regression, 2 -> 1, x2): 1 of 2 problems: no backend is selected, since cpu-flash, which base
    selects, no longer can: no causal masks (p)
unknown to base:
- changed plans or choices (ungated): 1 plan or choice not as in base, none with a slower path: shown, not judged
equal:
- changed plans or choices (ungated): 1 plan or choice not as in base, none with a slower path: shown, not judged
unable:
- support cpu (regression, 2 -> 1, x2): 1 of 2 problems: cpu no longer computes it: no windows (p)
not on this machine:
unable, and not here:
- support cpu (regression, 2 -> 1, x2): 1 of 2 problems: cpu no longer computes it: no device (p)
gone:
- support cpu (regression, 2 -> 1, x2): 1 of 2 problems: cpu no longer computes it: it is no longer registered (p)
""")


def test_what_is_as_in_base_passes_and_is_counted():
    """Of each problem a plan and a workspace an architecture, a choice, another backend, two workspaces here."""
    found = exact_plans.compare(answers(), answers(), ARCHS)
    assert [(one.metric, one.status, one.reason) for one in found] == [
        ("plan", "pass", "8 plans and backend choices of 2 problems equal base's"),
        ("workspace", "pass", "8 workspaces of 2 problems equal base's"),
    ]


def test_a_lost_flash_path_is_of_the_backend():
    """Its ratio is exact, without an interval around it."""
    (entry,) = (one for one in exact_plans.compare(answers(), answers(**at(LEFT)), ARCHS) if one.status != "pass")
    assert (entry.decision.ratio_low, entry.decision.ratio_high, entry.decision.p) == (2, 2, 0)
    assert entry.causes[0].kind == "backend"


def test_a_lost_plan_is_one_of_those_that_base_has():
    """On the flash path and beside it; what neither computes is none of them, what is refused one of all."""
    missing = Answers(plans={"gfx942": PlanAnswer(problem="never")})
    base = {key: Answers(plans={"gfx942": plan}) for key, plan in zip("abcd", (TAKEN, TAKEN, TAKEN, LEFT), strict=True)}
    base["e"] = missing
    gone, refused = Answers(plans={"gfx942": NO_PLAN}), Answers(unknown="ConfigError: D")
    for lost, reason, numbers, ratio in (
        ({"a": gone}, "1 of 4 problems: head has no plan", (4, 3), 4 / 3),
        ({"a": gone, "d": gone}, "2 of 4 problems: head has no plan", (4, 2), 2),
        ({"a": refused}, "1 of 5 problems: the library refuses the problem", (5, 4), 5 / 4),
    ):
        found = exact_plans.compare(base, base | lost, ["gfx942"])
        (entry,) = (one for one in found if one.status == "regression")
        assert entry.reason.startswith(reason)
        assert ((entry.base, entry.head), entry.decision.ratio) == (numbers, ratio)


def test_more_kinds_of_change_than_are_written_out_are_counted():
    """Ten problems lose the flash path for ten reasons: eight are causes, and nine are more than the first."""
    base = {str(n): Answers(plans={"gfx942": TAKEN}) for n in range(10)}
    left = {str(n): Answers(plans={"gfx942": msgspec.structs.replace(LEFT, reason=str(n))}) for n in range(10)}
    (entry,) = (one for one in exact_plans.compare(base, left, ["gfx942"]) if one.label == "flash path")
    assert len(entry.causes) == 8
    assert entry.reason.endswith("; 9 more kinds of change")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"grid": (4, 4, 1)}, "grid 2 x 4 x 1 -> 4 x 4 x 1"),
        ({"block": (64, 1, 1)}, "block 128 x 1 x 1 -> 64 x 1 x 1"),
        ({"dynamic_lds_bytes": 512}, "dynamic LDS 0 -> 512"),
        ({"defines": {"KEYS_PER_TILE": 64, "SLICES": 2}}, "KEYS_PER_TILE 32 -> 64, SLICES unset -> 2"),
        ({"kernel": "flash_decode"}, "launches flash_decode instead of flash_attention_causal"),
        ({}, "other arguments of the same launches"),
    ],
)
def test_another_geometry_is_listed_and_not_judged(changed, says):
    """A tile or a grid is for the clock to judge: it is shown with what changed."""
    head = answers(**at(other(TAKEN, launches=(other(FLASH, **changed),), hash="c")))
    (entry,) = (one for one in exact_plans.compare(answers(), head, ARCHS) if one.status != "pass")
    assert (entry.label, entry.arch, entry.status) == ("changed plans or choices", "", "ungated")
    assert says in entry.causes[0].text
    assert entry.causes[0].text.endswith(" (p)")  # one problem, on two architectures
    assert entry.reason.startswith("2 plans or choices not as in base")


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("decode.cpp:102:12: error: no", ("kernels/cpu/decode.cpp", 102)),
        ("./forward.h:7:1: fatal error: no", ("kernels/cpu/forward.h", 7)),
        ("/a b/kernels/include/rocattn/tile.h:3:1: error: no", ("kernels/include/rocattn/tile.h", 3)),
        ("/opt/lib/c++/v1/vector:9:1: error: no", None),
        ("no message, exit status 1", None),
    ],
)
def test_a_backend_that_does_not_compile_is_located(message, place):
    """It is that line that a reader must mend: the backend's own file has not changed."""
    head = answers(**of("cpu", tiled=other(TILED, available=False, why=f"x does not: {message}")))
    (entry,) = (one for one in exact_plans.compare(answers(), head, ARCHS) if one.status != "pass")
    (cause,) = entry.causes
    assert (cause.location and (cause.location.path, cause.location.line)) == place


def test_a_backend_for_what_none_computed_is_new():
    """Nobody lost anything, and there is nothing to compare it with."""
    unable = msgspec.structs.replace(TILED, supports=False, why="D", workspace_bytes=None)
    base = {"p": Answers(selected="", backends={"cpu-flash": unable})}
    head = {"p": Answers(selected="cpu-flash", backends={"cpu-flash": TILED})}
    (entry,) = exact_plans.compare(base, head, ARCHS)
    assert (entry.label, entry.status, entry.reason) == (
        "select cpu-flash",
        "new",
        snapshot("1 of 1 problems: cpu-flash is selected; base has none (p)"),
    )
    assert [one.status for one in exact_plans.compare(head, base, ARCHS)] == ["regression"]


def test_a_problem_that_one_side_refuses():
    """Not measured is never passed; an old revision lacks an option, and nothing follows from that."""
    refused = {"p": Answers(unknown="ConfigError: D"), "q": answers()["q"]}
    found = exact_plans.compare(answers(), refused, ARCHS)
    (worse,) = (one for one in found if one.status != "pass")
    assert (worse.label, worse.status, worse.reason) == (
        "plans",
        "regression",
        snapshot("1 of 2 problems: the library refuses the problem: ConfigError: D (p)"),
    )
    found = exact_plans.compare(refused, answers(), ARCHS)
    assert {one.status for one in found} == {"pass"}
    assert all("1 problems" in one.reason for one in found)


def test_what_is_gained_makes_up_for_no_loss():
    """Of three problems one loses the flash path and one wins it: a regression, by what base had and has lost."""
    one, won, lost = (dict.fromkeys(ARCHS, plan) for plan in (TAKEN, TAKEN, LEFT))
    base = {"r": answers(plans=lost)["p"], **answers(plans=one)}
    head = {"r": answers(plans=won)["p"], **answers(plans=lost)}
    (entry,) = (one for one in exact_plans.compare(base, head, ARCHS) if one.label == "flash path")
    assert (entry.status, entry.base, entry.head, entry.decision.ratio) == ("regression", 2, 2, 2)


def with_cpu(*sizes):
    """One side's answers to problems "0", "1", …, for which the CPU backend allocates so many bytes."""
    return {
        str(number): Answers(selected="cpu", backends={"cpu": msgspec.structs.replace(CPU, workspace_bytes=size)})
        for number, size in enumerate(sizes)
    }


@pytest.mark.parametrize(
    ("before", "after", "status", "numbers", "ratio"),
    [
        ((8192, 8192, 8192), (12288, 24576, 8192), "regression", (8192, 24576), 3),
        ((8192, 0, 8192), (65536, 4096, 8192), "regression", (0, 4096), None),
        ((8192, 8192, 8192), (4096, 2048, 8192), "improvement", (8192, 2048), 0.25),
        ((8192, 8192, 8192), (4096, 0, 8192), "improvement", (8192, 0), None),
        ((8192, 8192, 8192), (4096, 12288, 8192), "regression", (8192, 12288), 1.5),
        ((8192, 8192, 8192), (4096, 8192, 8192), "improvement", (8192, 4096), 0.5),
    ],
    ids=["worst", "from nothing", "best", "to nothing", "both", "a page less"],
)
def test_a_workspace_is_told_by_the_problem_that_changed_most(before, after, status, numbers, ratio):
    """A waiver's ceiling is for all of them: the largest growth decides, and what began at nothing has no ratio."""
    found = exact_plans.compare(with_cpu(*before), with_cpu(*after), ARCHS)
    (entry,) = (one for one in found if one.status not in {"pass", "ungated"})
    assert (entry.label, entry.status, (entry.base, entry.head)) == ("workspace cpu", status, numbers)
    assert (entry.decision and entry.decision.ratio) == ratio
    alike = sum(
        (one > two) == (numbers[0] > numbers[1]) and abs(one - two) >= exact_plans.PAGE_BYTES
        for one, two in zip(before, after, strict=True)
    )
    assert f"{numbers[0]} -> {numbers[1]} bytes of workspace of " in entry.reason
    assert (f"and {alike - 1} more problem" in entry.reason) == (alike > 1)


def test_losses_of_some_architectures_are_theirs():
    """Two of three are two entries; of three problems the cause of two is named before that of one."""
    archs = ("gfx1030", *ARCHS)
    base = {key: Answers(plans=dict.fromkeys(archs, TAKEN)) for key in "abc"}
    rare = msgspec.structs.replace(LEFT, reason="it is Tuesday")
    head = {
        key: Answers(plans={"gfx1030": TAKEN, **dict.fromkeys(ARCHS, plan)})
        for key, plan in zip("abc", (rare, LEFT, LEFT), strict=True)
    }
    lost = [one for one in exact_plans.compare(base, head, archs) if one.status == "regression"]
    assert [(one.label, one.arch) for one in lost] == [("flash path", arch) for arch in ARCHS]
    first, second = lost[0].causes
    assert first.text.endswith("windows are not allowed (b and 1 more)")
    assert second.text.endswith("it is Tuesday (a)")
    assert lost[0].reason.startswith("3 of 3 problems: ")
    assert lost[0].reason.endswith("; 1 more kind of change")
