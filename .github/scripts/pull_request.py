"""The workflows' calls of GitHub's API; everything that a pull request's author can choose is treated as hostile.

``admit``: decide which commit may run on the GPU machine, and remove the label that requested it.
``fetch DIR``: download the verdicts of a finished run.
``comment DIR``: put them, rendered by ``rocattn gate comment``, on the pull request: one comment each, updated.

Input comes from environment variables, never from arguments that YAML builds. Standard library only: the token is never
in a process that has loaded anything else.
"""  # noqa: INP001 - a script of the workflows, in no package

import http.client
import io
import json
import os
import re
import stat
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

SHA = re.compile(r"[0-9a-f]{40}")
REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,200}")
REPOSITORY = re.compile(r"[A-Za-z0-9_-]{1,100}/[A-Za-z0-9._-]{1,100}")
# An artifact is named by the workflow of the pull request, which its author may have changed.
ARTIFACT = re.compile(r"verdict(?:-[a-z0-9]{1,20})?")
ENDED = re.compile(r"[a-z_]{1,30}")
OWED = re.compile(rf"{ARTIFACT.pattern}={ENDED.pattern}(?: {ARTIFACT.pattern}={ENDED.pattern})*")
# Labels of every machine of `gpu`, in addition to the architecture.
COMMON_LABELS = {"self-hosted", "linux", "rocm"}
LABEL = "gpu"
# The job of `test` that produces a verdict.
GATE = "gate, without a GPU"
# Files that determine how a change is measured: if a change edits any, its verdict is only the author's word.
MEASURING = re.compile(r"(?:\.github|\.rocattn|benchmarks)/|(?:asv\.conf\.json|dev\.py|pyproject\.toml)$")
MOST_FILES = 3000  # GitHub's limit per pull request
BOT = "github-actions[bot]"
MEMBER = "verdict.json"
MAX_ARCHIVE_BYTES, MAX_VERDICT_BYTES, MAX_COMMENT_BYTES = 32 << 20, 16 << 20, 65_000
TIMEOUT_S = 60.0
Part = TypeVar("Part")


class RefusedError(Exception):
    """Raised for a request that this workflow does not serve; the message says why."""


class Api:
    """GitHub's REST API for one repository."""

    def __init__(self) -> None:
        self.root = os.environ.get("GITHUB_API_URL", "https://api.github.com")
        self.repository = matching(REPOSITORY, "GITHUB_REPOSITORY")
        self._token = os.environ.get("GITHUB_TOKEN", "")
        if re.fullmatch(r"[!-~]+", self._token) is None:
            raise RefusedError("GITHUB_TOKEN is not set, or is not a token")  # never show its value

    def call(self, method: str, path: str, body: object = None, limit: int = MAX_ARCHIVE_BYTES) -> bytes:
        """Send one request below ``/repos/OWNER/NAME`` and return the body of the answer.

        Raises:
            RefusedError: The answer is longer than ``limit``, in bytes.
            urllib.error.HTTPError: The status is not a success.
        """
        data = None if body is None else json.dumps(body).encode()
        address = f"{self.root}/repos/{self.repository}{path}"
        request = urllib.request.Request(address, data, method=method)  # noqa: S310 - the runner names the API
        request.add_header("Accept", "application/vnd.github+json")
        request.add_header("Content-Type", "application/json")
        # Archives come through a redirect to another host, which must not get the token.
        request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - as above
            text: bytes = answer.read(limit + 1)
        if len(text) > limit:
            raise RefusedError(f"the answer to {path} is larger than {limit} bytes")
        return text

    def get(self, path: str) -> Any:
        """Return a decoded JSON answer.

        Raises:
            RefusedError: It is not JSON, such as a proxy's HTML page.
        """
        try:
            return json.loads(self.call("GET", path))
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"the answer to {path} is not JSON") from error

    def pages(self, path: str, most: int = 20) -> Iterator[dict[str, Any]]:
        """Yield the items of a paginated list."""
        join = "&" if "?" in path else "?"
        for page in range(1, most + 1):
            items = objects(self.get(f"{path}{join}per_page=100&page={page}"))
            yield from items
            if len(items) < 100:
                return


def part(answer: Any, name: str, kind: type[Part]) -> Part:
    """Return the field ``name`` of an API answer.

    Raises:
        RefusedError: It has no such field, or one of a different type.
    """
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, kind):
        raise RefusedError(f"an answer of the API has no {name} that is a {kind.__name__}")
    return found


def name_in(answer: Any, name: str) -> str:
    """Return a name from an object; empty for a deleted object, which is null."""
    return str(answer.get(name, "")) if isinstance(answer, dict) else ""


def objects(answer: Any) -> list[dict[str, Any]]:
    """Return an API answer that must be a list of objects.

    Raises:
        RefusedError: It is something else.
    """
    if not isinstance(answer, list) or not all(isinstance(one, dict) for one in answer):
        raise RefusedError("an answer of the API is not a list")
    return answer


def matching(pattern: re.Pattern[str], name: str) -> str:
    """Return an environment variable that must match a pattern.

    Raises:
        RefusedError: It does not match.
    """
    value = os.environ.get(name, "")
    if pattern.fullmatch(value) is None:
        raise RefusedError(f"{name} is {value[:100]!a}, which is not valid")
    return value


def number_in(name: str) -> int:
    """Return an environment variable that must be a positive number."""
    return int(matching(re.compile(r"[1-9]\d{0,17}"), name))


def admit() -> None:
    """Check who requested a GPU run and for which commit; write ``sha`` and ``base`` to the step's outputs.

    A label counts only for the commit that it was put on, only from users with write access, and only once: it is
    removed, so that earlier consent does not cover a later push.
    """
    sha = matching(SHA, "ASKED_SHA")
    base = matching(REVISION, "ASKED_BASE")
    if ".." in base:
        raise RefusedError(f"the base {base!a} is not a branch or commit")
    if os.environ.get("GITHUB_EVENT_NAME") == "pull_request":
        api, number = Api(), number_in("PULL_REQUEST")
        actor = matching(re.compile(r"[A-Za-z0-9-]{1,100}(?:\[bot\])?"), "LABELLED_BY")
        api_path = f"/collaborators/{urllib.parse.quote(actor)}/permission"
        if (role := part(api.get(api_path), "permission", str)) not in {"admin", "write"}:
            raise RefusedError(f"{actor} has {role!a} rights here; a maintainer gives the label")
        take_label(api, number)
    output("sha", sha)
    output("base", base)
    print(f"admitted: {sha} against {base}")


def take_label(api: Api, number: int) -> None:
    """Remove the label; it may already be gone."""
    try:
        api.call("DELETE", f"/issues/{number}/labels/{LABEL}")
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise


def output(name: str, value: str) -> None:
    """Set an output of the step."""
    with Path(os.environ["GITHUB_OUTPUT"]).open("a") as file:
        file.write(f"{name}={value}\n")


def fetch(folder: Path) -> None:
    """Write each verdict expected from run ``RUN_ID`` to ``NAME.json``, and how its job ended to the step's outputs.

    An empty file stands for a missing verdict. GitHub decides which verdicts are expected, not the artifacts: from
    `gpu`, one per self-hosted machine that took a job. A fork's run has none, since its workflow can upload any
    artifact from a hosted job while the machine refuses its job: forks run on a GPU by hand, without a comment. Jobs
    and artifacts of commits other than ``HEAD_SHA`` do not count.
    """
    api, run, sha = Api(), number_in("RUN_ID"), matching(SHA, "HEAD_SHA")
    folder.mkdir(parents=True, exist_ok=True)
    jobs = objects(part(api.get(f"/actions/runs/{run}/jobs?per_page=100"), "jobs", list))
    jobs = [job for job in jobs if part(job, "head_sha", str) == sha]
    if matching(re.compile("test|gpu"), "WORKFLOW") == "gpu":
        ours = os.environ.get("HEAD_REPOSITORY") == api.repository
        owed = {name: (str(job["conclusion"]), job) for name, job in machines(jobs) if ours}
    else:
        gate: dict[str, Any] = next((job for job in jobs if job.get("name") == GATE), {})
        owed = {"verdict": (matching(ENDED, "CONCLUSION"), gate)}
    listed = objects(part(api.get(f"/actions/runs/{run}/artifacts?per_page=100"), "artifacts", list))
    listed = [one for one in listed if name_in(one.get("workflow_run"), "head_sha") == sha]
    for name, (ended, job) in owed.items():
        text = b""
        try:
            text = verdict_of(archive_of(api, newest(listed, name, job)))
        except (RefusedError, urllib.error.HTTPError) as error:
            print(f"{name}: {error}")
        (folder / f"{name}.json").write_bytes(text)
        print(f"{name}: {len(text)} bytes, its job ended with {ended}")
    # Not next to the texts, where the job that renders them could change it.
    output("owed", " ".join(f"{name}={ended}" for name, (ended, _) in owed.items()))
    if not owed:
        print("no machine took a job of this run, or it is a fork's: there is nothing to report")


def newest(artifacts: list[dict[str, Any]], name: str, job: dict[str, Any]) -> dict[str, Any] | None:
    """Return the newest artifact with a name that was uploaded while a job ran; None if there is none.

    Artifacts from after the job's end belong to other jobs. A rerun keeps the artifacts of earlier attempts, which must
    not stand in for a job that uploads none. A job that is not rerun keeps its original start time.
    """
    began, over = moment(job.get("started_at")), moment(job.get("completed_at"))
    found = [(moment(one.get("created_at")), one) for one in artifacts if one.get("name") == name]
    since = [(made, one) for made, one in found if began and made and began <= made <= over]
    return max(since, key=lambda pair: pair[0], default=(None, None))[1]


def moment(text: Any) -> float:
    """Return an API timestamp in seconds; 0 if it is invalid."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return 0.0


def machines(jobs: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the verdict's name and the job for each job that a self-hosted machine ran."""
    for job in jobs:
        labels = [str(label) for label in part(job, "labels", list)]
        # A job has a machine's name once the machine has taken it: requesting its label is not enough.
        if "self-hosted" in labels and job.get("runner_name"):
            for label in sorted(set(labels) - COMMON_LABELS)[:1]:
                if ARTIFACT.fullmatch(f"verdict-{label}") and ENDED.fullmatch(str(job.get("conclusion"))):
                    yield f"verdict-{label}", job


def archive_of(api: Api, artifact: dict[str, Any] | None) -> bytes:
    """Return the archive of an artifact, as packed by GitHub.

    Raises:
        RefusedError: There is none, or it is too large to be a verdict, according to GitHub.
    """
    if artifact is None:
        raise RefusedError("its job left no verdict")
    if part(artifact, "size_in_bytes", int) > MAX_ARCHIVE_BYTES:
        raise RefusedError(f"its archive is larger than {MAX_ARCHIVE_BYTES} bytes")
    return api.call("GET", f"/actions/artifacts/{part(artifact, 'id', int)}/zip")


def verdict_of(archive: bytes) -> bytes:
    """Return the verdict in an artifact; nothing is ever unpacked to a path named in it.

    Raises:
        RefusedError: It is not an archive, has no regular file of that name, or is too large when unpacked.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as opened:
            members = [info for info in opened.infolist() if info.filename == MEMBER]
            if len(members) != 1:
                raise RefusedError(f"it holds {len(members)} files named {MEMBER}")
            mode = members[0].external_attr >> 16
            if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
                raise RefusedError(f"{MEMBER} is not a regular file")
            with opened.open(members[0]) as file:
                text = file.read(MAX_VERDICT_BYTES + 1)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise RefusedError(f"its archive cannot be read: {type(error).__name__}") from error
    if len(text) > MAX_VERDICT_BYTES:
        raise RefusedError(f"{MEMBER} is larger than {MAX_VERDICT_BYTES} bytes")
    return text


def comment(folder: Path) -> None:
    """Put each expected verdict, rendered in a folder, on the pull request of the run."""
    api = Api()
    sha = matching(SHA, "HEAD_SHA")
    owed = sorted(each.split("=") for each in matching(OWED, "OWED").split())
    number = pull_request_of(api, sha)
    if number is None:
        return
    mark = measuring(api, number)
    for name, ended in owed:
        upsert(api, number, name, body(name, sha, ended, mark + rendered(folder / f"{name}.md")))


def rendered(path: Path) -> str:
    """Return the text of a regular file, cut to what fits into a comment.

    The job that wrote it had loaded the project and its dependencies: it can be anything.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RefusedError(f"{path.name} is not a regular file")
        return file.read(MAX_COMMENT_BYTES).decode(errors="replace")


def pull_request_of(api: Api, sha: str) -> int | None:
    """Return the open pull request whose head is this commit of that branch; None unless there is exactly one.

    The run's data also names it, but not for a pull request from a fork, and an artifact is only the author's word.
    """
    wanted = (sha, os.environ.get("HEAD_REPOSITORY", ""), os.environ.get("HEAD_BRANCH", ""))
    numbers = []
    for pull in api.pages("/pulls?state=open"):
        head = part(pull, "head", dict)
        if (head.get("sha"), name_in(head.get("repo"), "full_name"), head.get("ref")) == wanted:
            numbers.append(part(pull, "number", int))
    if len(numbers) == 1:
        return numbers[0]
    print(f"no comment: {len(numbers)} open pull requests have {sha} as their head")
    return None


def measuring(api: Api, number: int) -> str:
    """Return a paragraph on how a pull request changes its own measurement, by GitHub's diff; "" if it does not.

    It names known places, not files, whose names the author chose.
    """
    files = list(api.pages(f"/pulls/{number}/files", most=MOST_FILES // 100))
    changed = set[str]()
    for file in files:
        for name in (file.get("filename"), file.get("previous_filename")):
            if found := MEASURING.match(str(name)):
                changed.add(found[0])
    if len(files) >= MOST_FILES:
        changed.add("more files than GitHub lists")
    if not changed:
        return ""
    return f"**It changes how it is measured** ({', '.join(sorted(changed))}): the verdict is its author's word.\n\n"


def body(name: str, sha: str, ended: str, text: str) -> str:
    """Return a comment: our marker, facts from GitHub, then the rendered verdict."""
    run = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{os.environ['GITHUB_REPOSITORY']}"
    run += f"/actions/runs/{number_in('RUN_ID')}"
    # The artifact is the author's; how the job ended comes from GitHub and is shown above it.
    head = f"{marker(name)}\n**{name}** of {sha[:10]}: [the run]({run}) ended with **{ended}**.\n\n"
    room = MAX_COMMENT_BYTES - len(head.encode())
    return head + text.encode()[:room].decode(errors="ignore")


def marker(name: str) -> str:
    """Return the first line, which identifies our comment."""
    return f"<!-- rocattn:{name} -->"


def upsert(api: Api, number: int, name: str, text: str) -> None:
    """Update our comment with this name, or create it."""
    for one in api.pages(f"/issues/{number}/comments"):
        # Do not change other users' comments that contain our marker.
        if name_in(one.get("user"), "login") == BOT and str(one.get("body")).startswith(marker(name)):
            api.call("PATCH", f"/issues/comments/{part(one, 'id', int)}", {"body": text})
            print(f"{name}: comment renewed")
            return
    api.call("POST", f"/issues/{number}/comments", {"body": text})
    print(f"{name}: comment made")


def main(words: list[str]) -> int:
    """Run the command line; a refusal or a failed call prints one line and returns status 1."""
    try:
        match words:
            case ["admit"]:
                admit()
            case ["fetch", folder]:
                fetch(Path(folder))
            case ["comment", folder]:
                comment(Path(folder))
            case _:
                print("usage: pull_request.py admit | fetch DIR | comment DIR", file=sys.stderr)
                return 4
    except (RefusedError, OSError, http.client.HTTPException) as error:
        print(f"pull_request.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
