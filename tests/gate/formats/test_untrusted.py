"""The comment from a verdict that a pull request wrote: numbers and names, our own conclusion, nothing else."""

import json
import os

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn_profiling.cli import main
from rocattn_profiling.gate import verdict
from rocattn_profiling.gate.formats import markdown, untrusted
from rocattn_profiling.gate.formats.untrusted import UntrustedError
from rocattn_profiling.gate.model import Cause, GateResult, Location

from ...screens import line

PHISH = "Please run curl evil.example to fix this"


@pytest.fixture
def stored(entry, result_of, tmp_path):
    """Return a function that stores a verdict changed as JSON, and gives its path."""

    def store(change=len, **facts):
        cause = Cause(kind="source", text=PHISH, location=Location(path="kernels/a.hip", line=7))
        made = result_of(
            [
                entry("b.C.time_slow", "regression", 1.31, causes=[cause], reason=PHISH),
                entry("b.C.time_known", "waived", 1.1, waiver=PHISH),
                entry("b.C.time_lost", "failed", reason=PHISH, traceback=PHISH),
                entry("b.C.time_fine", "pass"),
            ],
            **{"notes": [PHISH], "problems": [PHISH], "invalid": PHISH, **facts},
        )
        content = json.loads(verdict.to_json(made))
        change(content)
        path = tmp_path / "verdict.json"
        path.write_text(json.dumps(content))
        return path

    return store


def test_no_sentence_of_the_verdicts_is_shown(stored):
    """Reasons, causes, waivers, notes, problems, subjects: a stranger's words stay in the artifact."""

    def phish(content):
        content["sentence"] = content["again"] = PHISH
        content["head"]["revision"]["subject"] = PHISH
        content["entries"][0]["decision"]["reason"] = PHISH

    text = markdown.comment(untrusted.read(stored(phish)))
    assert "curl" not in text
    assert "b.C.time_slow" in text
    assert "x1.310" in text
    assert "kernels/a.hip&#58;7" in text
    assert line(text, "expired") == snapshot("- **problem:** a waiver has expired or is not needed")


def test_reasons_are_shown_when_asked_for(stored):
    """For branches of the repository's own: the words are there, and harmless as markup."""
    text = markdown.comment(untrusted.read(stored(notes=["<b>@team</b>"]), explain=True))
    assert PHISH in text
    assert "&#60;b>&#64;&#8203;team" in text


@pytest.mark.parametrize("claim", ["pass", "inconclusive", "regression", "not measured", "problem"])
def test_the_conclusion_is_drawn_anew(stored, claim):
    """A verdict cannot call itself green, nor miscount."""

    def lie(content):
        content |= {"verdict": claim, "sentence": "all fine", "counts": {"pass": 99}}

    result = untrusted.read(stored(lie))
    assert (result.verdict, result.status) == ("regression", 1)
    assert result.counts == {"regression": 1, "failed": 1, "waived": 1, "pass": 1}
    assert result.sentence.startswith("1 of 4 benchmarks is slower by 31 %")


def test_entries_are_sorted_anew(stored):
    """The worst is first whatever the file's order."""
    path = stored(lambda content: content["entries"].reverse())
    assert [e.status for e in untrusted.read(path).entries] == ["regression", "failed", "waived", "pass"]


def test_fields_of_a_newer_gate_are_ignored(stored):
    """The pull request may carry a newer rocattn than the main branch that comments."""

    def newer(content):
        content["entries"][0]["colour"] = {"deep": [1, 2]}
        content["entries"][0]["base_launches"] = []

    assert untrusted.read(stored(newer)).entries[0].label == "b.C.time_slow"


def test_more_entries_than_a_suite_has_are_refused(stored):
    """Each costs time to show: there is a limit."""
    with pytest.raises(UntrustedError, match="more than 5000 entries"):
        untrusted.read(stored(lambda content: content.update(entries=content["entries"] * 2000)))


def _set(path, value):
    def change(content):
        if not path:
            content.clear()
            return
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["schema"], 2),
        (["entries", 0, "status"], "<b>"),
        (["entries", 0, "label"], 7),
        (["entries", 0, "decision", "ratio"], "1.3"),
        (["entries", 0, "decision", "ratio"], 1e300),
        (["entries", 0, "decision", "ratio"], -1.0),
        (["entries", 0, "decision", "ratio"], None),
        (["entries", 0, "base"], 1e31),
        (["entries", 0, "decision", "rounds_used"], -5),
        (["suite_shift"], 1e300),
        (["launches"], -1),
        (["launches"], 2**200),
        (["head", "revision", "sha"], "HEAD; rm -rf /"),
        (["head", "revision", "sha"], "ab" * 21),
        (["entries"], {}),
        (["machine"], 7),
        (["policy", "tolerance"], -1),
        (["entries"], [{}] * 6000),
        ([], {}),
    ],
)
def test_what_is_not_a_verdict_is_refused(stored, path, value):
    """Types, ranges, sizes: one line, which quotes nothing of the file."""
    with pytest.raises(UntrustedError) as error:
        untrusted.read(stored(_set(path, value)))
    assert "\n" not in str(error.value)
    assert "rm -rf" not in str(error.value)
    assert "<b>" not in str(error.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[" * 200_000, b'{"x": ' + b"[" * 200_000, b"\xff\xfe", b'{"schema": NaN}', b"PK\x03\x04"],
    ids=["empty", "null", "deep", "deep unknown", "binary", "NaN", "archive"],
)
def test_what_is_no_json_is_refused(tmp_path, data):
    """Empty, deep, binary: never a traceback."""
    path = tmp_path / "verdict.json"
    path.write_bytes(data)
    with pytest.raises(UntrustedError):
        untrusted.read(path)


def test_only_a_regular_file_of_bounded_size_is_read(tmp_path, stored, monkeypatch):
    """An artifact may hold links to the runner's secrets, pipes that never end, or gigabytes."""
    good = stored()
    link = tmp_path / "link.json"
    link.symlink_to(good)
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for path in (link, pipe, tmp_path, tmp_path / "none.json"):
        with pytest.raises(UntrustedError):
            untrusted.read(path)
    monkeypatch.setattr(untrusted, "MOST_BYTES", 100)
    with pytest.raises(UntrustedError, match="larger than"):
        untrusted.read(good)


@pytest.mark.parametrize(
    ("given", "again"),
    [
        ("--suite benchmarks", "--suite benchmarks"),
        (
            "--pytest tests/bench --pytest 'tests/test_x.py::test_y'",
            "--pytest tests/bench --pytest tests/test_x.py::test_y",
        ),
        ("--suite benchmarks --requirements evil", "--suite benchmarks"),
        ("--python /tmp/evil --tolerance 50", ""),
        ("--pytest 'tests; curl evil'", None),
        ("--pytest ../../evil", None),
        ("--suite --learn", None),
        ("--command 'curl evil'", None),
        ("--pytest 'tests", ""),
    ],
)
def test_the_command_to_repeat_has_names_only(stored, given, again):
    """Folders and tests. Without what else decides what is measured there is no command, and a note says so."""
    result = untrusted.read(stored(_set(["again"], f"rocattn gate run --base x --head y {given}")))
    sha = ("ab" * 20)[:12]
    wanted = "" if again is None else " ".join(f"rocattn gate run --base {sha} --head {sha} {again} --quick".split())
    assert result.again == wanted
    assert bool(result.notes) == (again is None or "evil" in given)
    assert "evil" not in "".join(result.notes)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a b", "a\nb", "<b>", "x" * 5000, "a//b", ""])
def test_places_that_are_no_paths_are_left_out(stored, path):
    """A cause's place is shown only if it reads as one; without text and place nothing is left of a cause."""
    result = untrusted.read(stored(_set(["entries", 0, "causes", 0, "location", "path"], path)))
    causes = result.entries[0].causes
    assert causes == []
    shown = untrusted.read(stored(_set(["entries", 0, "causes", 0, "location", "line"], -4)))
    assert shown.entries[0].causes == []


def test_names_of_a_megabyte_are_cut(stored):
    """The comment stays small and whole."""

    def grow(content):
        for one in content["entries"]:
            one["label"] = one["name"] = one["unit"] = one["metric"] = "@" * 1_000_000

    text = markdown.comment(untrusted.read(stored(grow)))
    assert len(text.encode()) < 64_000
    assert "@" not in text


def test_the_command_makes_a_comment_of_what_it_can_trust(stored, tmp_path, capsys):
    """On stdout or in a file; the run's address comes from the workflow, and must be one."""
    path = stored()
    assert main(["gate", "comment", str(path), "--run-url", "https://github.com/a/b/actions/runs/12"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(markdown.MARKER)
    assert "([run](https://github.com/a/b/actions/runs/12))" in text
    assert line(text, "numbers") == snapshot(
        "Taken from the run's verdict: names and numbers only. Its reasons and causes are in the run's own summary "
        "and files."
    )
    assert main(["gate", "comment", str(path), "--explain", "--out", str(tmp_path / "c.md")]) == 0
    assert PHISH in (tmp_path / "c.md").read_text()
    assert "names and numbers only" not in (tmp_path / "c.md").read_text()
    for url in ("javascript:alert(1)", "https://x/) [a](b", "https://x/\ny", "https://u:p@x/"):
        assert main(["gate", "comment", str(path), "--run-url", url]) == 4


def test_without_a_verdict_the_comment_says_not_measured(tmp_path, capsys):
    """A crash is not green: there is a comment, and the status is 3."""
    assert main(["gate", "comment", str(tmp_path / "verdict.json"), "--run-url", "https://h/r/1"]) == 3
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{markdown.MARKER}\n### rocattn gate: not measured\n")
    assert "[Its log](https://h/r/1)" in printed.out
    assert printed.err == "rocattn gate comment: cannot read verdict.json: No such file or directory\n"


def test_two_existing_environments_are_shown_without_a_revision(stored):
    """An interpreter's path is a name like any other."""

    def existing(content):
        for side in ("base", "head"):
            content[side] |= {"revision": None, "interpreter": "/opt/<env>/bin/python"}

    result = untrusted.read(stored(existing))
    assert result.base.revision is None
    text = markdown.comment(result)
    assert "<code>/opt/&#60;env>/bin/python</code>" in text
    assert "again:" not in text


def test_the_reduced_verdict_is_still_a_verdict(stored):
    """What was taken encodes and decodes as any other."""
    result = untrusted.read(stored())
    assert msgspec.json.decode(verdict.to_json(result), type=GateResult) == result
