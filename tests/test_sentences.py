"""Sentences go out and never come in: no behaviour and no test hangs on how a part of a message is worded."""

import ast
import re
from pathlib import Path

import pytest

from .sources import nodes

ROOT = Path(__file__).resolve().parents[1]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FOLDERS = ("rocattn", "profiling", "benchmarks", ".github/scripts")
SENTENCES = {"reason", "sentence", "skipped", "problem", "problems", "unknown", "message", "excuse", "why", "remedy"}
PARTS = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "find", "index"}
PATTERNS = {"match", "fullmatch", "search", "findall", "finditer"}
COMPARISONS = ast.Eq | ast.NotEq | ast.In | ast.NotIn
SHAPES = {"lower", "upper", "casefold", "strip"}

COLLECT = "profiling/rocattn_profiling/profile/collect"
ALLOWED = {
    # What profilers and their probes print: these modules own those programs' words.
    (f"{COLLECT}/diagnose.py", "text"), (f"{COLLECT}/find.py", "text"), (f"{COLLECT}/hardware.py", "text"),
    # "None" is Slurm's word.
    ("profiling/rocattn_profiling/bench/fleet/cluster.py", "why"),
    # The message is a commit's, with git's trailers.
    ("profiling/rocattn_profiling/gate/waivers.py", "message"),
    # Names of numbers, not sentences about them.
    ("rocattn/toolchain/code_object.py", "unknown"), ("profiling/rocattn_profiling/kernels/facts.py", "unknown"),
    # Where a text already names a place, the place is not printed a second time.
    ("profiling/rocattn_profiling/gate/formats/render.py", "text"),
    # A waiver's problem begins with its place in the file, of which SARIF wants the line.
    ("profiling/rocattn_profiling/gate/formats/sarif.py", "problem"),
}  # fmt: skip


def sources():
    """Return every Python file that is shipped or measures, and dev.py."""
    return [*(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))), ROOT / "dev.py"]


def own_classes(paths):
    """Return the names of the classes of all modules, our exceptions among them."""
    return {node.name for path in paths for node in nodes(path) if isinstance(node, ast.ClassDef)}


def sentence(node, errors):
    """Return which sentence an expression is, "" for none: one by its name, or str() of an exception of ours."""
    if isinstance(node, ast.Attribute):
        return node.attr if node.attr in SENTENCES | {"text"} else ""  # a variable called text is usually a file's
    if isinstance(node, ast.Name):
        return node.id if node.id in SENTENCES else ""
    if isinstance(node, ast.Subscript):
        return sentence(node.value, errors)
    if not isinstance(node, ast.Call):
        return ""
    if isinstance(node.func, ast.Attribute):
        return sentence(node.func.value, errors) if node.func.attr in SHAPES else ""
    made_text = isinstance(node.func, ast.Name) and node.func.id == "str" and node.args
    return "str" if made_text and isinstance(node.args[0], ast.Name) and node.args[0].id in errors else ""


def examined(node):
    """Return the expressions whose characters a node looks at."""
    if isinstance(node, ast.Match):
        return [node.subject]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return [node.func.value] if node.func.attr in PARTS else node.args if node.func.attr in PATTERNS else []
    if isinstance(node, ast.Compare) and any(
        isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops
    ):
        sides = [node.left, *node.comparators]
        # Whether there is a text at all may decide.
        return [] if any(isinstance(side, ast.Constant) and side.value in {"", None} for side in sides) else sides
    return []


def read_back(every, own):
    """Return (line, name) of every place among a file's nodes that looks at the characters of a sentence."""
    caught = {}
    for handler in every:
        if isinstance(handler, ast.ExceptHandler) and handler.name:
            types = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(handler.type)}
            for node in ast.walk(handler) if types & own else ():
                caught.setdefault(node, set()).add(handler.name)
    return [
        (node.lineno, name)
        for node in every for subject in examined(node)
        if (name := sentence(subject, caught.get(node, ())))
    ]  # fmt: skip


def test_no_module_reads_a_sentence_back():
    """Programs act on codes, statuses and types (`rocattn_profiling.base.reasons`); what is allowed is still there."""
    own = own_classes(sources())
    found = {
        (path.relative_to(ROOT).as_posix(), name): line
        for path in sources()
        for line, name in read_back(nodes(path), own)
    }
    assert found.keys() - ALLOWED == set(), {key: found[key] for key in found.keys() - ALLOWED}
    assert found.keys() >= ALLOWED, "these are allowed for nothing"


@pytest.mark.parametrize(
    "line",
    [
        'record.skipped.startswith("failed: ")', 'look.reason in {"wall time", "CPU time"}', '"spilled" in cause.text',
        'finding.sentence.removeprefix("x on y: ")', 're.search(r"\\d+", entry.reason)',
        'f"no {x}" not in facts.unknown',
        '[one for one in audit.problems if one.problem.lower() == "no"]',
    ],
)  # fmt: skip
def test_a_sentence_that_is_read_back_is_found(line):
    """Each of these was, or nearly was, in the code."""
    assert read_back([*ast.walk(ast.parse(line))], set())


def test_the_text_of_an_exception_is_one_where_it_is_ours():
    """Other libraries' errors have no types to go by."""
    code = "try:\n    x()\nexcept {} as error:\n    y = str(error).startswith('git is not installed')\n"
    assert read_back([*ast.walk(ast.parse(code.format("RevisionError")))], {"RevisionError"}) == [(4, "str")]
    assert read_back([*ast.walk(ast.parse(code.format("OSError")))], {"RevisionError"}) == []
    assert read_back([*ast.walk(ast.parse('if record.skipped == "" or record.why != "": pass'))], set()) == []


WORD = re.compile(r"""(?<!\S)[(\['"`]*[A-Za-z][A-Za-z'-]*[,.;:!?)\]'"`]*(?!\S)""")
PHRASE = 4  # words
# Phrases by file; what is converted leaves the table.
NOT_CONVERTED = {
    "tests/gate/exact/test_any_project.py": 1, "tests/gate/exact/test_audit.py": 1, "tests/gate/exact/test_plans.py": 1,
    "tests/gate/exact/test_planted.py": 2, "tests/gate/formats/test_comment.py": 1,
    "tests/gate/formats/test_untrusted.py": 1, "tests/gate/planning/test_discovery.py": 1,
    "tests/gate/test_accepting.py": 4, "tests/gate/test_existing.py": 3, "tests/gate/test_foreign.py": 1,
    "tests/gate/test_init.py": 2, "tests/gate/test_run.py": 10, "tests/gate/test_selftest.py": 4,
    "tests/gpu/test_commands.py": 3, "tests/gpu/test_hostgpu.py": 6,
    "tests/gpu/test_runtime.py": 3, "tests/gpu/test_steady.py": 1, "tests/gpu/test_verify_on_hostgpu.py": 1,
    "tests/hipcuda/test_hipcuda.py": 1, "tests/hostgpu/test_bindings.py": 2, "tests/hostgpu/test_findings.py": 5,
    "tests/hostgpu/test_hip.py": 2, "tests/hostgpu/test_lds_banks.py": 4, "tests/hostgpu/test_order.py": 5,
    "tests/toolchain/test_cache.py": 1, "tests/toolchain/test_compilers.py": 2,
}  # fmt: skip


def words(node):
    """Return how many words an expression's texts have; numbers, paths, options and what a field puts in are none."""
    return sum(len(WORD.findall(part.value)) for part in ast.walk(node) if is_text(part))


def is_text(node):
    """Whether a node is a string."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def looked_for(parsed):
    """Yield the expressions that asserts look for in another, or prove absent: themselves, or the members of a list."""
    members = {}
    for node in parsed:
        if isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
            members.setdefault(node.target.id, []).extend(getattr(node.iter, "elts", ()))
    for statement in parsed:
        for node in ast.walk(statement) if isinstance(statement, ast.Assert) else ():
            compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            for sought, how in zip(compared, getattr(node, "ops", ()), strict=False):
                if isinstance(how, ast.In | ast.NotIn):
                    yield from members.get(sought.id, ()) if isinstance(sought, ast.Name) else (sought,)


def phrases(parsed):
    """Return the lines of the phrases that asserts look for."""
    return sorted({node.lineno for node in looked_for(parsed) if words(node) >= PHRASE})


def test_no_assert_looks_for_a_phrase():
    """What a view says stands in a snapshot, one a view and state; a refusal is compared as a whole.

    `not in` is refused too: it would hold for ever once the sentence is worded anew. `pytest.raises(match=...)` is
    free: it is a refusal's own sentence, and fails when that sentence changes.
    """
    found = {path.relative_to(ROOT).as_posix(): phrases(nodes(path)) for path in TESTS}
    wrong = {path: lines for path, lines in found.items() if len(lines) != NOT_CONVERTED.get(path, 0)}
    assert wrong == {}, "\n".join(f"{path}:{line}" for path, lines in wrong.items() for line in lines or ["none left"])
    assert NOT_CONVERTED.keys() <= found.keys()


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ('assert "one two three four" in out', 1), ('assert f"one {two} three, four: five" not in out', 1),
        ('assert all(part in out for part in ("one two three four", "x", "five six " "seven eight"))', 2),
        ('assert snapshot("one two three four") in out', 1), ('assert "one " + two + " three four five" in out', 1),
        ('assert "one two three 4 --five six.py" in out', 0), ('assert out == "one two three four"', 0),
        ('with pytest.raises(ValueError, match="one two three four"): f()', 0),
    ],
)  # fmt: skip
def test_a_phrase_that_an_assert_looks_for_is_found(line, count):
    """Also in a snapshot that is looked for, or in a list."""
    assert sum(words(node) >= PHRASE for node in looked_for([*ast.walk(ast.parse(line))])) == count
