"""What a pull request's author can choose reaches neither a shell, nor another pull request, nor a path."""

import io
import os
import re
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from ..screens import screen
from .github import AFTER, BOT, GitHub, archive
from .rules import ROOT, load, load_script

SCRIPT = ROOT / ".github" / "scripts" / "pull_request.py"
SHA, OTHER = "a1" * 20, "b2" * 20
HOSTILE = [
    "$(touch x)",
    "`touch x`",
    "; touch x",
    "a\ntouch x",
    "]]>",
    "<img src=x onerror=alert(1)>",
    "--output=x",
    "",
]


@pytest.fixture
def hub():
    """A GitHub with one open pull request, number 7."""
    made = GitHub()
    made.add_pull(7, SHA)
    made.rights = {"ann": "admin", "tim": "read"}
    return made


def call(hub, folder, *words, **environment):
    """Run the script in a folder with these variables; return the finished process."""
    with hub.serving() as variables:
        base = {"PATH": os.environ["PATH"], "RUN_ID": "42", "CONCLUSION": "failure", "HEAD_SHA": SHA}
        base |= {"HEAD_REPOSITORY": "we/rocattn", "HEAD_BRANCH": "topic", "GITHUB_OUTPUT": str(folder / "output")}
        base |= {"OWED": "verdict=failure"}
        base["WORKFLOW"] = "gpu" if hub.jobs else "test"
        command = [sys.executable, "-I", SCRIPT, *words]
        return subprocess.run(
            command, cwd=folder, env=base | variables | environment, capture_output=True, text=True, check=False
        )


def admit(hub, folder, **environment):
    """Ask for a run by label."""
    asked = {"ASKED_SHA": SHA, "ASKED_BASE": OTHER, "PULL_REQUEST": "7", "LABELLED_BY": "ann"}
    return call(hub, folder, "admit", **{"GITHUB_EVENT_NAME": "pull_request", **asked, **environment})


def test_a_label_admits_the_labelled_commit_once(hub, tmp_path):
    """The outputs are the commit that had the label, and the label is gone: a later push needs a new one."""
    done = admit(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "output").read_text() == f"sha={SHA}\nbase={OTHER}\n"
    assert hub.labels[7] == []
    assert admit(hub, tmp_path).returncode == 0  # removed by someone else meanwhile: nothing to do


def test_whoever_may_not_write_cannot_admit(hub, tmp_path):
    """Triage can give labels, and a stranger's name is nobody."""
    for who, rights in (("tim", "read"), ("stranger", "none")):
        done = admit(hub, tmp_path, LABELLED_BY=who)
        assert (done.returncode, screen(done.stderr, WHO=who, RIGHTS=rights)) == (
            1,
            snapshot("pull_request.py: WHO has 'RIGHTS' rights here; a maintainer gives the label"),
        )
    assert not (tmp_path / "output").exists()
    assert hub.labels[7] == ["gpu"]


@pytest.mark.parametrize("value", [*HOSTILE, "main..other", "-x", "a" * 300])
@pytest.mark.parametrize("name", ["ASKED_SHA", "ASKED_BASE", "PULL_REQUEST", "LABELLED_BY"])
def test_hostile_requests_are_refused(hub, tmp_path, name, value):
    """Whatever has another form than it must have ends there; no output is set, no label taken."""
    done = admit(hub, tmp_path, **{name: value})
    if name == "LABELLED_BY" and value == "-x":
        assert done.returncode == 1  # a possible login, which has no rights here
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == []
    assert hub.labels[7] == ["gpu"]


def test_manual_run_takes_a_branch_as_base(hub, tmp_path):
    """workflow_dispatch needs write access already."""
    done = admit(hub, tmp_path, GITHUB_EVENT_NAME="workflow_dispatch", ASKED_BASE="release/7.0", PULL_REQUEST="")
    assert done.returncode == 0, done.stderr
    assert "base=release/7.0\n" in (tmp_path / "output").read_text()
    assert hub.calls == []


def fetched(hub, folder, **environment):
    """Fetch the verdicts; return name -> content."""
    done = call(hub, folder, "fetch", "verdicts", **environment)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["output", "verdicts"]
    found = {path.name: path.read_bytes() for path in (folder / "verdicts").iterdir()}
    owed = (folder / "output").read_text().splitlines()[-1].removeprefix("owed=").split()
    assert sorted(f"{each.removesuffix('=failure')}.json" for each in owed) == sorted(found)
    return found


def test_verdicts_are_fetched_and_the_token_stays_with_the_api(hub, tmp_path):
    """One for each machine; the host that serves the archives gets no token."""
    hub.add_machine("gfx942")
    hub.add_machine("gfx1100")
    hub.artifacts = {f"verdict-{arch}": archive({"verdict.json": arch.encode()}) for arch in ("gfx942", "gfx1100")}
    assert fetched(hub, tmp_path) == {"verdict-gfx942.json": b"gfx942", "verdict-gfx1100.json": b"gfx1100"}
    assert {path.split("/")[1]: token for path, token in hub.tokens.items()} == {"repos": "Bearer t0ken", "blob": None}


def test_a_gpu_s_verdict_takes_a_job_on_that_gpu(hub, tmp_path):
    """A fork's own workflow file can name any artifact and any label: neither makes a machine take the job."""
    hub.artifacts = {"verdict-gfx942": archive({"verdict.json": b"1"}), "verdict": archive({"verdict.json": b"2"})}
    assert fetched(hub, tmp_path) == {"verdict.json": b"2"}
    (tmp_path / "verdicts" / "verdict.json").unlink()
    hub.add_machine("gfx942", runner=None)
    hub.add_machine("$(touch x)")
    hub.jobs.append({"name": "gate", "labels": ["ubuntu-24.04", "gfx942"], "runner_name": "GitHub Actions 7"})
    assert fetched(hub, tmp_path) == {}


def test_a_fork_s_hosted_job_cannot_forge_a_gpu_s_verdict(hub, tmp_path):
    """A machine's hook refuses the fork's job, to which GitHub gives its name; another job uploads that verdict."""
    hub.add_machine("gfx942")
    hub.artifacts = {"verdict-gfx942": archive({"verdict.json": b"forged"})}
    assert fetched(hub, tmp_path, HEAD_REPOSITORY="they/rocattn") == {}
    hub.made = AFTER  # in a branch of ours: the machine's job was over
    assert fetched(hub, tmp_path) == {"verdict-gfx942.json": b""}


@pytest.mark.parametrize("place", ["jobs", "artifacts"])
@pytest.mark.parametrize("workflow", ["test", "gpu"])
def test_another_commit_s_jobs_and_artifacts_do_not_count(hub, tmp_path, workflow, place, monkeypatch):
    """By GitHub's word on each of them, whatever run lists them; of an artifact it may have none."""
    name = "verdict-gfx942" if workflow == "gpu" else "verdict"
    if workflow == "gpu":
        hub.add_machine("gfx942")
    hub.artifacts = {name: archive({"verdict.json": b"1"})}
    assert fetched(hub, tmp_path) == {f"{name}.json": b"1"}
    (tmp_path / "verdicts" / f"{name}.json").unlink()
    whole, other = hub.answer, iter([{"head_sha": OTHER}, None])

    def answer(method, path, body):
        status, told = whole(method, path, body)
        if path.partition("?")[0].endswith(place):
            head = next(other)
            told = {place: [{**one, "workflow_run": head, "head_sha": OTHER} for one in told[place]]}
        return status, told

    monkeypatch.setattr(hub, "answer", answer)
    none_owed = workflow == "gpu" and place == "jobs"
    for _ in range(2):
        assert fetched(hub, tmp_path) == ({} if none_owed else {f"{name}.json": b""})


def test_a_run_on_two_machines_owes_two_verdicts(hub, tmp_path):
    """The one that is missing is told, and does not take the place of the other workflow's."""
    hub.add_machine("gfx942")
    hub.add_machine("gfx1100")
    hub.artifacts = {"verdict-gfx942": archive({"verdict.json": b"1"})}
    assert fetched(hub, tmp_path) == {"verdict-gfx942.json": b"1", "verdict-gfx1100.json": b""}


@pytest.mark.parametrize("name", HOSTILE)
def test_another_workflow_s_name_is_refused(hub, tmp_path, name):
    """Whatever calls itself something else has nothing to comment."""
    done = call(hub, tmp_path, "fetch", "verdicts", WORKFLOW=name)
    assert done.returncode == 1
    assert "WORKFLOW is" in done.stderr


@pytest.mark.parametrize("workflow", ["test", "gpu"])
def test_earlier_attempts_verdict_is_not_used(hub, tmp_path, workflow):
    """A run that is run again keeps what its first attempt left: a job that then leaves nothing measured nothing."""
    name = "verdict-gfx942" if workflow == "gpu" else "verdict"
    if workflow == "gpu":
        hub.add_machine("gfx942")
    hub.older = {name: archive({"verdict.json": b"old"})}
    assert fetched(hub, tmp_path) == {f"{name}.json": b""}
    hub.artifacts = {name: archive({"verdict.json": b"new"})}
    assert fetched(hub, tmp_path) == {f"{name}.json": b"new"}


def test_the_gate_s_job_is_found_by_its_name():
    """What the script looks for is what the workflow calls it."""
    assert load("test")[0]["jobs"]["gate"]["name"] == load_script("pull_request").GATE


def link():
    """Return an archive whose verdict is a symbolic link."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as packed:
        entry = zipfile.ZipInfo("verdict.json")
        entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        packed.writestr(entry, "/etc/passwd")
    return data.getvalue()


def twice():
    """Return an archive with two files of the verdict's name."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as packed:
        packed.writestr("verdict.json", "1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            packed.writestr("verdict.json", "2")
    return data.getvalue()


BAD = {
    "a path upwards": lambda: archive({"../../verdict.json": b"x", "../x": b"x"}),
    "an absolute path": lambda: archive({"/tmp/verdict.json": b"x"}),  # noqa: S108 - a name in an archive
    "a link": link,
    "the name twice": twice,
    "a bomb": lambda: archive({"verdict.json": bytes(17 << 20)}),
    "no archive": lambda: b"PK\x03\x04 and no more",
    "cut off": lambda: archive({"verdict.json": os.urandom(999)})[:500],
    "damaged": lambda: archive({"verdict.json": b"x" * 999}).replace(b"\x00\x00\xfa", b"\x00\x01\xfa", 1)[40:],
    "empty": lambda: b"",
}


@pytest.mark.parametrize("what", BAD)
def test_hostile_archive_writes_nothing_elsewhere(hub, tmp_path, what):
    """Zip-slip, links, bombs and rubbish: the script goes on, the next verdict is fetched."""
    hub.add_machine("gfx1100")
    hub.add_machine("gfx942")
    hub.artifacts = {"verdict-gfx1100": BAD[what](), "verdict-gfx942": archive({"verdict.json": b"2"})}
    assert fetched(hub, tmp_path) == {"verdict-gfx1100.json": b"", "verdict-gfx942.json": b"2"}


GOOD = archive({"verdict.json": b"1"})


@pytest.mark.parametrize(
    ("artifacts", "sizes", "asked"),
    [
        ({"wheel": archive({"x": b""})}, {}, False),
        ({"verdict": GOOD}, {"verdict": 1 << 40}, False),  # its size is known before
        ({"verdict": bytes((32 << 20) + 1)}, {"verdict": 10}, True),  # it lies about its size, and is cut off
        # Names become file names and markers.
        (
            dict.fromkeys(["verdict-../../x", "verdict-$(touch x)", "verdict-A", "verdict-\n", "Verdict"], GOOD),
            {},
            False,
        ),
    ],
    ids=["none", "huge", "larger than it says", "hostile names"],
)
def test_what_is_no_verdict_leaves_an_empty_one(hub, tmp_path, artifacts, sizes, asked):
    """It is rendered as "could not measure", never left out."""
    hub.artifacts, hub.sizes = artifacts, sizes
    assert fetched(hub, tmp_path) == {"verdict.json": b""}
    assert any("zip" in path for _, path in hub.calls) == asked


def comment(hub, folder, texts, **environment):
    """Put texts on the pull request."""
    (folder / "v").mkdir(exist_ok=True)
    ended = environment.pop("ended", "failure")
    for name, text in texts.items():
        (folder / "v" / f"{name}.md").write_text(text)
    owed = " ".join(f"{name}={ended}" for name in texts)
    done = call(hub, folder, "comment", "v", **{"OWED": owed, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_comments_are_made_and_then_renewed(hub, tmp_path):
    """One a verdict; the second run changes them in place, also on the second page of a long discussion."""
    hub.comments[7] = [{"id": n, "user": {"login": "ann"}, "body": "hm"} for n in range(101)]
    comment(hub, tmp_path, {"verdict": "fine", "verdict-gfx942": "fine too"})
    comment(hub, tmp_path, {"verdict": "slower"}, ended="success")
    ours = [one["body"] for one in hub.comments[7] if one["user"] == BOT]
    assert len(ours) == 2
    assert ours[0].startswith("<!-- rocattn:verdict -->\n")
    assert ours[0].endswith("\n\nslower")
    assert "ended with **success**" in ours[0]
    assert f"**verdict-gfx942** of {SHA[:10]}: [the run](https://github.com/we/rocattn/actions/runs/42)" in ours[1]


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ([{"filename": "rocattn/a.py"}, {"filename": "docs/.github/x"}], ""),
        ([{"filename": ".github/workflows/test.yml"}], "(.github/)"),
        ([{"filename": "x.py", "previous_filename": "benchmarks/a.py"}, {"filename": ".rocattn/gate.py"}],
         "(.rocattn/, benchmarks/)"),
        ([{"filename": "asv.conf.json"}, {"filename": "@org/team <b>.py"}], "(asv.conf.json)"),
        ([{"filename": "a"}] * 3000, "(more files than GitHub lists)"),
        ([{"filename": "a"}] * 150 + [{"filename": "dev.py"}], "(dev.py)"),
    ],
)  # fmt: skip
def test_a_change_of_what_measures_it_is_marked(hub, tmp_path, files, told):
    """By GitHub's diff, above the verdict, whatever the verdict says; names of files stay in GitHub's diff."""
    hub.files = files
    comment(hub, tmp_path, {"verdict": "fine"})
    (made,) = (one["body"] for one in hub.comments[7])
    mark = f"**It changes how it is measured** {told}: the verdict is its author's word.\n\n" if told else ""
    assert made.endswith(f"\n\n{mark}fine")
    assert ("measured**" in made) == bool(told)


def test_someone_else_s_comment_with_our_marker_is_left_alone(hub, tmp_path):
    """A marker can be quoted by anybody."""
    theirs = {"id": 1, "user": {"login": "eve"}, "body": "<!-- rocattn:verdict -->\nmine"}
    hub.comments[7] = [dict(theirs), {"id": 2, "user": None, "body": "<!-- rocattn:verdict -->\nghost"}]
    comment(hub, tmp_path, {"verdict": "fine"})
    assert hub.comments[7][0] == theirs
    assert len(hub.comments[7]) == 3


@pytest.mark.parametrize(
    "run", [{"HEAD_SHA": OTHER}, {"HEAD_REPOSITORY": "eve/rocattn"}, {"HEAD_BRANCH": "other"}, {"HEAD_REPOSITORY": ""}]
)
def test_pull_request_is_found_by_the_measured_head(hub, tmp_path, run):
    """Pushed since, another fork's branch at the same commit, a deleted fork: no comment anywhere, and it is said."""
    said = screen(comment(hub, tmp_path, {"verdict": "fine"}, **run), SHA=run.get("HEAD_SHA", SHA))
    assert said == snapshot("no comment: 0 open pull requests have SHA as their head")
    assert hub.comments == {7: []}


def test_other_pull_request_of_the_commit_is_ignored(hub, tmp_path):
    """Someone opens one from a fork of ours with our head: the comment goes where it belongs."""
    hub.pulls.insert(0, {"number": 6, "head": {"sha": SHA, "ref": "topic", "repo": {"full_name": "eve/rocattn"}}})
    hub.pulls.insert(0, {"number": 5, "head": {"sha": SHA, "ref": "topic", "repo": None}})
    comment(hub, tmp_path, {"verdict": "fine"})
    assert [number for number, listed in hub.comments.items() if listed] == [7]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_branch_name_is_only_compared(hub, tmp_path, name):
    """It never leaves the script: not in an address, not in a command, not in the comment."""
    hub.pulls[0]["head"]["ref"] = name
    comment(hub, tmp_path, {"verdict": "fine"}, HEAD_BRANCH=name)
    assert len(hub.comments[7]) == 1
    assert not name or name not in hub.comments[7][0]["body"] + "".join(path for _, path in hub.calls)
    assert not (tmp_path / "x").exists()


def test_a_number_in_the_artifact_is_ignored(hub, tmp_path):
    """The pull request comes from GitHub, whatever else lies in the folder."""
    hub.add_pull(8, OTHER)
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "pr_number").write_text("8")
    (tmp_path / "v" / "8.md").write_text("here")
    (tmp_path / "v" / "verdict-8.md").write_text("and here")
    comment(hub, tmp_path, {"verdict": "PR: 8"})
    assert [len(hub.comments[number]) for number in (7, 8)] == [1, 0]


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "nothing"])
def test_what_was_rendered_is_a_plain_file(hub, tmp_path, kind):
    """Rendering loads dependencies: what it leaves is not trusted, and a link would show what this job can read."""
    (tmp_path / "v").mkdir()
    (tmp_path / "secret").write_text("t0ken")
    path = tmp_path / "v" / "verdict.md"
    made = {"link": lambda: path.symlink_to(tmp_path / "secret"), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}
    made.get(kind, list)()
    done = call(hub, tmp_path, "comment", "v", OWED="verdict=success")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done
    assert hub.comments == {7: []}


@pytest.mark.parametrize("owed", ["verdict", "../x=success", "verdict=a b", "verdict=success\nx", *HOSTILE])
def test_only_what_github_says_is_owed_is_told(hub, tmp_path, owed):
    """The other job's output comes from GitHub's API, before it loads anything; another form is refused, too."""
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "verdict-gfx942.md").write_text("forged")
    done = call(hub, tmp_path, "comment", "v", OWED=owed)
    assert (done.returncode, hub.comments) == (1, {7: []})
    (tmp_path / "v" / "verdict.md").write_text("fine")
    assert call(hub, tmp_path, "comment", "v", OWED="verdict=success").returncode == 0
    assert [one["body"].splitlines()[0] for one in hub.comments[7]] == ["<!-- rocattn:verdict -->"]


def test_a_comment_fits_github_s_limit(hub, tmp_path):
    """65,536 characters, whatever they take in bytes; a cut does not tear a character."""
    comment(hub, tmp_path, {"verdict": "ä" * 70_000})
    text = hub.comments[7][0]["body"]
    assert len(text.encode()) <= 65_000
    assert text.endswith("ä")


def test_a_refusing_api_is_one_line_and_red(hub, tmp_path):
    """No right, no such run: the job fails, and its log shows no traceback and no token."""
    hub.answer = lambda *_: (403, {"message": "Resource not accessible by integration"})
    (tmp_path / "v").mkdir()
    for words in (("comment", "v"), ("fetch", "v")):
        done = call(hub, tmp_path, *words)
        assert done.returncode == 1
        assert done.stderr == "pull_request.py: HTTP Error 403: Forbidden\n"
        assert "t0ken" not in done.stdout + done.stderr


NOT_WHAT_IT_MUST_BE = {
    "a proxy's page": b"<html>503 Service Unavailable</html>",
    "cut off": b'{"jobs": [',
    "not UTF-8": b'{"jobs": "\xff"}',
    "nested": b"[" * 100_000,
    "null": b"null",
    "a number": b"7",
    "a message": b'{"message": "Server Error"}',
    "texts": b'["x"]',
    "other kinds": b'{"jobs": {"x": 1}, "artifacts": "x", "permission": ["admin"]}',
    "jobs without anything": b'{"jobs": [{}], "artifacts": [{}], "permission": null}',
    "pulls without a head": b'[{"number": 7}]',
}


@pytest.mark.parametrize("what", NOT_WHAT_IT_MUST_BE)
def test_malformed_answer_is_one_red_line(hub, tmp_path, what):
    """Whatever comes in GitHub's place: no traceback, nothing admitted, nothing written that looks like a verdict."""
    hub.answer = lambda *_: (200, NOT_WHAT_IT_MUST_BE[what])
    (tmp_path / "v").mkdir()
    tried = [call(hub, tmp_path, "comment", "v"), admit(hub, tmp_path)]
    tried.append(call(hub, tmp_path, "fetch", "v", WORKFLOW="gpu"))
    for done in tried:
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done
        assert re.fullmatch(r"pull_request\.py: (the|an) answer (to|of) .* (is|has) no.*\n", done.stderr), done
    assert [path.name for path in tmp_path.rglob("*")] == ["v"]


def test_an_address_that_is_none_is_one_line(hub, tmp_path):
    """What http.client raises is no OSError."""
    (tmp_path / "v").mkdir()
    done = call(hub, tmp_path, "comment", "v", GITHUB_API_URL="http://127.0.0.1:x")
    assert (done.returncode, done.stderr) == (1, "pull_request.py: nonnumeric port: 'x'\n")


@pytest.mark.parametrize("token", ["", "se\ncret", "s\u00e9cret"])
def test_a_token_that_is_none_is_said_and_not_shown(hub, tmp_path, token):
    """The step forgot it, or something else stands there."""
    done = admit(hub, tmp_path, GITHUB_TOKEN=token)
    assert (done.returncode, done.stderr) == (1, "pull_request.py: GITHUB_TOKEN is not set, or is not a token\n")
    assert hub.calls == []


def test_the_script_needs_nothing_but_python():
    """Its token is never in a process that has loaded a dependency."""
    import ast

    imported = set()
    for node in ast.walk(ast.parse(Path(SCRIPT).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module.split(".")[0])
    assert imported <= set(sys.stdlib_module_names)
