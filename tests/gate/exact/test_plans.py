"""Plans, workspaces and backends of both sides, compared: what fails by its consequence, and what is only listed."""

import msgspec
import pytest
from own_gate import plans as exact_plans
from own_gate.answers import Answers, BackendAnswer, PlanAnswer, PlannedLaunch

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


def compared(**changes):
    """(label, architecture) -> entry, of a head that differs from base in the answers to p."""
    return {(one.label, one.arch): one for one in exact_plans.compare(answers(), answers(**changes), ARCHS)}


def judged(entries):
    """(label, architecture) -> status, but for what passes."""
    return {key: one.status for key, one in entries.items() if one.status != "pass"}


def test_what_is_as_in_base_passes_and_is_counted():
    """Of each problem a plan and a workspace an architecture, a choice, another backend, two workspaces here."""
    found = exact_plans.compare(answers(), answers(), ARCHS)
    assert [(one.metric, one.status, one.reason) for one in found] == [
        ("plan", "pass", "8 plans and backend choices of 2 problems equal base's"),
        ("workspace", "pass", "8 workspaces of 2 problems equal base's"),
    ]


def test_a_lost_flash_path_is_a_regression_with_its_reason():
    """On one architecture it is that one's; on all of them it is said once. The reason and both paths are named."""
    found = compared(plans={"gfx1100": LEFT, "gfx942": TAKEN})
    assert judged(found) == {("flash path", "gfx1100"): "regression"}
    entry = found["flash path", "gfx1100"]
    assert (entry.metric, entry.base, entry.head, entry.unit, entry.decision.ratio) == ("plan", 2, 1, "problems", 2)
    assert (entry.decision.ratio_low, entry.decision.ratio_high, entry.decision.p) == (2, 2, 0)
    assert entry.reason.startswith("1 of 2 problems: ")
    assert "qk_matmul + softmax + pv_matmul" in entry.reason
    assert "windows are not allowed" in entry.reason
    assert entry.causes[0].kind == "backend"
    everywhere = compared(plans=dict.fromkeys(ARCHS, LEFT))
    assert judged(everywhere) == {("flash path", ""): "regression"}


def test_a_won_flash_path_is_an_improvement():
    """The same the other way round."""
    found = exact_plans.compare(answers(plans=dict.fromkeys(ARCHS, LEFT)), answers(), ARCHS)
    (entry,) = (one for one in found if one.status != "pass")
    assert (entry.label, entry.status, entry.base, entry.head) == ("flash path", "improvement", 1, 2)
    assert entry.decision.ratio == 0.5


def test_a_lost_plan_is_a_regression_and_a_won_one_is_new():
    """A problem that the kernels do not compute any more; the other way round base could not say anything."""
    none = PlanAnswer(problem="ConfigError: D = 300 is too large")
    (entry,) = (one for one in compared(plans=dict.fromkeys(ARCHS, none)).values() if one.status != "pass")
    assert (entry.label, entry.arch, entry.status) == ("plans", "", "regression")
    found = exact_plans.compare(answers(plans=dict.fromkeys(ARCHS, none)), answers(), ARCHS)
    (entry,) = (one for one in found if one.status != "pass")
    assert (entry.label, entry.status, entry.base, entry.head, entry.decision) == ("plans", "new", 1, 2, None)


def test_a_lost_plan_is_one_of_those_that_base_has():
    """On the flash path and beside it; what neither computes is none of them, what is refused one of all."""
    none, missing = (
        PlanAnswer(problem="ConfigError: D = 300 is too large"),
        Answers(plans={"gfx942": PlanAnswer(problem="never")}),
    )
    base = {key: Answers(plans={"gfx942": plan}) for key, plan in zip("abcd", (TAKEN, TAKEN, TAKEN, LEFT), strict=True)}
    base["e"] = missing
    gone, refused = Answers(plans={"gfx942": none}), Answers(unknown="ConfigError: D")
    for lost, reason, numbers, ratio in (
        ({"a": gone}, "1 of 4 problems: there is none any more", (4, 3), 4 / 3),
        ({"a": gone, "d": gone}, "2 of 4 problems: there is none any more", (4, 2), 2),
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
    other = msgspec.structs.replace(TAKEN, launches=(msgspec.structs.replace(FLASH, **changed),), hash="c")
    found = compared(plans=dict.fromkeys(ARCHS, other))
    assert judged(found) == {("changed plans or choices", ""): "ungated"}
    entry = found["changed plans or choices", ""]
    assert says in entry.causes[0].text
    assert entry.causes[0].text.endswith(" (p)")  # one problem, on two architectures
    assert entry.reason.startswith("2 plans or choices differ from base's")


def test_a_workspace_that_grows_by_a_page_is_a_regression():
    """With its ratio; less than a page is listed; of a workspace out of nothing there is no ratio."""
    grown = msgspec.structs.replace(TAKEN, workspaces={"partials": 4096}, hash="c")
    found = compared(plans=dict.fromkeys(ARCHS, grown))
    entry = found["workspace gpu", ""]
    assert (entry.status, entry.base, entry.head, entry.decision) == ("regression", 0, 4096, None)
    parts = msgspec.structs.replace(TAKEN, workspaces={"partials": 8192, "lse": 8192}, hash="d")
    found = exact_plans.compare(answers(plans={"gfx942": grown}), answers(plans={"gfx942": parts}), ARCHS)
    assert [one.decision.ratio for one in found if one.status == "regression"] == [4]
    bigger = {"cpu": msgspec.structs.replace(CPU, workspace_bytes=12288), "cpu-flash": TILED}
    entry = compared(backends=bigger)["workspace cpu", ""]
    assert (entry.status, entry.decision.ratio, entry.unit) == ("regression", 1.5, "bytes")
    little = {"cpu": msgspec.structs.replace(CPU, workspace_bytes=8200), "cpu-flash": TILED}
    assert judged(compared(backends=little)) == {("changed workspaces", ""): "ungated"}
    smaller = {"cpu": msgspec.structs.replace(CPU, workspace_bytes=0), "cpu-flash": TILED}
    assert judged(compared(backends=smaller)) == {("workspace cpu", ""): "improvement"}


def test_a_backend_that_stops_being_selected_is_a_regression():
    """Because it cannot any more, because it is gone, or because a slower one is preferred; each says which."""
    unable = msgspec.structs.replace(TILED, supports=False, why="no causal masks")
    found = compared(selected="cpu", backends={"cpu": CPU, "cpu-flash": unable})
    assert judged(found) == {("select cpu-flash", ""): "regression"}
    assert "no causal masks" in found["select cpu-flash", ""].reason
    gone = compared(selected="cpu", backends={"cpu": CPU})
    assert "is not there any more" in gone["select cpu-flash", ""].reason
    slower = compared(selected="cpu")
    assert "base holds for slower" in slower["select cpu-flash", ""].reason
    away = {"cpu": CPU, "cpu-flash": msgspec.structs.replace(TILED, available=False, why="no compiler")}
    assert "cannot any more: no compiler" in compared(selected="cpu", backends=away)["select cpu-flash", ""].reason
    nobody = compared(selected="", backends={"cpu": msgspec.structs.replace(CPU, available=False), "cpu-flash": unable})
    assert "no backend is selected" in nobody["select cpu-flash", ""].reason


def test_another_backend_of_equal_priority_is_listed():
    """A backend that base does not know may be the faster one: the clock decides."""
    newer = {"cpu": CPU, "cpu-flash": TILED, "npu": msgspec.structs.replace(TILED, priority=5)}
    assert judged(compared(selected="npu", backends=newer)) == {("changed plans or choices", ""): "ungated"}
    both = {"cpu": msgspec.structs.replace(CPU, priority=TILED.priority), "cpu-flash": TILED}
    found = exact_plans.compare(answers(backends=both), answers(selected="cpu", backends=both), ARCHS)
    assert [one.label for one in found if one.status != "pass"] == ["changed plans or choices"]


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
    away = {"cpu": CPU, "cpu-flash": msgspec.structs.replace(TILED, available=False, why=f"x does not: {message}")}
    (cause,) = compared(selected="cpu", backends=away)["select cpu-flash", ""].causes
    assert (cause.location and (cause.location.path, cause.location.line)) == place


def test_an_unselected_backend_must_still_support_a_problem():
    """Who names it in a call needs it, selected or not; that it does not run on this machine is no loss."""
    unable = msgspec.structs.replace(CPU, supports=False, why="no windows")
    assert judged(compared(backends={"cpu": unable, "cpu-flash": TILED})) == {("support cpu", ""): "regression"}
    away = msgspec.structs.replace(CPU, available=False, why="no device")
    assert judged(compared(backends={"cpu": away, "cpu-flash": TILED})) == {}
    found = exact_plans.compare(
        answers(backends={"cpu": away, "cpu-flash": TILED}),
        answers(backends={"cpu": msgspec.structs.replace(away, supports=False), "cpu-flash": TILED}), ARCHS,
    )  # fmt: skip
    assert "support cpu" in {one.label for one in found if one.status == "regression"}
    entry = compared(backends={"cpu-flash": TILED})["support cpu", ""]
    assert entry.status == "regression"
    assert "cpu does not compute it any more, which is not there any more" in entry.reason


def test_a_backend_for_what_none_computed_is_new():
    """Nobody lost anything, and there is nothing to compare it with."""
    unable = msgspec.structs.replace(TILED, supports=False, why="D", workspace_bytes=None)
    base = {"p": Answers(selected="", backends={"cpu-flash": unable})}
    head = {"p": Answers(selected="cpu-flash", backends={"cpu-flash": TILED})}
    (entry,) = exact_plans.compare(base, head, ARCHS)
    assert (entry.label, entry.status) == ("select cpu-flash", "new")
    assert "base has none" in entry.reason
    assert [one.status for one in exact_plans.compare(head, base, ARCHS)] == ["regression"]


def test_a_problem_that_base_does_not_know_is_not_compared():
    """An old revision lacks an option, or plans: nothing follows from that."""
    found = exact_plans.compare({"p": Answers(unknown="ConfigError")} | {"q": answers()["q"]}, answers(), ARCHS)
    assert {one.status for one in found} == {"pass"}
    assert all("1 problems" in one.reason for one in found)
    absent = dict.fromkeys(ARCHS, PlanAnswer(absent="ImportError"))
    assert {one.status for one in exact_plans.compare(answers(plans=absent), answers(), ARCHS)} == {"pass"}


def test_what_head_alone_cannot_be_asked_is_a_regression():
    """A configuration that it refuses, or a planner that cannot be imported any more: not measured is never passed."""
    found = compared(plans=dict.fromkeys(ARCHS, PlanAnswer(absent="ImportError: no tiles")))
    assert judged(found) == {("plans", ""): "regression"}
    assert "no tiles" in found["plans", ""].reason
    found = exact_plans.compare(answers(), {"p": Answers(unknown="ConfigError: D"), "q": answers()["q"]}, ARCHS)
    assert [(one.label, one.status) for one in found if one.status != "pass"] == [("plans", "regression")]
    assert "the library refuses the problem: ConfigError: D" in found[0].reason
    none = dict.fromkeys(ARCHS, PlanAnswer(problem="ConfigError: D = 300 is too large"))
    assert {one.status for one in exact_plans.compare(answers(plans=none), answers(plans=none), ARCHS)} == {"pass"}


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
    assert (f"and {alike - 1} more problems" in entry.reason) == (alike > 1)


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
    assert lost[0].reason.endswith("; 1 more kinds of change")
