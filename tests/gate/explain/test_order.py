"""What an explanation names first, what it leaves to others, and the command that it ends with."""

import re
import shlex
from dataclasses import replace

import msgspec
import pytest

from rocattn_profiling.gate.exact.sides import Answers, BackendAnswer
from rocattn_profiling.gate.explain import explain
from rocattn_profiling.gate.formats.render import MOST_CAUSES, entry_lines
from rocattn_profiling.gate.verdict import Cause

from .explaining import LIBRARY, explained, places, projects, worse


@pytest.fixture
def project(tmp_path):
    """Return a function that makes both sides, with some files changed in head."""
    return projects(tmp_path)


def commands(entry):
    """Return the patterns of the command that an explanation ends with, as a shell reads it from the terminal."""
    text = "\n".join(entry_lines(entry))
    found = re.findall(r"`(rocattn gate run [^`]*)`", text)
    return [shlex.split(command)[4] for command in found]


@pytest.mark.parametrize(
    ("label", "others"),
    [
        ("b.C.time_x('cpu', 'b1-h8')", ["b.C.time_x('cpu-flash', 'b1-h8')", "b.C.time_x('cpu', 'b1-h8-d64')"]),
        ("b.time_x", ["b.time_x_all", "ab.time_x", "b.time_x(1)", "b_time_x"]),
        ("b.time_x(1.0, [a-z]+|b?{2}^$)", ["b.time_x(1.0, a)", "b.time_x(1x0, [a-z]+|b?{2}^$)"]),
        ("b.time_x(array([[1., 0.],\n       [0., 1.]]))", ["b.time_x(array([[1., 0.],\n       [0., 2.]]))"]),
        ("b.time_x('it\\'s  a `x` \u00e9\u202e $(touch x) \"##[x]')", ["b.time_x('its a x')"]),
    ],
)
def test_the_command_measures_this_benchmark_and_no_other(project, label, others):
    """Another one's minutes are lost, and its verdict stands beside the one that was asked for."""
    (found,) = explained(project({}), worse(label))
    (pattern,) = commands(found)
    assert [one for one in (label, *others) if re.search(pattern, one)] == [label]


def test_of_many_causes_the_terminal_shows_as_many_as_the_comment(project):
    """All of them are in the JSON."""
    context = project({}, {f"p{number:02}": ("1", "2") for number in range(40)})
    (found,) = explained(context, worse(status="failed", reason="no"))
    assert len(found.causes) == 40
    listed = [line for line in entry_lines(found) if line.startswith("    - ")]
    assert listed[-2:] == ["    - environment: p07 1 -> 2", "    - 32 more"]
    assert len(listed) == MOST_CAUSES + 1
    few = msgspec.structs.replace(found, causes=found.causes[:MOST_CAUSES])
    assert "more" not in list(entry_lines(few))[-1]


def test_what_ran_comes_before_packages_and_these_before_what_is_merely_loaded(project):
    """The order is that of how likely each is the cause."""
    changed = {
        "tinylib/work.py": f"import numpy\n{LIBRARY['tinylib/work.py'].replace('range(2)', 'range(6)')}",
        "tinylib/parts.py": LIBRARY["tinylib/parts.py"].replace("return 1", "return 3"),
    }
    (found,) = explained(project(changed, {"numpy": ("1.26.0", "2.1.0")}))
    assert [one.text.split()[0] for one in found.causes] == ["tinylib/work.py", "numpy", "tinylib/parts.py"]


@pytest.mark.parametrize("ran", [True, False])
def test_a_module_that_is_gone_is_named_among_what_ran_only_if_it_did(project, ran):
    """One that was merely loaded on base made nothing fast."""
    other = "" if ran else "from tinylib.parts import part\n"
    loads = f"try:\n    from tinylib.fast import part\nexcept ImportError:\n    from tinylib.parts import part\n{other}"
    context = project({})
    for tree in context.trees.values():
        (tree / "tinylib/work.py").write_text(loads + LIBRARY["tinylib/work.py"].partition("\n")[2])
    (context.trees["base"] / "tinylib/fast.py").write_text("def part(n):\n    return n\n")
    (found,) = explained(context)
    assert [one.text for one in found.causes] == ["tinylib/fast.py is gone"]
    assert ("Of what it runs, tinylib/fast.py is gone." in found.explanation) == ran
    assert ("files that it loads were: tinylib/fast.py." in found.explanation) != ran


def test_what_is_merely_loaded_is_left_out_where_a_cause_is_known(project, monkeypatch):
    """Counters say what moved: a file that no function of the benchmark is in would lead away from it."""
    counters = Cause(kind="counters", text="the kernel k takes 1.5 times as long")
    monkeypatch.setattr(explain.explain_counters.Counters, "of", lambda *_: [counters])
    monkeypatch.setattr(explain.explain_trace, "moves", lambda *_: [])  # a busy machine may take longer on head
    parts = LIBRARY["tinylib/parts.py"].replace("return 1", "return 3")
    (found,) = explained(project({"tinylib/parts.py": parts}))
    assert "the kernel k takes 1.5 times as long. Take that change back" in found.explanation
    assert places(found) == [("tinylib/parts.py", 6)]  # in the list it is


@pytest.mark.parametrize("about", sorted(explain.ADVICE))
def test_the_advice_is_about_the_number_that_got_worse(project, about):
    """Whatever words its reason has: those of other numbers, in capitals, or none."""
    context = project({})
    for reason in ("8 VGPRs are spilled, 16 bytes of scratch, 12 more cycles", "THE STANDARD PATH", "x"):
        entry = msgspec.structs.replace(worse("k", metric="audit"), about=about, reason=reason)
        (found,) = explained(context, entry)
        assert found.explanation.endswith(explain.ADVICE[about])
        (found,) = explained(context, msgspec.structs.replace(entry, about="code"))
        assert not any(advice in found.explanation for advice in explain.ADVICE.values())


@pytest.mark.parametrize("refused", [False, True])
def test_cpu_kernels_are_on_the_path_of_what_fails_in_them(project, monkeypatch, refused):
    """One that crashes, hangs or does not compile; not where the backend says no before any kernel runs."""

    def answered(_, side, problems, archs):
        answer = BackendAnswer(available=True, supports=side == "base" or not refused, priority=1)
        return {label: Answers(backends={"cpu-flash": answer}) for label in problems}

    monkeypatch.setattr(explain, "ask", answered)
    params = {"backend": "'cpu-flash'", "config": "'b1-h8-q128-k128-d64-float32'"}
    entry = worse("bench_work.time_x('cpu-flash')", "failed", params=params, reason="the process was killed by SIGSEGV")
    (found,) = explained(project({"kernels/cpu/forward.cpp": "int x;\n", "kernels/cpu/abi.h": "int y;\n"}), entry)
    assert [path for path, _ in places(found)] == ([] if refused else ["kernels/cpu/forward.cpp", "kernels/cpu/abi.h"])
    assert ("On its path, kernels/cpu/forward.cpp" in found.explanation) != refused


def test_a_change_that_is_taken_back_is_measured_in_the_working_tree(project, monkeypatch):
    """Head's commit still has it, whatever the reader did since."""
    counters = Cause(kind="counters", text="the kernel k takes 1.5 times as long")
    monkeypatch.setattr(explain.explain_counters.Counters, "of", lambda *_: [counters])
    context = project({})
    (found,) = explained(replace(context, again="rocattn gate run --head abc", undone="rocattn gate run --head TREE"))
    assert "back and measure it alone: `rocattn gate run --head TREE --bench '" in found.explanation
