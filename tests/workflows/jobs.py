"""Runs the jobs of a workflow on this machine, step by step, as a runner does.

Understood is what our workflows use: ``if``, ``env``, ``run`` (by ``bash -e``, as GitHub starts it), ``with``, outputs,
the step summary, contexts and expressions. An action has a stand-in: checkout clones and makes the environment that
``dev.py`` would make, upload packs an archive, download unpacks one, setup-python does nothing.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from . import expressions
from .fakes import install_python, tools_of_the_system
from .github import archive
from .rules import ROOT, load


class Step:
    """What became of a step: "success", "failure" or "skipped", and what it printed."""

    def __init__(self, name, outcome, log=""):
        self.name, self.outcome, self.log = name, outcome, log

    def __repr__(self):
        return f"{self.name}: {self.outcome}\n{self.log}"


class Done:
    """What became of a job."""

    def __init__(self, outcome, steps, outputs, summary):
        self.outcome, self.steps, self.outputs, self.summary = outcome, steps, outputs, summary

    def step(self, words):
        """Return the step whose name has these words."""
        return next(step for step in self.steps if words in step.name)

    def __repr__(self):
        return f"job: {self.outcome}\n" + "\n".join(map(repr, self.steps))


class Runner:
    """A machine that runs jobs: a folder for each, and one for what jobs leave behind (artifacts).

    Args:
        root: Where everything is.
        origin: The bare repository that checkouts clone.
        environment: Variables of the machine itself.
    """

    def __init__(self, root, origin, environment=None):
        self.root, self.origin = root, origin
        self.artifacts, self.published = {}, []
        (root / "home").mkdir(exist_ok=True)
        install_python(root)
        self.environment = {
            "PATH": os.pathsep.join([str(root / "bin"), *tools_of_the_system()]), "HOME": str(root / "home"),
            "ROCATTN_OFFLINE": "1", "ROCATTN_UV": "", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C.UTF-8", "no_proxy": "*",
            **(environment or {}),
        }  # fmt: skip
        self.count = 0

    def job(self, workflow, name, github, *, variables=None, needs=None, matrix=None):
        """Run a job and return what became of it.

        Args:
            workflow: The workflow's name.
            name: The job's.
            github: The `github` context: event, event_name, sha, ….
            variables: The repository's variables.
            needs: Job -> its outputs.
            matrix: The values of this one of the matrix.
        """
        job = load(workflow)[0]["jobs"][name]
        self.count += 1
        folder = self.root / f"job{self.count}"
        self.work, self.temp = folder / "work", folder / "temp"
        for made in (self.work, self.temp):
            made.mkdir(parents=True)
        # Shared by jobs, unlike a real runner's: what is compiled depends on its content alone, and takes long.
        (self.temp / "rocattn-cache").symlink_to(self.environment["ROCATTN_CACHE_DIR"])
        contexts = {
            "github": {"token": "t0ken", "repository": "we/rocattn", **github}, "vars": variables or {},
            "needs": {key: {"outputs": outputs} for key, outputs in (needs or {}).items()}, "matrix": matrix or {},
            "inputs": github["event"].get("inputs") or {}, "runner": {"temp": str(self.temp)}, "steps": {}, "env": {},
        }  # fmt: skip
        if not expressions.holds(job.get("if"), contexts):
            return Done("skipped", [], {}, "")
        status, steps = "success", []
        for number, step in enumerate(job["steps"]):
            made = self._step(job, step, contexts, status, number)
            contexts["steps"].setdefault(step.get("id"), {})["outcome"] = made.outcome
            steps.append(made)
            if made.outcome == "failure":
                status = "failure"
        outputs = {key: expressions.fill(value, contexts) for key, value in (job.get("outputs") or {}).items()}
        summary = self.temp / "summary"
        return Done(status, steps, outputs, summary.read_text() if summary.exists() else "")

    def _step(self, job, step, contexts, status, number):
        name = step.get("name") or step.get("uses") or step["run"]
        if not expressions.holds(step.get("if"), contexts, status):
            return Step(name, "skipped")
        if "uses" in step:
            action = step["uses"].partition("@")[0].partition("/")[2]
            options = expressions.fill({"ref": None, **(step.get("with") or {})}, contexts, status)
            options["ref"] = options["ref"] or contexts["github"]["sha"]
            try:
                return Step(name, "success", getattr(self, "_" + action.replace("-", "_"))(options))
            except (AssertionError, subprocess.CalledProcessError) as error:
                return Step(name, "failure", str(error))
        files = {key: self.temp / f"{key.lower()}{number}" for key in ("GITHUB_OUTPUT", "GITHUB_ENV", "GITHUB_PATH")}
        files["GITHUB_STEP_SUMMARY"] = self.temp / "summary"
        set_here = expressions.fill({**(job.get("env") or {}), **(step.get("env") or {})}, contexts, status)
        environment = {
            **self.environment, "CI": "true", "GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(self.work),
            "GITHUB_EVENT_NAME": contexts["github"]["event_name"], "GITHUB_REPOSITORY": "we/rocattn",
            "RUNNER_TEMP": str(self.temp), **{key: str(path) for key, path in files.items()},
            **{key: expressions.as_text(value) for key, value in set_here.items()},
        }  # fmt: skip
        script = self.temp / f"step{number}.sh"
        script.write_text(step["run"])
        done = subprocess.run(
            ["bash", "-e", script], cwd=self.work, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        )  # fmt: skip
        if step.get("id"):
            written = files["GITHUB_OUTPUT"].read_text().splitlines() if files["GITHUB_OUTPUT"].exists() else []
            contexts["steps"][step["id"]] = {"outputs": dict(line.split("=", 1) for line in written)}
        for unused in ("GITHUB_ENV", "GITHUB_PATH"):
            assert not files[unused].exists(), "this runner does not carry variables from step to step"
        return Step(name, "failure" if done.returncode else "success", done.stdout)

    def _checkout(self, options):
        """Clone, check out what is asked for (by default what the event is about), and make the environment."""
        wanted = options["ref"]
        for words in (
            ["clone", "--quiet", "--no-checkout", self.origin, self.work],
            ["-C", self.work, "fetch", "--quiet", "origin", wanted],
            ["-C", self.work, "checkout", "--quiet", "--detach", "FETCH_HEAD"],
        ):
            self._git(*words)
        if "sparse-checkout" not in options:  # who checks out less runs nothing of the project
            make_environment(self.work)
        return f"checked out {wanted}"

    def _setup_python(self, options):
        return f"Python {options['python-version']} is this one"

    def _upload_artifact(self, options):
        """Pack what the paths name, below their nearest common folder, without hidden files unless asked for."""
        paths = [self.work / path for path in options["path"].split()]
        found = [
            file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*"))) if file.is_file()
        ]
        common = paths[0] if len(paths) == 1 else Path(os.path.commonpath(paths))
        common = common.parent if common.is_file() else common
        if not options.get("include-hidden-files"):
            found = [
                file for file in found if not any(part.startswith(".") for part in file.relative_to(self.work).parts)
            ]
        if not found:
            assert options["if-no-files-found"] == "ignore", f"no file at {options['path']}"
            return "nothing to upload"
        self.artifacts[options["name"]] = archive({str(file.relative_to(common)): file.read_bytes() for file in found})
        return f"{len(found)} files"

    def _gh_action_pypi_publish(self, options):
        """Keep the names of what would be published; trusted publishing takes no password."""
        assert "password" not in options, "a token is used"
        assert options["attestations"] is True
        self.published = sorted(path.name for path in (self.work / "dist").iterdir())
        return f"published {', '.join(self.published)}"

    def _download_artifact(self, options):
        target = self.work / options.get("path", ".")
        path = self.temp / "artifact.zip"
        assert options["name"] in self.artifacts, f"no artifact {options['name']}"
        path.write_bytes(self.artifacts[options["name"]])
        with zipfile.ZipFile(path) as packed:
            packed.extractall(target)
        return ""

    def _git(self, *words):
        subprocess.run(["git", *words], env=self.environment, check=True, capture_output=True, text=True)


def make_environment(checkout):
    """Make the ``.venv`` and ``.tools`` that dev.py would make, from this environment's packages and without a network.

    The checkout's own code comes first on its path, and dev.py itself says what stamp it looks for.
    """
    import importlib.util

    spec = importlib.util.spec_from_file_location("_dev", checkout / "dev.py")
    dev = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dev)
    uv = checkout / ".tools" / f"uv-{dev.UV_VERSION}" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text("#!/bin/sh\necho 'a step asked for uv, which would need the network' >&2\nexit 9\n")
    uv.chmod(0o755)
    python = os.path.realpath(sys.executable)
    venv = checkout / ".venv"
    subprocess.run([python, "-m", "venv", "--without-pip", "--symlinks", venv], check=True)
    site = Path(next(venv.glob("lib/python3*/site-packages")))
    for folder in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(folder).iterdir():
            # Everything that is installed but the paths of editable installs: those name the tree under test.
            if entry.suffix != ".pth" and not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    site.joinpath("checkout.pth").write_text(f"{checkout}\n{checkout / 'profiling'}\n")
    rocattn = venv / "bin" / "rocattn"
    rocattn.write_text(f"#!{venv}/bin/python\nimport sys\nfrom rocattn_profiling.cli import main\nsys.exit(main())\n")
    rocattn.chmod(0o755)
    expected = subprocess.run([python, "-c", STAMP, str(checkout)], capture_output=True, text=True, check=True).stdout
    (venv / "stamp").write_text(expected)


# As dev.prepare has it; a stamp that differs makes the first step ask for uv and fail.
STAMP = """
import hashlib, sys
from pathlib import Path
root = Path(sys.argv[1]).resolve()
parts = [(root / "pyproject.toml").read_bytes(), (root / "requirements.lock").read_bytes(), sys.version.encode()]
print(hashlib.sha256(b"\\0".join([*parts, str(root).encode()])).hexdigest(), end="")
"""


def snapshot(folder):
    """Make a bare repository whose main branch is this checkout as it lies there, as one commit; return its path.

    Without the history, which a shallow clone (as actions/checkout makes it) does not have.
    """
    from rocattn_profiling.revisions import git as revisions

    found = revisions.snapshot_worktree(ROOT)
    origin = folder / "origin"
    subprocess.run(["git", "init", "--quiet", "--bare", "--initial-branch=main", origin], check=True)
    objects = revisions.git(ROOT, "rev-parse", "--path-format=absolute", "--git-path", "objects")
    (origin / "objects" / "info" / "alternates").write_text(f"{objects}\n")
    who = {f"GIT_{role}_{key}": "a@b.c" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    commit = revisions.git(origin, "commit-tree", found.tree, "-m", "This checkout", env=who)
    revisions.git(origin, "update-ref", "refs/heads/main", commit)
    # As GitHub does: a commit of a pull request can be fetched by its hash.
    revisions.git(origin, "config", "uploadpack.allowAnySHA1InWant", "true")
    return origin


def without_git():
    """Return why no checkout can be made here, or ""."""
    if shutil.which("git") is None:
        return "git is not installed"
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--verify", "HEAD"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "not a git checkout"
