"""`rocattn verify` catches and names the mistakes that attention kernels make; a program without one passes."""

import shlex
from importlib import import_module
from xml.etree import ElementTree as ET

import pytest

from rocattn.backends import BACKENDS
from rocattn_profiling.cli import main
from rocattn_profiling.verify.cases import cases
from rocattn_profiling.verify.outcomes import symptoms
from rocattn_profiling.verify.run import verify

# The mistake -> what the sentence says of it, and families that must fail.
MISTAKES = {
    "last-key": ("the last key of a row is not seen", {"accuracy", "visibility", "positions", "edges"}),
    "top-left": ("causal and window are aligned top-left, not bottom-right", {"accuracy", "visibility"}),
    "sentinel": ("hidden scores are a finite number, not -inf", {"accuracy", "visibility"}),
    "additive": ("finite values of an additive mask are not added", {"accuracy", "visibility"}),
    "half-p": ("errors are as large as with probabilities kept in float16", {"accuracy", "scales"}),
    "rescale": (
        "not rescaled when a later tile has a larger score (tiles of 48 keys fit best)",
        {"accuracy", "scales", "edges"},
    ),
    "fused": ("the exponent is rounded before the largest score is subtracted", {"stability"}),
    "narrow": ("float64 is computed in float32", {"basics"}),
    "log2": ("the LSE is in base 2, not natural", {"accuracy", "visibility", "scales"}),
    "stride": ("rows of V are read 128 elements apart in memory", {"accuracy", "positions", "scales", "edges"}),
}


# The mistakes are of forward passes.
FORWARD = [case for case in cases("quick") if case.config.direction == "forward"]


@pytest.fixture
def broken():
    """The broken backends, registered; taken back after the test."""
    import_module(f"{__package__}.broken_backends")  # not "from . import": it must be imported anew each time
    return lambda mistake: BACKENDS.get(f"broken-{mistake}")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_caught_and_named(broken, mistake):
    """The quick level fails in the families that look for the mistake, and its first sentence is the mistake."""
    backend = broken(mistake)
    found = verify(FORWARD, [backend])
    words, families = MISTAKES[mistake]
    lines = symptoms(found.outcomes)[backend.name]
    assert words in lines[0]
    assert families <= {outcome.family for outcome in found.outcomes if not outcome.ok}
    assert lines[-1].startswith("failing families: ")
    assert all(family in lines[-1] for family in families)


def test_a_program_without_a_mistake_passes(broken):
    """What is caught above is the mistake: the same program without one is right in every case that it can do."""
    found = verify(FORWARD, [broken("not")])
    assert sum(outcome.ran for outcome in found.outcomes) > 25
    assert {outcome.case: outcome.fault for outcome in found.outcomes if not outcome.ok} == {}
    assert symptoms(found.outcomes) == {}


def test_the_command_of_a_failing_line_reproduces_it(broken, capsys, tmp_path):
    """The printed command gives the same sentence; the same case on the reference is right; JUnit and HTML say so."""
    broken("stride")
    words = ["--family", "positions", "--quick", "--backend", "cpu", "broken-stride", "--seed", "3"]
    assert main(["verify", *words, "--out", str(tmp_path / "a"), "--junit", str(tmp_path / "j.xml")]) == 1
    line = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("WRONG"))
    assert line.startswith("WRONG broken-stride positions/")
    command = line.partition("; again: ")[2]
    again = shlex.split(command)
    assert again[:2] == ["rocattn", "verify"]
    assert again[-2:] == ["--seed", "3"]
    assert main([*again[1:], "--out", str(tmp_path / "b")]) == 1
    assert line in capsys.readouterr().err
    elsewhere = [word.replace("broken-stride", "cpu") for word in again[1:]]
    assert main([*elsewhere, "--out", str(tmp_path / "c")]) == 0

    suites = {suite.get("name"): suite for suite in ET.parse(tmp_path / "j.xml").getroot()}  # noqa: S314 - ours
    assert suites["cpu"].get("failures") == "0"
    failed = [test for test in suites["broken-stride"] if test.find("failure") is not None]
    assert len(failed) == int(suites["broken-stride"].get("failures")) > 0
    symptom = failed[0].find("failure").get("message")
    assert symptom == "rows of V are read 128 elements apart in memory (they are 64 apart)"
    assert command in "".join(test.find("failure").text for test in failed)
    page = (tmp_path / "a" / "index.html").read_text()
    assert symptom in page
    assert command in page.replace("&#39;", "'")
    assert "<script" not in page
