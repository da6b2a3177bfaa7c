"""A repository with pull requests: one that changes nothing, one with planted slowdowns, one with a planted crash.

It is this project as it lies there, with a small suite: kernel launches of the GPU path, counted (exact on any machine,
the stand-in GPU included), and one real time of the CPU path. Machine code is compared of a few kernels of one GPU.
"""

import os
import subprocess

SUITE = '''"""Kernel launches of one attention on the GPU, counted: exact wherever it runs."""

import functools

LAUNCHES = []


class QuickGpu:
    """The time is the number of launches, in milliseconds."""

    params = [["gpu"]]
    param_names = ["backend"]
    version = "1"

    def setup(self, backend):
        import numpy as np

        import rocattn
        from rocattn.gpu import driver

        if not LAUNCHES:
            LAUNCHES.append(0)
            launch = driver.Hip.launch

            def counted(*arguments):
                LAUNCHES[0] += 1
                return launch(*arguments)

            driver.Hip.launch = counted
        q = np.ones((1, 16, 1, 64), np.float16)
        self.call = functools.partial(rocattn.attention, q, q, q, causal=True, backend=backend)

    def time_launches(self, *_):
        self.call()

    time_launches.timer = lambda: LAUNCHES[0] * 1e-3 if LAUNCHES else 0.0
'''
RUNTIME, CPU = "rocattn/gpu/runtime.py", "rocattn/backends/cpu.py"
SHIPPED, QUICK = "profiling/rocattn_profiling/kernels/shipped.py", '    return dtype == "f16" and '
LAUNCH = """        self._launcher.queue(stream, values)
"""

CAUSAL = "        if self.plan.launches[0].kernel.endswith('_causal'):\n"
CHUNKS = """            for heads in self._chunks(config):
                _forward_chunk(config, operands, heads, out, lse)
"""

ENVIRONMENT = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
ENVIRONMENT |= {f"GIT_{role}_NAME": "a" for role in ("AUTHOR", "COMMITTER")}
ENVIRONMENT |= {f"GIT_{role}_EMAIL": "a@b.c" for role in ("AUTHOR", "COMMITTER")}


def git(folder, *words):
    """Run git; return what it prints."""
    done = subprocess.run(["git", "-C", folder, *words], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def replace(path, old, new):
    """Change a file; what is to be replaced must be there, once."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new))


def slower(tree):
    """Launch every kernel twice, and compute on the CPU three times."""
    replace(tree / RUNTIME, LAUNCH, 2 * LAUNCH)
    replace(tree / CPU, CHUNKS, CHUNKS.replace("self._chunks(config)", "self._chunks(config) * 3"))


def crashes(tree):
    """End the process in a causal kernel's first launch: the GPU is fine, the benchmark is not."""
    replace(tree / RUNTIME, LAUNCH, f"{CAUSAL}            os.abort()\n{LAUNCH}")


def dies(tree):
    """End the process in any first launch, also that of the health check."""
    replace(tree / RUNTIME, LAUNCH, "        os.abort()\n")


def unchanged(tree):
    """Touch what no benchmark runs."""
    (tree / "NOTES.md").write_text("a note\n")


class Scenario:
    """The bare repository's commits by name: base, and a pull request's head and merge commit for each change."""

    def __init__(self, folder, origin):
        self.origin, self.tree = origin, folder / "tree"
        subprocess.run(["git", "clone", "--quiet", origin, self.tree], check=True, capture_output=True)
        for path in (self.tree / "benchmarks").glob("bench_*.py"):
            if path.name != "bench_forward.py":
                path.unlink()
        (self.tree / "benchmarks" / "bench_launches.py").write_text(SUITE)
        replace(self.tree / SHIPPED, QUICK, f'{QUICK}"causal" in kernel.kernel and kernel.arch == "gfx942" and ')
        self.base = self._commit("A small suite")
        git(self.tree, "push", "--quiet", "origin", "HEAD:main")
        self.heads, self.merges = {}, {}
        for number, change in enumerate((unchanged, slower, crashes, dies), 1):
            self._propose(number, change)

    def _commit(self, message):
        git(self.tree, "add", "--all")
        git(self.tree, "commit", "--quiet", "-m", message)
        return git(self.tree, "rev-parse", "HEAD")

    def _propose(self, number, change):
        """Commit a change on a branch, and what GitHub makes of it: the branch merged into main."""
        name = change.__name__
        git(self.tree, "checkout", "--quiet", "-B", name, self.base)
        change(self.tree)
        head = self.heads[name] = self._commit(f"{name}: $(touch pwned) <img src=x> @everyone")
        tree = git(self.tree, "rev-parse", f"{head}^{{tree}}")
        merge = git(self.tree, "commit-tree", tree, "-p", self.base, "-p", head, "-m", f"Merge {head} into {self.base}")
        self.merges[name] = merge
        git(self.tree, "push", "--quiet", "origin", f"{head}:refs/heads/{name}", f"{merge}:refs/pull/{number}/merge")
