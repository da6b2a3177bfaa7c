"""Waivers that accept nothing though somebody meant them to: the verdict says which, and what they lack."""

import datetime as dt

import msgspec
import pytest

from rocattn_profiling.gate import waivers
from rocattn_profiling.gate.waivers import FILE, Waiver, WaiverTable
from rocattn_profiling.revisions import git as revisions

LABEL = "bench.Class.time_x(1024, 'cpu | two')"
KERNEL = "flash_attention f16 D=128"


def waiver(**facts):
    """One waiver that accepts ten percent of LABEL's time for a while."""
    usual = {"benchmark": LABEL, "metric": "time", "ceiling": 1.10, "expires": dt.date(2026, 12, 31), "reason": "known"}
    return Waiver(**{**usual, "source": f"{FILE}:2", **facts})


def applied(entries, *found):
    """The entries with waivers applied, and problems."""
    return waivers.apply(entries, WaiverTable(rows=list(found)), dt.date(2026, 11, 20))


@pytest.mark.parametrize(
    ("regressed", "written", "said"),
    [
        ((KERNEL, "audit", "gfx1100"), (KERNEL, "audit", "gfx942"),
         f"is of {KERNEL} audit gfx942, this is {KERNEL} audit gfx1100"),
        ((KERNEL, "audit", "gfx1100"), (KERNEL, "audit", ""),
         f"is of {KERNEL} audit without an architecture, this is {KERNEL} audit gfx1100"),
        (("flash path", "plan", ""), ("flash path", "plan", "gfx942"),
         "is of flash path plan gfx942, this is flash path plan without an architecture"),
        ((KERNEL, "audit", "gfx1100"), ("Flash_attention  F16 D=128", "audit", "gfx1100"), "is of Flash_a"),
        ((LABEL, "time", ""), (LABEL, "mem", ""), f"is of {LABEL} mem, this is {LABEL} time"),
        ((LABEL, "time", ""), (LABEL, "time", "gfx942"), f"is of {LABEL} time gfx942, this is {LABEL} time"),
        ((LABEL, "time", ""), (LABEL.replace("'", '"'), "time", ""), 'is of bench.Class.time_x(1024, "'),
        ((LABEL, "time", ""), ("bench.Class.time_x", "time", ""), "is of bench.Class.time_x time, this is"),
    ],
    ids=["architecture", "without one", "on all of them", "case", "metric", "of a time", "quotes", "parameters"],
)  # fmt: skip
def test_a_waiver_that_was_probably_meant_is_named(entry, regressed, written, said):
    """It accepts nothing, but the regression says what it is of and what it would have to be of."""
    label, metric, arch = regressed
    made = entry(label, "regression", 1.05, metric=metric, arch=arch)
    made = msgspec.structs.replace(made, name=label.partition("(")[0])
    other = waiver(benchmark="other")
    for expires in (dt.date(2026, 12, 31), None):
        mine = waiver(**dict(zip(("benchmark", "metric", "arch"), written, strict=True)), expires=expires)
        (after,), _ = applied([made], other, mine)
        assert after.status == "regression"
        assert f"not waived: {mine.source} {said}" in after.reason
    (after,), _ = applied([made], other)
    assert after == made
    passed = entry(label, "pass", 1.0, metric=metric, arch=arch)
    assert applied([passed], mine)[0] == [passed]


def test_a_waiver_without_an_architecture_is_not_unused(entry):
    """Where its kernel did, the regression says what is missing; where nothing did, it is not needed like any other."""
    mine = waiver(benchmark=KERNEL, metric="audit")
    beside = [entry("b", "pass"), entry("37 kernels", "pass", metric="audit", arch="gfx942")]
    assert applied([entry(KERNEL, "regression", 1.2, metric="audit", arch="gfx1100"), *beside], mine)[1] == []
    _, problems = applied(beside, mine)
    assert "it did not get worse" in problems[0]
    _, problems = applied(beside, waiver(benchmark="c", arch="gfx942"))
    assert problems[0].endswith("metric, with an arch, which only exact metrics have; take it out")


@pytest.mark.parametrize("indent", ["    ", "\t", "> "])
def test_an_indented_trailer_is_told(indent):
    """What git merge --squash makes of one, or a quotation: nothing is read from it, and a note says so."""
    quoted = f"Squashed commit of the following:\n\n{indent}Rocattn-Accept: {LABEL} | time | 1.3 | why\n"
    found = waivers.load(None, [("abc1234", quoted)])
    assert found.rows == []
    (note,) = found.notes
    assert note.startswith("commit abc1234: an indented Rocattn-Accept accepts nothing: begin a line with it")
    assert waivers.load(None, [("abc1234", "S\n\n    rocattn-accept is documented\n")]) == WaiverTable()


def test_a_trailer_is_read_in_any_encoding_of_git(repo):
    """Its letters must be those of the label; a merge brings the trailers of what it merges."""
    repo.commit("one", a="1")
    base = revisions.resolve(repo.root, "HEAD")
    repo.git("checkout", "--quiet", "-b", "side")
    repo.commit("two\n\nRocattn-Accept: bench.time_x('café') | time | 1.3 | why", a="2")
    repo.git("checkout", "--quiet", "main")
    repo.git("merge", "--quiet", "--no-ff", "-m", "Merge\n\nRocattn-Accept: b | mem | 2 | both", "side")
    repo.git("config", "i18n.logOutputEncoding", "ISO-8859-1")
    messages = waivers.commit_messages(repo.root, base, revisions.resolve(repo.root, "HEAD"))
    assert {one.benchmark for one in waivers.load(None, messages).rows} == {"b", "bench.time_x('café')"}
