"""A GitHub that answers the few calls of our scripts, on this machine, and remembers what was asked and changed."""

import io
import json
import re
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPOSITORY = "we/rocattn"
BOT = {"login": "github-actions[bot]"}
EARLIER, BEGAN, LATER, ENDED, AFTER = (f"2026-11-20T{hour}:00:00Z" for hour in ("09", "10", "11", "12", "13"))


class GitHub:
    """What it holds; tests change it.

    Attributes:
        pulls: Open pull requests, as the API lists them.
        comments: Of each pull request, in order.
        labels: Of each pull request.
        artifacts: Name -> the archive as GitHub serves it.
        jobs: Of every run, as the API lists them.
        rights: Login -> permission.
        calls: (method, path) of every call.
        tokens: What came as authorisation, of every call: path -> value.
        made: When `artifacts` were made.
        head: The commit that the run and its artifacts are of.
        older: Artifacts of an earlier attempt of the run, by name: GitHub lists them, too.
    """

    def __init__(self):
        self.pulls, self.comments, self.labels, self.artifacts, self.rights = [], {}, {}, {}, {}
        self.jobs, self.older, self.files = [], {}, []
        self.sizes, self.calls, self.tokens, self.url, self.made = {}, [], {}, "", LATER
        self.head = ""

    def add_machine(self, arch, conclusion="failure", runner="box-1"):
        """Add a job of the workflow `gpu` that a machine took, or (without a runner) only waits for one."""
        labels = ["self-hosted", "linux", "rocm", arch]
        job = {"name": "gate", "labels": labels, "runner_name": runner, "conclusion": conclusion}
        self.jobs.append(job | {"started_at": BEGAN, "completed_at": ENDED})

    def add_pull(self, number, sha, repository=REPOSITORY, branch="topic"):
        """Open a pull request."""
        repo = {"full_name": repository} if repository else None
        self.pulls.append({"number": number, "head": {"sha": sha, "ref": branch, "repo": repo}})
        self.comments[number], self.labels[number] = [], ["gpu"]
        self.head = self.head or sha

    def answer(self, method, path, body):  # noqa: PLR0911 - a table of calls, one return for each
        """Return the status and the JSON (or bytes) of an answer; a redirect is its address."""
        path, _, query = path.partition("?")
        page = int(dict(re.findall(r"(\w+)=(\w+)", query)).get("page", 1))
        part = path.removeprefix(f"/repos/{REPOSITORY}")
        if re.fullmatch(r"/pulls/\d+/files", part):
            return 200, self.files[100 * (page - 1) : 100 * page]
        if method == "GET" and part == "/pulls":
            return 200, self.pulls[100 * (page - 1) : 100 * page]
        if found := re.fullmatch(r"/issues/(\d+)/comments", part):
            listed = self.comments[int(found[1])]
            if method == "POST":
                listed.append({"id": 1000 + sum(map(len, self.comments.values())), "user": BOT, "body": body["body"]})
                return 201, listed[-1]
            return 200, listed[100 * (page - 1) : 100 * page]
        if method == "PATCH" and (found := re.fullmatch(r"/issues/comments/(\d+)", part)):
            one = next(one for listed in self.comments.values() for one in listed if one["id"] == int(found[1]))
            one["body"] = body["body"]
            return 200, one
        if method == "DELETE" and (found := re.fullmatch(r"/issues/(\d+)/labels/(\w+)", part)):
            labels = self.labels[int(found[1])]
            return (200, labels.remove(found[2])) if found[2] in labels else (404, {"message": "Label does not exist"})
        if found := re.fullmatch(r"/collaborators/([\w\[\]%-]+)/permission", part):
            return 200, {"permission": self.rights.get(found[1], "none")}
        if re.fullmatch(r"/actions/runs/\d+/jobs", part):
            gate = {"name": "gate, without a GPU", "labels": ["ubuntu-24.04"], "started_at": BEGAN}
            jobs = self.jobs or [gate | {"completed_at": ENDED}]
            return 200, {"jobs": [{"head_sha": self.head} | job for job in jobs]}
        if re.fullmatch(r"/actions/runs/\d+/artifacts", part):
            listed = [
                {"id": first + number, "name": name, "created_at": when}
                | {"size_in_bytes": self.sizes.get(name, len(data)), "workflow_run": {"head_sha": self.head}}
                for first, when, kept in ((0, self.made, self.artifacts), (900, EARLIER, self.older))
                for number, (name, data) in enumerate(kept.items(), 1)
            ]
            return 200, {"artifacts": listed}
        if found := re.fullmatch(r"/actions/artifacts/(\d+)/zip", part):
            return 302, f"{self.url.replace('127.0.0.1', 'localhost')}/blob/{found[1]}"
        if found := re.fullmatch(r"/blob/(\d+)", path):  # another host than the API's, as far as a client can tell
            number = int(found[1])
            return 200, list((self.older if number > 900 else self.artifacts).values())[number % 900 - 1]
        return 404, {"message": "Not Found"}

    @contextmanager
    def serving(self):
        """Answer for the length of a block; gives the variables that make a script ask here."""
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one(self):
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                hub.calls.append((self.command, self.path))
                hub.tokens[self.path] = self.headers.get("Authorization")
                status, answer = hub.answer(self.command, self.path, body)
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", answer)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_one  # noqa: N815 - the names that http.server looks for

            def log_message(self, *_):
                """Say nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield {
                "GITHUB_API_URL": self.url, "GITHUB_REPOSITORY": REPOSITORY, "GITHUB_TOKEN": "t0ken",
                "GITHUB_SERVER_URL": "https://github.com", "no_proxy": "*",
            }  # fmt: skip
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def archive(files):
    """Return a zip of name -> bytes."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return data.getvalue()
