"""Whether commits touched anything that can change a benchmark's result: code, or only text and dependencies."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, NamedTuple

from rocattn_profiling.base.forks import forked
from rocattn_profiling.revisions.git import RevisionError, git

if TYPE_CHECKING:
    from rocattn_profiling.site.changes import Excused

    Part = Literal["words", "dependencies", "code"]

_DEPENDENCIES = re.compile(
    r"(.*/)?(requirements|constraints|environment|conda)[\w.-]*\.(txt|in|yml|yaml|lock)|(.*/)?requirements/.*"
    r"|(ci|continuous_integration|environments?|conda[\w.-]*|recipes?)/.*\.(txt|ya?ml|lock)"
    r"|(.*/)?(pyproject\.toml|setup\.cfg|asv\.conf\.jsonc?|Pipfile|pixi\.toml|[\w.-]+\.lock|[\w.-]*lock\.ya?ml)",
    re.IGNORECASE,
)
_WORDS = re.compile(
    r"\.(git(hub|lab)?|circleci|azure|travis|cirrus|buildkite|vscode|idea|devcontainer|readthedocs|pre-commit|codecov"
    r"|coveragerc|mailmap|zenodo|editorconfig|flake8|pylint\w*|ruff|isort|mypy|clang-(format|tidy)|all-contributors)"
    r"[\w.-]*(/.*)?|(docs?|examples?|gallery|tutorials?|news|changes|changelog|changelog\.d|releases?)/.*"
    r"|(.*/)?(\.git\w+|READ_?ME|LICEN[CS]E|COPYING|AUTHORS|THANKS|NEWS|CHANGE(S|LOG)|HISTORY|CITATION|CONTRIBUT\w+"
    r"|CODEOWNERS|INSTALL|MANIFEST)(\.\w+)?"
    r"|(.*/)?(tox\.ini|noxfile\.py|codecov\.ya?ml|azure-pipelines\.ya?ml|appveyor\.ya?ml|Jenkinsfile)"
    r"|.*\.(md|rst|adoc|png|jpe?g|gif|svg|bib|pyi|po)",
    re.IGNORECASE,
)
_TESTS = re.compile(r"(?!.*bench)((.*/)?tests?/.*|(.*/)?(test_[^/]*|[^/]*_test|conftest)\.py)", re.IGNORECASE)
_NATIVE = frozenset({".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hh", ".hip", ".hpp"})
_COMMENT = re.compile(r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(//[^\n]*|/\*.*?\*/)""", re.DOTALL)
_LINE_END = re.compile(r"\r\n|\r|\n")  # as in Python's parser
_DIRECTIVE = re.compile(r"#\s*(?:cython|distutils|pythran|transonic)\b.*")  # comments with an effect on the compiler
_SHOWN = 2  # file names shown, and lines per side of a dependency file
_MOST_READ = 8  # source files per range compared without comments; with more, the range counts as code
_NO_FETCH = {"GIT_NO_LAZY_FETCH": "1"}  # do not download contents that a partial clone lacks


class File(NamedTuple):
    """A changed file: its path, and the hash of its contents on each side, "" if it is not a regular file there."""

    path: str
    old: str
    new: str


def excused_by(repo: Path, jobs: int = 1) -> Excused:
    """Return a function for why ranges of commits cannot have changed a result; "" if they can, or git fails.

    Args:
        repo: A clone.
        jobs: Number of processes that read the changes.
    """

    def excused(ranges: Sequence[tuple[str, str]]) -> list[str]:
        known = list(dict.fromkeys(own for own in ranges if all(own)))
        lines = "".join(f"{after} {before}\n" for before, after in known)
        raw = ("--stdin", "--always", "-z", "-r", "--raw", "--no-renames", "--no-abbrev")
        try:
            said = git(repo, "diff-tree", *raw, stdin=lines, env=_NO_FETCH) if known else ""
        except RevisionError:
            return [""] * len(ranges)
        changed = list(zip(known, _files(said), strict=True))
        told = forked(lambda own: _reason(repo, *own), changed, jobs)
        reasons = dict(zip(known, told, strict=True))
        return [reasons.get(own, "") for own in ranges]

    return excused


def _files(said: str) -> Iterator[list[File]]:
    """Yield the files of each range from the output of ``git diff-tree --stdin``."""
    files: list[File] | None = None
    parts = iter(said.split("\0"))
    for part in parts:
        if part.startswith(":"):
            old_mode, new_mode, old, new, _ = part[1:].split(" ")
            plain = [sha if mode.startswith("100") else "" for mode, sha in ((old_mode, old), (new_mode, new))]
            (files if files is not None else []).append(File(next(parts), *plain))
        elif part:
            if files is not None:
                yield files
            files = []
    if files is not None:
        yield files


def _reason(repo: Path, commits: tuple[str, str], files: Sequence[File]) -> str:
    by_part: dict[Part, list[File]] = {"words": [], "dependencies": [], "code": []}
    for file in files:
        by_part[part_of(file.path)].append(file)
    code = by_part["code"]
    if len(code) > _MOST_READ or not all(_says_the_same(repo, file) for file in code):
        return ""
    if pins := by_part["dependencies"]:
        return f"only dependencies changed: {_names(pins)}{_lines(repo, commits, pins)}"
    if code:
        return f"only comments changed in {_names(code)}"
    return f"only {_names(files)} changed, not what is built or measured" if files else "no file changed"


def part_of(path: str) -> Part:
    """Return the kind of a file, by its path."""
    if _DEPENDENCIES.fullmatch(path):
        return "dependencies"
    return "words" if _WORDS.fullmatch(path) or _TESTS.fullmatch(path) else "code"


def _names(files: Sequence[File]) -> str:
    more = len(files) - _SHOWN
    return ", ".join(file.path for file in files[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _lines(repo: Path, commits: tuple[str, str], files: Sequence[File]) -> str:
    """Return the first changed lines of dependency files, in parentheses."""
    paths = [f":(top,literal){file.path}" for file in files]
    try:
        told = git(repo, "diff", "-U0", "--no-ext-diff", "--no-textconv", "--no-color", *commits, "--", *paths,
                   env=_NO_FETCH)  # fmt: skip
    except RevisionError:
        return ""
    changed = [line for line in told.split("\n") if re.match(r"[+-](?![+-]{2} ).*\w", line)]
    # Each once, since several files may have the same pin. YAML list items also begin with dashes.
    texts = list(dict.fromkeys(f"{line[0]} {line[1:].strip().removeprefix('- ')}" for line in changed))
    shown = [text for sign in "-+" for text in [text for text in texts if text[0] == sign][:_SHOWN]]
    return f" ({'; '.join(shown)})" if shown else ""


def _says_the_same(repo: Path, file: File) -> bool:
    """Whether a source file is the same without comments and docstrings."""
    suffix = PurePosixPath(file.path).suffix
    if not (file.old.strip("0") and file.new.strip("0") and suffix in {".py", ".pyx", ".pxd", *_NATIVE}):
        return False
    try:
        old, new = (git(repo, "cat-file", "blob", sha, env=_NO_FETCH) for sha in (file.old, file.new))
    except RevisionError:
        return False
    return same_code(old, new, suffix)


def same_code(old: str, new: str, suffix: str) -> bool:
    """Whether two texts of a source file differ only in comments and docstrings; False if one cannot be parsed.

    Args:
        old: One text.
        new: The other text.
        suffix: The file's suffix: ".py", ".pyx", ".pxd", or one of C, C++, HIP or CUDA.
    """
    try:
        if suffix in _NATIVE:
            return 'R"' not in old + new and _native(old) == _native(new)
        if _DIRECTIVE.findall(old) != _DIRECTIVE.findall(new):
            return False
        # Stop at the first difference: most commits that touch code change it.
        if suffix == ".py":
            none: tuple[list[str], ast.stmt] = [], ast.Pass()
            pairs = itertools.zip_longest(_python(old), _python(new), fillvalue=none)
            return all(mine == other or _bare(one) == _bare(two) for (mine, one), (other, two) in pairs)
        return all(mine == other for mine, other in itertools.zip_longest(_cython(old), _cython(new)))
    except (SyntaxError, ValueError, RecursionError, MemoryError, tokenize.TokenError):
        return False


def _python(text: str) -> Iterator[tuple[list[str], ast.stmt]]:
    """Yield the lines of each statement of a module with its syntax tree, without the module's docstring."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about old escape sequences in the project
        tree = ast.parse(text)
    lines = _LINE_END.split(text)
    for node in tree.body[ast.get_docstring(tree, clean=False) is not None :]:
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
        yield lines[first - 1 : node.end_lineno], node


def _bare(statement: ast.stmt) -> str:
    """Return a statement's syntax tree as text, without docstrings."""
    for node in ast.walk(statement):
        scopes = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, scopes) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return ast.dump(statement)


def _cython(text: str) -> Iterator[tuple[int, str]]:
    for one in tokenize.generate_tokens(io.StringIO(text).readline):
        if one.type not in {tokenize.COMMENT, tokenize.NL}:
            yield one.type, one.string


def _native(text: str) -> list[str]:
    bare = _COMMENT.sub(lambda found: " " if found[1] else found[0], text)
    return [line for line in map(str.strip, bare.split("\n")) if line]
