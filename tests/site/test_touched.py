"""What commits touched: a range that holds no code cannot have changed a result."""

import itertools
import subprocess

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.site.changes import find_changes
from rocattn_profiling.site.commits import read_history
from rocattn_profiling.site.touched import excused_by, part_of, same_code

from .conftest import make_series


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A repository, and a function that commits files with their texts and returns the commit."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)

    def git(*arguments):
        own = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgSign=false")
        done = subprocess.run(["git", *own, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git("add", "-A")
        git("commit", "--quiet", "--allow-empty", "-m", " ".join(files) or "nothing")
        return git("rev-parse", "HEAD")

    git("init", "--quiet", "--initial-branch=main")
    return tmp_path, commit


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("README", "words"), ("README.md", "words"), ("doc/source/conf.py", "words"),
        (".github/workflows/x.yml", "words"),
        ("news/123-fix", "words"), ("pkg/tests/test_a.py", "words"), ("LICENSE.txt", "words"),
        ("pkg/stubs.pyi", "words"),
        ("requirements.txt", "dependencies"), ("ci/environment.yml", "dependencies"), ("ci/asv.yml", "dependencies"),
        ("pyproject.toml", "dependencies"), ("uv.lock", "dependencies"), ("benchmarks/asv.conf.json", "dependencies"),
        ("pkg/a.py", "code"), ("CMakeLists.txt", "code"), ("setup.py", "code"), ("pkg/data/table.yml", "code"),
        ("benchmarks/test_speed.py", "code"), ("pkg/testing/util.py", "code"), ("pkg/docs/table.c", "code"),
        (".cargo/config.toml", "code"), (".bazelrc", "code"), (".pre-commit-config.yaml", "words"),
        (".gitlab-ci.yml", "words"), ("extern/lib", "code"), ("meson.build", "code"), ("pkg/readmedical.py", "code"),
    ],
)  # fmt: skip
def test_files_are_told_apart_by_their_path(path, part):
    """What is built or measured is code; what is not known is, too."""
    assert part_of(path) == part


PY = 'def f(x):\n    """Old words."""\n    return x + 1\n'


@pytest.mark.parametrize(
    ("suffix", "old", "new", "same"),
    [
        (".py", PY, PY.replace("Old", "New"), True),
        (".py", PY, f"# first\n{PY}", True),
        (".py", PY, PY.replace("+ 1", "+ 2"), False),
        (".py", PY, PY.replace("x + 1", "'x'"), False),
        (".py", "print 1", "print 1  # x", False),
        (".py", "a = 'x # y'", "a = 'x # z'", False),
        (".c", "int a; // b\n", "int a; /* c\nd */\n", True),
        (".c", 'char *a = "//b";', 'char *a = "//c";', False),
        (".c", "a = '\"'; // b", "a = '\"'; // c", True),
        (".c", "int a;", "int b;", False),
        (".cpp", 'R"(// a)"', 'R"(// b)"', False),
        (".pyx", "cdef int a = 1  # b\n", "cdef int a = 1  # c\n", True),
        (".pyx", "# cython: boundscheck=True\na = 1\n", "# cython: boundscheck=False\na = 1\n", False),
        (".py", "#pythran export f(int)\n", "#pythran export f(float)\n", False),
        (".pyx", "cdef int a = 1\n", "cdef int a = 2\n", False),
    ],
)
def test_comments_and_docstrings_are_no_code(suffix, old, new, same):
    """Strings are; a file that cannot be read is code."""
    assert same_code(old, new, suffix) == same


def test_ranges_of_commits_are_excused_with_the_reason(made):
    """Each by all that changed in it; git's own trouble excuses nothing."""
    root, commit = made
    shas = [
        commit(a_dot_py=PY, requirements_dot_txt="numpy\n"),
        commit(README="one"),
        commit(a_dot_py=PY.replace("Old", "New"), README="two"),
        commit(requirements_dot_txt="numpy<2.1\n"),
        commit(a_dot_py=PY.replace("+ 1", "+ 2"), README="three"),
        commit(),
        commit(b_dot_py="x = 1\n"),
    ]
    excused = excused_by(root)
    steps = list(itertools.pairwise(shas))
    assert excused(steps) == [
        "only README changed, not what is built or measured",
        "only comments changed in a.py",
        "only dependencies changed: requirements.txt (- numpy; + numpy<2.1)",
        "",
        "no file changed",
        "",
    ]
    assert excused([(shas[0], shas[4]), ("", shas[1])]) == ["", ""]
    assert excused([(shas[0], shas[3])])[0].startswith("only dependencies changed")
    assert excused([("e" * 40, shas[1])]) == [""]
    assert excused_by(root / "nowhere")(steps[:1]) == [""]


def test_a_readme_is_not_blamed_for_unrelated_lines(made):
    """200 lines of twenty suites rise by 9 % at a commit that edits a README, between commits of code: one event."""
    root, commit = made
    shas = [commit(a_dot_py=f"x = {n}\n", **({"README": "words"} if n == 11 else {})) for n in range(11)]
    shas += [commit(README="words")]
    shas += [commit(a_dot_py=f"x = {n}\n") for n in range(12, 24)]
    places = {f"{n:040x}": sha for n, sha in enumerate(shas)}
    series = []
    for n in range(200):
        scatter = [1 + 0.02 * (((n * 31 + at * 17) * 2654435761 % 997) / 498.5 - 1) for at in range(24)]
        line = make_series([s * (1.09 if at >= 11 else 1) for at, s in enumerate(scatter)],
                           benchmark=f"suite{n % 20}.Bench.time_{n}")  # fmt: skip
        points = [type(p)(sha=places[p.sha], date_ms=p.date_ms, value=p.value) for p in line.points]
        series.append(type(line)(**{f: getattr(line, f) for f in line.__struct_fields__} | {"points": points}))
    changes = find_changes(series, read_history(root), excused=excused_by(AsvStore(root).repo_root))
    event = changes.of("event")[0]
    assert (event.sha, len(event.changes) > 150) == (shas[11], True)
    assert event.event == snapshot(
        "only README changed, not what is built or measured; 200 of 200 lines on box, in 20 suites, moved at once"
    )
    assert len(changes.open) < 10
