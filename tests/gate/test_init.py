"""``rocattn gate init``: what it writes for which project, whether linters and the gate take it, and what it leaves."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from inline_snapshot import snapshot

from rocattn_profiling import cli
from rocattn_profiling.gate import init, thresholds
from rocattn_profiling.gate.formats.markdown import MARKER
from rocattn_profiling.gate.planning import settings

from ..programs import python_program
from ..projects import QUIET
from ..workflows.rules import PINS

SPEC = "rocattn @ git+https://example.org/we/rocattn@0123abc"
TESTED = "def test_sort(benchmark):\n    benchmark(sorted, [3, 1, 2])\n"
AS_IT_IS = ["--no-list", "--json"]
TOOLS = Path(sys.executable).parent
# GitHub's command line client, as far as the workflow calls it: answers of the API from a file, calls appended to it.
GH = """
import json, os, subprocess, sys
from pathlib import Path
state = Path(os.environ["GH_STATE"])
known = json.loads(state.read_text())
words = sys.argv[2:]
path = next(word for word in words if word.startswith("repos/"))
fields = dict(words[n + 1].split("=", 1) for n, word in enumerate(words) if word in {"-f", "-F"})
method = words[words.index("--method") + 1] if "--method" in words else "GET"
assert os.environ["GH_TOKEN"] == "t0ken"
if method == "GET":
    done = subprocess.run(["jq", "-r", words[words.index("--jq") + 1]], input=json.dumps(known[path]), text=True)
    sys.exit(done.returncode)
assert fields["body"].startswith("@")
known["calls"].append([method, path, Path(fields["body"][1:]).read_text()])
state.write_text(json.dumps(known))
"""


def start(project, *words, where="."):
    """Run init in a folder of a project; return its status and what became of each file."""
    return cli.main(["gate", "init", "--repo", str(project.root / where), "--install", SPEC, *AS_IT_IS, *words])


def answer(capsys):
    """Return the JSON that was printed."""
    return json.loads(capsys.readouterr().out)


def workflow(project, path=init.WORKFLOW):
    """Return a workflow that was written."""
    return yaml.safe_load((project.root / path).read_text())


def scripts(loaded):
    """Return every script of a workflow's steps by the step's name."""
    return {step["name"]: step["run"] for job in loaded["jobs"].values() for step in job["steps"] if "run" in step}


def gate_words(project):
    """Return the words of each `rocattn gate run` in a workflow, as the shell would pass them."""
    lines = [line for script in scripts(workflow(project)).values() for line in script.splitlines()]
    return [shlex.split(line)[3:] for line in lines if line.startswith("rocattn gate run")]


def put_kind(project, kind):
    """Make a project of a kind, and return the options that init needs for it."""
    if kind == "asv":
        project.put("benchmarks/asv.conf.json", '{"version": 1, "benchmark_dir": ".", "results_dir": "out"}')
    if kind == "suite":
        project.put("asv.conf.json", '{"version": 1}')
        project.put("other/suite/bench_x.py", "")
        return ["--suite", "other/suite"]
    if kind == "pytest":
        project.put("tests/bench/test_a.py", TESTED)
        project.put("tests/bench/more/test_b.py", TESTED)
        project.put("tests/test_c.py", "def test_c(tmp_path):\n    benchmark = 1\n")
    return ["--command", "python work.py --size '1 000'"] if kind == "command" else []


@pytest.mark.parametrize(
    ("kind", "measured", "words"),
    [
        ("asv", "asv", []),
        ("suite", "asv", ["--suite", "other/suite"]),
        ("pytest", "pytest", ["--pytest", "tests/bench"]),
        ("command", "command", []),
    ],
)
def test_the_workflow_measures_what_the_project_has(repo, capsys, kind, measured, words):
    """The folder of the suite or the tests, the commands as they were given; and two sides that are commits."""
    options = put_kind(repo, kind)
    repo.commit("first", **{"deep/down/x": ""})
    assert start(repo, *options) == 0
    setup = answer(capsys)["setup"]
    assert (setup["kinds"], setup["words"]) == ([measured], words)
    own = settings.load(repo.root).commands
    assert own == (("python work.py --size '1 000'",) if kind == "command" else ())
    on_request, on_queue, on_push = gate_words(repo)
    assert on_queue[2:] == on_request[2:]
    assert on_request[:4] == ["--base", "origin/$GITHUB_BASE_REF...", "--head", "HEAD"]
    assert on_request[4 : 4 + len(words)] == words
    assert [word for word in on_push if word not in on_request] == ["$BASE", "--learn"]
    steps = workflow(repo)["jobs"]["gate"]["steps"]
    kept = {path for step in steps for path in step.get("with", {}).get("path", "").split()}
    (results,) = {path for path in kept if path.endswith(".rocattn")}
    own_places = {
        "asv": ["benchmarks", "benchmarks/asv.conf.json"], "suite": ["other/suite"], "pytest": ["tests/bench"]
    }  # fmt: skip
    assert set(setup["places"]) == {".github", ".rocattn", "pyproject.toml", *own_places.get(kind, [])}
    assert results == {"asv": "benchmarks/out", "suite": "results"}.get(kind, ".asv/results") + "/*/noise.json.rocattn"


@pytest.mark.parametrize("kind", ["asv", "suite", "pytest", "command"])
def test_the_gate_takes_the_options_in_the_workflow(repo, capsys, kind):
    """Each command line of the workflows is one of this rocattn's, and the next command has the same options."""
    options = put_kind(repo, kind)
    repo.commit("first")
    assert start(repo, *options, *([] if kind == "suite" else ["--requirements", "extra"])) == 0
    parser, lines = cli.parser_for("gate"), gate_words(repo)
    assert shlex.split(answer(capsys)["next"][0])[5:] == lines[0][2:]  # but for the base
    for words in lines:
        arguments = parser.parse_args(["run", *words])
        assert arguments.head == "HEAD"
        measured = {"suite": arguments.suite, "pytest": arguments.pytest, "command": arguments.commands}
        given = {"suite": "other/suite", "pytest": ["tests/bench"], "command": []}
        assert measured == {name: value if name == kind else type(value)() for name, value in given.items()}
        assert arguments.requirements == (["extra"] if kind == "pytest" else [])
        assert arguments.learn == ("--learn" in words)
    for name, script in (scripts(workflow(repo)) | scripts(workflow(repo, init.COMMENT))).items():
        for line in script.splitlines():
            if line.startswith(("rocattn gate show", "rocattn gate comment")):
                assert parser.parse_args(shlex.split(line.partition(" ||")[0])[2:]).verdict, name


@pytest.mark.slow
def test_only_what_is_listed_gets_into_the_workflow(project, offline, capsys):
    """Every kind that the project has, built as it is, with its number; what cannot be listed is left out, and said."""
    project.put("tests/__init__.py", "")
    project.put("tests/test_bench.py", TESTED)
    project.put("pytest.ini", QUIET)
    words = ["gate", "init", "--repo", str(project.root), "--install", "rocattn"]
    assert cli.main([*words, "--json"]) == 0
    record = answer(capsys)
    both = ["--suite", "asv.conf.json", "--pytest", "tests"]
    assert (record["setup"]["kinds"], record["setup"]["benchmarks"]) == (["asv", "pytest"], 3)
    assert record["setup"]["words"] == both
    assert gate_words(project)[0][4:8] == both
    shutil.rmtree(project.root / ".github")
    project.put("tests/test_bench.py", "import nowhere\n" + TESTED)
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert "2 benchmarks: the asv benchmarks in benchmarks\n" in text
    assert re.search(r"^left out +the pytest-benchmark tests in tests: .*nowhere", text, re.MULTILINE)
    assert "rocattn (not pinned" in text
    shutil.rmtree(project.root / ".github")
    project.git("rm", "-rq", "benchmarks", "asv.conf.json")
    assert cli.main(words) == 3
    assert len([line for line in capsys.readouterr().err.splitlines() if line.startswith("rocattn")]) == 1
    assert not (project.root / ".github").exists()


def test_commands_are_written_where_the_gate_reads_them(repo, capsys):
    """With builds and formats, in a file that the gate's reader takes; one that says otherwise is left."""
    repo.commit("first")
    options = ["--build", 'make "x"', "--command", "./b --json", "--command", "./c", "--results", "google:out\\r.json"]
    assert start(repo, *options, "--requirements", "bench") == 0
    own = settings.load(repo.root)
    assert (own.builds, own.commands, own.requirements) == (('make "x"',), ("./b --json", "./c"), ("bench",))
    assert own.results == ("google:out\\r.json", "google:out\\r.json")
    assert gate_words(repo)[0] == ["--base", "origin/$GITHUB_BASE_REF...", "--head", "HEAD", "--max-time", "20m"]
    capsys.readouterr()
    assert start(repo) == 0
    assert answer(capsys)["setup"]["kinds"] == ["file"]
    assert start(repo, "--command", "./d") == 4
    assert capsys.readouterr().err == snapshot(
        "rocattn gate: .rocattn/gate.toml already says what is measured: add the command there\n"
    )


def test_linters_find_nothing_in_what_is_written(repo, tmp_path):
    """GitHub's schema, zizmor as its strictest auditor, and shellcheck on every script."""
    for name in ("check-jsonschema", "zizmor", "shellcheck"):
        if not (TOOLS / name).exists():
            pytest.skip(f"{name} is not installed (group lint)")
    put_kind(repo, "asv")
    repo.commit("first", **{".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    assert start(repo) == 0
    assert workflow(repo)["jobs"]["gate"]["steps"][0]["with"]["lfs"] is True
    folder = repo.root / ".github/workflows"
    files = sorted(folder.iterdir())
    lines = [
        [TOOLS / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files],
        [TOOLS / "zizmor", "--offline", "--quiet", "--persona=auditor", folder],
    ]
    every = [script for path in (init.WORKFLOW, init.COMMENT) for script in scripts(workflow(repo, path)).values()]
    for number, script in enumerate(every):
        (tmp_path / f"{number}.sh").write_text(script)
    lines += [[TOOLS / "shellcheck", "--shell=bash", *sorted(tmp_path.glob("*.sh"))]]
    for line in lines:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_actions_are_those_that_our_own_workflows_use(repo):
    """Pinned to the same commits, and no job that runs a pull request's code may write."""
    put_kind(repo, "asv")
    repo.commit("first")
    start(repo)
    used = {action.split("@")[0]: action for action in init.ACTIONS.values()}
    ours = {action: f"{action}@{commit} # {version}" for action, (commit, version) in PINS.items() if action in used}
    assert ours
    assert used | ours == used
    assert all(re.fullmatch(r"actions/[\w/-]+@[0-9a-f]{40} # v[\d.]+", action) for action in init.ACTIONS.values())
    gate, comment = workflow(repo), workflow(repo, init.COMMENT)
    assert gate["permissions"] == comment["permissions"] == {}
    assert gate["jobs"]["gate"]["permissions"] == {"contents": "read"}
    assert not [s for job in comment["jobs"].values() for s in job["steps"] if "checkout" in s.get("uses", "")]
    render, post = comment["jobs"]["render"], comment["jobs"]["comment"]
    assert (render["permissions"], post["permissions"]) == ({"actions": "read"}, {"pull-requests": "write"})
    assert post["needs"] == "render"
    # Where a token can write nothing is installed, and what another job left is unpacked into a folder of its own.
    assert [step.get("uses", "").partition("@")[0] for step in post["steps"]] == ["actions/download-artifact", ""]
    assert post["steps"][0]["with"]["path"] == "rendered"
    assert not re.search(r"\b(pip|uv|rocattn) ", post["steps"][1]["run"])
    assert comment[True]["workflow_run"]["workflows"] == [gate["name"]]
    checkout = gate["jobs"]["gate"]["steps"][0]["with"]
    assert (checkout["fetch-depth"], checkout["persist-credentials"]) == (0, False)


def test_the_thresholds_parse_as_they_are_and_uncommented(repo):
    """As written nothing is set; with every setting uncommented each key of the reader is there and accepted."""
    put_kind(repo, "asv")
    repo.commit("first")
    start(repo)
    path = repo.root / thresholds.FILE
    assert thresholds.load(repo.root).rows == []
    uncommented = re.sub(r"^#(?! |$)", "", path.read_text(), flags=re.MULTILINE)
    path.write_text(uncommented)
    first, second = thresholds.load(repo.root).rows
    assert (first.metric, first.tolerance, first.floor, first.unit, first.rounds) == ("time", 0.03, 5.0, "us", 10)
    assert not second.gate
    assert set(re.findall(r"^(\w+) =", uncommented, re.MULTILINE)) == set(thresholds._KEYS)


def test_a_file_that_is_there_is_left_as_it_is(repo, capsys):
    """Started again it changes nothing; a workflow that differs is kept, and says so by status and JSON."""
    put_kind(repo, "asv")
    repo.commit("first", **{"sub/x": ""})
    assert start(repo, where="sub") == 0
    assert {file["state"] for file in answer(capsys)["files"]} == {"written"}
    assert sorted(path.name for path in (repo.root / "sub").iterdir()) == ["x"]
    assert start(repo) == 0
    assert {file["state"] for file in answer(capsys)["files"]} == {"unchanged"}
    repo.put(thresholds.FILE, "# mine\n")
    (repo.root / init.COMMENT).unlink()
    assert start(repo) == 0
    assert [file["state"] for file in answer(capsys)["files"]] == ["unchanged", "written", "kept"]
    repo.put(init.WORKFLOW, "name: mine\n")
    assert start(repo) == 4
    assert [file["state"] for file in answer(capsys)["files"]] == ["kept", "unchanged", "kept"]
    assert (repo.root / init.WORKFLOW).read_text() == "name: mine\n"


@pytest.mark.parametrize("kind", ["asv", "pytest", "command"])
def test_an_address_that_is_not_known_comes_before_the_commit(repo, capsys, monkeypatch, kind):
    """Said again until it is set, by the very command that fills it in; what somebody edited is left."""
    options = put_kind(repo, kind)
    repo.commit("first")
    monkeypatch.setattr(init, "own_requirement", lambda: "")
    monkeypatch.chdir(repo.root)
    for count in (1, 0):  # of "Next"
        assert cli.main(["gate", "init", "--no-list", "--branch", "dev", *options]) == 0
        text = capsys.readouterr().out
        assert (text.count("\nNext, in "), text.count("git commit"), text.count("commit the files")) == (count, 0, 0)
        todo = text[text.index("\nTo do before you commit: GitHub cannot reach ") :]
        assert "the top of both workflows, or let init fill in an address:\n" in todo
        (line,) = re.findall(r"^  (rocattn gate init .*)$", todo, re.MULTILINE)
        assert "delete" not in text
    assert shlex.split(line)[:3] == ["rocattn", "gate", "init"]
    fill = [SPEC if "https" in word else word for word in shlex.split(line)[1:]]
    assert cli.main([*fill, "--json"]) == 0
    record = answer(capsys)
    states = ["filled in", "filled in", "unchanged", "unchanged"]
    assert [file["state"] for file in record["files"]] == states[: 4 if kind == "command" else 3]
    assert (record["todo"], record["next"][1].startswith("git add .github .rocattn && git commit ")) == ("", True)
    assert {workflow(repo, path)["env"]["ROCATTN"] for path in (init.WORKFLOW, init.COMMENT)} == {SPEC}
    assert cli.main(["gate", "init", "--no-list", "--branch", "dev", *options]) == 4  # the address is an edit, too
    assert "To do" not in capsys.readouterr().out


def test_an_edited_workflow_is_not_filled_in(repo, capsys, monkeypatch):
    """Whatever was edited, though its address is empty; the other one is, and the status says that one differs."""
    put_kind(repo, "asv")
    repo.commit("first")
    assert cli.main(["gate", "init", "--repo", str(repo.root), "--install", "", *AS_IT_IS]) == 0
    record = answer(capsys)
    assert (len(record["next"]), record["todo"].startswith("rocattn gate init --repo ")) == (1, True)
    edited = (repo.root / init.WORKFLOW).read_text() + "# mine\n"
    repo.put(init.WORKFLOW, edited)
    assert start(repo) == 4
    assert [file["state"] for file in answer(capsys)["files"]] == ["kept", "filled in", "unchanged"]
    assert (repo.root / init.WORKFLOW).read_text() == edited


@pytest.mark.parametrize(
    "words", [[], ["--suite", "nowhere"], ["--pytest", ".."], ["--command", "echo ${{ github.x }}"]]
)
def test_what_cannot_be_measured_is_one_line(repo, capsys, words):
    """Nothing to measure, a folder that is not there or outside, and an expression of GitHub's: nothing is written."""
    repo.commit("first", **{"tests/test_x.py": "def test_x():\n    pass\n"})
    assert start(repo, *words) == 4
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (repo.root / ".github").exists()


def test_a_folder_without_git_is_one_line(git, tmp_path, capsys, monkeypatch):
    """As every command that needs a repository."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["gate", "init"]) == 4
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_branch_is_the_one_pull_requests_go_to(repo, tmp_path):
    """The remote's default, else a usual name, else the current branch."""
    repo.commit("first")
    repo.git("checkout", "--quiet", "-b", "next")
    assert init._default_branch(repo.root) == "main"
    repo.git("branch", "--quiet", "--delete", "--force", "main")
    assert init._default_branch(repo.root) == "next"
    repo.git("branch", "develop")
    repo.git("checkout", "--quiet", "-b", "topic")
    assert init._default_branch(repo.root) == "develop"
    repo.git("branch", "main")
    repo.git("checkout", "--quiet", "next")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", repo.root, clone], check=True)
    assert init._default_branch(clone) == "next"


def test_the_next_command_names_a_base_that_is_there(repo, tmp_path, capsys):
    """The parent on the default branch; elsewhere the merge base with it, local or the remote's."""
    put_kind(repo, "asv")
    repo.commit("first")

    def base(root):
        assert cli.main(["gate", "init", "--repo", str(root), "--install", SPEC, *AS_IT_IS]) == 0
        return shlex.split(answer(capsys)["next"][0])[4]

    assert base(repo.root) == "HEAD~1"
    repo.git("checkout", "--quiet", "-b", "topic")
    assert base(repo.root) == "main..."
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--branch=topic", repo.root, clone], check=True)
    subprocess.run(["git", "-C", clone, "remote", "set-head", "origin", "main"], check=True)
    assert base(clone) == "origin/main..."


def test_the_python_is_one_that_the_project_takes(repo):
    """Never older than rocattn needs; what cannot be read asks for nothing."""
    repo.put("pyproject.toml", '[project]\nrequires-python = ">=3.99"\n')
    assert init._least_minor(repo.root) == 99
    for text in ('[project]\nrequires-python = ">=3.8"\n', "[project", ""):
        repo.put("pyproject.toml", text)
        assert init._least_minor(repo.root) == 11


def test_rocattn_comes_from_where_it_came_from(repo, tmp_path, monkeypatch):
    """An index, a repository, an address; a checkout whose commit its remote has; else nothing is claimed."""

    def installed(**recorded):
        text = json.dumps(recorded) if recorded else None
        monkeypatch.setattr(init, "distribution", lambda _: SimpleNamespace(read_text=lambda _: text))
        return init.own_requirement()

    assert installed() == f"rocattn=={init.rocattn.__version__}"
    vcs = {"vcs": "git", "commit_id": "0123abc"}
    assert installed(url="https://example.org/we/rocattn", vcs_info=vcs) == SPEC
    wheel = "https://example.org/rocattn.whl"
    assert installed(url=wheel, archive_info={}) == f"rocattn @ {wheel}"
    assert installed(url="file:///x/rocattn.whl", archive_info={}) == ""
    repo.commit("first")
    subprocess.run(["git", "clone", "--quiet", repo.root, tmp_path / "a b"], check=True)
    clone = {"url": (tmp_path / "a b").as_uri(), "dir_info": {}}
    assert installed(**clone) == ""  # a folder of this machine is its remote
    for address in ("git@example.org:we/rocattn", "https://me:secret@example.org/we/rocattn"):
        subprocess.run(["git", "-C", tmp_path / "a b", "remote", "set-url", "origin", address], check=True)
        assert installed(**clone) == SPEC.replace("0123abc", repo.git("rev-parse", "HEAD"))
    who = ["-c", "user.name=a", "-c", "user.email=b"]
    subprocess.run(["git", "-C", tmp_path / "a b", *who, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    assert installed(**clone) == ""  # not pushed


class Posted:
    """The last step of the comment's workflow, run with a ``gh`` that answers from a file."""

    def __init__(self, repo, folder):
        if shutil.which("jq") is None:
            pytest.skip("jq is not installed")
        put_kind(repo, "asv")
        repo.commit("first")
        start(repo)
        self.folder, program = folder, folder / "bin/gh"
        for made in (program.parent, folder / "rendered"):
            made.mkdir()
        program.write_text(python_program("-IS") + GH)
        program.chmod(0o755)
        self.text, (self.step,) = (
            folder / "rendered/comment.md",
            workflow(repo, init.COMMENT)["jobs"]["comment"]["steps"][1:],
        )
        self.text.write_text(f"{MARKER}\nthe verdict")

    def calls(self, known, sha="abc"):
        """Run it for a commit; return the calls that wrote, or None when it failed."""
        pulls = [{"number": 3, "head": {"sha": "old"}}, {"number": 4, "head": {"sha": "abc"}}]
        place, state = "repos/we/it/pulls", self.folder / "state.json"
        whole = {place: pulls, f"{place}/4": {"changed_files": 2}, f"{place}/4/files": [], "calls": []}
        state.write_text(json.dumps(whole | {"repos/we/it/issues/4/comments": []} | known))
        variables = {
            "GH_STATE": str(state), "GH_TOKEN": "t0ken", "GITHUB_REPOSITORY": "we/it", "HEAD_SHA": sha,
            "HEAD_OWNER": "they", "HEAD_BRANCH": "topic", "CONCLUSION": "failure", "PLACES": self.step["env"]["PLACES"],
            "PATH": f"{self.folder}/bin{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        done = subprocess.run(
            ["bash", "-ec", self.step["run"]], cwd=self.folder, env=os.environ | variables, check=False
        )
        return None if done.returncode else json.loads(state.read_text())["calls"]


GITHUB_SAYS = "\n\nGitHub says: the run ended with **failure**.\n"


@pytest.mark.parametrize("before", [[], [7, 9]])
def test_the_comment_is_made_once_and_then_renewed(repo, tmp_path, before):
    """On the open pull request whose head is the run's commit; someone else's comment with our marker is not ours."""
    posted = Posted(repo, tmp_path)
    bot = {"login": "github-actions[bot]"}
    comments = [
        {"id": 1, "user": {"login": "eve"}, "body": f"{MARKER}\nmine"},
        {"id": 2, "user": bot, "body": "another action's"},
        *({"id": number, "user": bot, "body": f"{MARKER}\nolder"} for number in before),
    ]
    known = {"repos/we/it/issues/4/comments": comments}
    place = "repos/we/it/issues/comments/7" if before else "repos/we/it/issues/4/comments"
    text = f"{MARKER}\nthe verdict{GITHUB_SAYS}"
    assert posted.calls(known) == [["PATCH" if before else "POST", place, text]]
    assert posted.calls(known, sha="gone") == []


@pytest.mark.parametrize(
    ("files", "total", "told"),
    [
        ([{"filename": "src/a.py"}, {"filename": "docs/.github/x"}, {"filename": "benchmarks2/a"}], 3, ""),
        ([{"filename": ".github/workflows/x.yml"}], 1, ".github"),
        ([{"filename": "a.py", "previous_filename": "benchmarks/a.py"}, {"filename": ".rocattn/gate.py"}], 2,
         ".rocattn benchmarks"),
        ([{"filename": "pyproject.toml"}, {"filename": "@org <b>\n.py"}], 2, "pyproject.toml"),
        ([{"filename": "a"}], 3000, " more files than GitHub lists"),
    ],
)  # fmt: skip
def test_a_comment_marks_a_change_of_what_measures(repo, tmp_path, files, total, told):
    """By GitHub's diff; names of files are their author's words and stay there."""
    place = "repos/we/it/pulls/4"
    ((_, _, text),) = Posted(repo, tmp_path).calls({f"{place}/files": files, place: {"changed_files": total}})
    mark = f"**It changes how it is measured** ({told}): the verdict is its author's word.\n\n" if told else ""
    assert text == f"{MARKER}\n{mark}the verdict{GITHUB_SAYS}"


def test_what_is_posted_is_a_plain_file_cut_to_size(repo, tmp_path):
    """Rendering loads dependencies; a link would show a file of the job that may write."""
    posted = Posted(repo, tmp_path)
    posted.text.write_text(f"{MARKER}\n{'ä' * 70_000}")
    ((_, _, text),) = posted.calls({})
    assert 60_000 < len(text.encode()) < 65_000
    assert text.endswith(GITHUB_SAYS)
    posted.text.unlink()
    assert posted.calls({}) is None
    posted.text.symlink_to(tmp_path / "bin/gh")
    assert posted.calls({}) is None


def test_a_run_without_a_verdict_is_rendered_too(repo, tmp_path):
    """The step ends well: "could not measure" is told, too."""
    put_kind(repo, "asv")
    repo.commit("first")
    start(repo)
    script = scripts(workflow(repo, init.COMMENT))["Render the comment"]
    address = "https://github.com/we/it/actions/runs/1"
    variables = {"RUN_URL": address, "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=os.environ | variables, check=True)
    text = (tmp_path / "comment.md").read_text()
    assert text.startswith(MARKER)
    assert address in text
