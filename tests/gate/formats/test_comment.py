"""The comment on a pull request and the summary of a workflow's step: Markdown that foreign text cannot leave."""

import html
import re

import pytest
from inline_snapshot import snapshot
from markdown_it import MarkdownIt

from rocattn_profiling.gate.formats import card, markdown, outputs
from rocattn_profiling.gate.model import Cause, Location

from ...screens import line
from ..conftest import fold

OWN = {
    "h3", "p", "ul", "li", "strong", "code", "pre", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"
}  # fmt: skip


def tags(source):
    """Return the tags of Markdown as GitHub renders it."""
    page = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(source)
    return page, re.findall(r"<([a-zA-Z!][^>]*)>", page)


def test_the_comment_is_worst_first_and_says_why(rich):
    """Regressions and what was lost, each cause once; reasons of what is open; other numbers folded."""
    assert fold(markdown.comment(rich)) == snapshot("""\
<!-- rocattn-gate -->
### rocattn gate: regression

1 of 11 benchmarks is slower by 31 %, 1 of 2 exact metrics is worse (1 cause); 3 of 11 existing benchmarks were not
    compared, 1 waiver did not hold; not compared: 1 benchmark broken on both sides (no), 1 benchmark skipped (no GPU),
    1 benchmark not judged (shown), 1 more

base <code>ababababab</code> a subject, head <code>ababababab</code> a subject: 2 regressions, 1 failed, 1 missing,
    1 removed, 1 undecided, 1 waived, 1 broken, 2 improvements, 1 ungated, 1 new, 1 skipped, 1 pass

- **problem:** .rocattn/waivers.toml&#58;12: the waiver of x time expired on 2026-01-01

| benchmark | verdict | base | head | head / base | 95 % interval |
|---|---|---:|---:|---:|---|
| <code>flash f16 &#91;audit, gfx942&#93;</code> | **regression** | 0 registers | 43 registers |  |  |
| <code>bench_a.Class.time_slow(1, 'cpu')</code> | **regression** | 2 ms | 2.62 ms | x1.310 | &#91;1.271,
    1.349&#93; |
| <code>bench_a.Class.time_lost</code> | **failed** |  |  |  |  |
| <code>bench_a.Class.time_gone</code> | **missing** |  |  |  |  |
| <code>bench_a.Class.time_old</code> | **removed** |  |  |  |  |

**cause of** <code>flash f16 &#91;audit, gfx942&#93;</code> and 1 more:

- 43 registers are spilled
- **machine code:** 12 VGPRs spilled (<code>kernels/hip/flash attention.hip&#58;118</code>)
- accept: <code>Rocattn-Accept: bench_a.Class.time_slow(1, 'cpu') &#124; time &#124; 1.35 &#124; REASON</code>

**no cause found for** <code>bench_a.Class.time_lost</code>:

- ValueError: x

**no cause found for** <code>bench_a.Class.time_gone</code>:

- not there
- accept: <code>Rocattn-Accept: bench_a.Class.time_gone &#124; removed &#124; REASON</code>

**no cause found for** <code>bench_a.Class.time_old</code>:

- gone
- accept: <code>Rocattn-Accept: bench_a.Class.time_old &#124; removed &#124; REASON</code>


- **1 undecided:** why (<code>bench_a.Class.time_open</code>)
- **1 broken on both sides:** no (<code>bench_a.Class.time_both</code>)
- **1 skipped:** no GPU (<code>bench_a.Class.time_skip</code>)

<details><summary>6 more benchmarks</summary>

| benchmark | verdict | base | head | head / base | 95 % interval |
|---|---|---:|---:|---:|---|
| <code>bench_a.Class.time_open</code> | undecided | 2 ms | 2.08 ms | x1.040 | &#91;1.009, 1.071&#93; |
| <code>bench_a.Class.time_known</code> | waived: costs a compare (&#35;&#8203;41, up to x1.1) | 2 ms | 2.16 ms |
    x1.080 | &#91;1.048, 1.112&#93; |
| <code>bench_a.Class.time_both</code> | broken |  |  |  |  |
| <code>flash f32 &#91;audit, gfx942&#93;</code> | improvement | 2 ms | 1.8 ms | x0.900 | &#91;0.873, 0.927&#93; |
| <code>bench_a.Class.time_fast</code> | improvement | 2 ms | 1.4 ms | x0.700 | &#91;0.679, 0.721&#93; |
| <code>bench_a.Class.time_new</code> | new |  |  |  |  |

</details>

<details><summary>How it was measured</summary>

- m: c, 2 cores; o
- Python 3.11; 10 processes, seed 1, quick mode
- a pass shows the change to be within 5 %; a change is called when its estimate is 2 % or more and significantly
    beyond 1 %; at most 5 % chance of a false alarm over the whole suite
- all benchmarks together: x1.000; canary: x1.000
- <code>numpy</code> <code>2.4.5</code> on base, <code>2.4.6</code> on head
- a note

</details>
""")


def test_likely_slower_entries_and_own_rules_are_marked(entry, result_of):
    """Undecided is not unsuspicious; and whoever reads why must see what was asked."""
    likely = entry("a", "inconclusive", 1.05, suspect=True)
    result = result_of(
        [likely, entry("b", "inconclusive"), entry("c", "regression", 1.2, rule="a change counts from 9 % (t.toml:3)")],
        suite_shift=1.01,
    )
    text = markdown.comment(result)
    assert text.count("| undecided, likely slower |") == text.count("| undecided |") == 1
    assert line(text, "counts") == snapshot("- rule: a change counts from 9 % (t.toml&#58;3)")
    assert line(text, "together") == snapshot("- all benchmarks together: x1.010; canary: x1.000")
    shown = outputs.FILES["verdict.txt"](result)
    assert shown.count("likely slower") == 1
    assert line(shown, "change") == snapshot(
        "2 ms -> 2.4 ms  x1.200 [1.164, 1.236]  (a change counts from 9 % (t.toml:3))"
    )


def test_undecided_entries_share_a_reason(entry, result_of):
    """A row that says "broken" and nothing else sends everyone to the log."""
    broken = [entry(f"b.track_nan({i})", "broken", reason="nan is no value") for i in range(41)]
    broken.insert(20, entry("b.other", "broken", reason="SystemExit: 3"))
    result = result_of([*broken, entry("n", "inconclusive")])
    rows = re.findall(r"^- \*\*\d.*", markdown.comment(result), re.MULTILINE)
    assert fold("\n".join(rows)) == snapshot("""\
- **1 undecided:** why (<code>n</code>)
- **41 broken on both sides:** nan is no value (<code>b.track_nan(0)</code>, <code>b.track_nan(1)</code>,
    <code>b.track_nan(2)</code> and 38 more)
- **1 broken on both sides:** SystemExit: 3 (<code>b.other</code>)\
""")
    assert card.text(result, 100).partition("10 processes")[2] == snapshot("""\


1 undecided: why
  n  2 ms -> 2 ms  x1.000 [0.970, 1.030]

41 broken on both sides: nan is no value
  b.track_nan(0), b.track_nan(1), b.track_nan(2), b.track_nan(3), b.track_nan(4) and 36 more

1 broken on both sides: SystemExit: 3
  b.other
""")


def test_the_comment_links_to_its_run_only_when_told(rich):
    """The address is the workflow's own; a verdict names none."""
    assert "http" not in markdown.comment(rich)
    assert "([run](https://h/a/b/actions/runs/1))" in markdown.comment(rich, run_url="https://h/a/b/actions/runs/1")


def test_hostile_text_is_text_everywhere_in_the_comment(hostile):
    """Names, reasons, waivers, notes, packages, machines, revisions: only the comment's own tags are left."""
    result = hostile()
    for text in (markdown.comment(result), markdown.summary(result)):
        page, found = tags(text)
        kinds = {tag.split()[0] for tag in found if not tag.startswith("!")}
        assert kinds <= OWN
        assert not re.search(r"@org|#12|://|\x1b|\u202e|\x00", html.unescape(page))
        rows = sum(entry_.status != "pass" for entry_ in result.entries)
        assert page.count("<tr>") == rows + 2  # and the headers of two tables
        assert page.count("<td") == 6 * rows
        assert text.count("<details>") == text.count("</details>") == page.count("<details>")
        assert text.count("\n## ") == text.count("\n# ") == 0


def test_changed_lines_stay_in_their_element(entry, result_of):
    """With their indentation; no end of the element, no mention, no link, no line of its own."""
    diff = ("- x", "+     </pre>`</code>@org/team #12", "+ ]]> https://evil.example", "… 3 more lines")
    cause = Cause(kind="source", text="a.py:1 changed", location=Location(path="a.py"), diff=diff)
    page, found = tags(markdown.comment(result_of([entry("a", "regression", 1.2, causes=[cause])])))
    assert {tag.split()[0] for tag in found if not tag.startswith("!")} <= OWN
    assert page.count("<pre") == page.count("</pre>") == 1
    assert "+     &lt;/pre&gt;" in page or "+     &#60;/pre>" in page
    assert not re.search(r"@org|#12|://", html.unescape(page))


def test_a_name_cannot_forge_the_mark(hostile):
    """The next run replaces the comment that begins with the mark: there is one, and it is the first line."""
    text = markdown.comment(hostile(text="\n<!-- rocattn-gate -->\n"))
    assert text.count(markdown.MARKER) == 1


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("x" * 1_000_000, 6),
        ("@" * 1_000_000, 6),
        ("\U0001f600" * 1000, 60),
        ("#1 " * 300, 1),
        ("]]>|`</code><img src=x>@org/team #12 \x1b\u202e\x00" * 20, 60),
        ("n", 3000),
    ],
    ids=["long", "mentions", "emoji", "references", "hostile", "many"],
)
def test_the_comment_stays_below_its_limit(hostile, text, entries):
    """In bytes, whatever the names are; never cut in the middle of an element."""
    result = hostile(text=text, entries=entries)
    made = markdown.comment(result)
    assert len(made.encode()) <= markdown.COMMENT_BYTES < 64_000
    page, _ = tags(made)
    assert page.count("<details>") == page.count("</details>") == made.count("</details>")
    rows = page.count("<tr>") - page.count("<thead>")
    assert rows >= 1
    all_rows = sum(e.status != "pass" for e in result.entries)
    if rows < all_rows:
        assert f"{all_rows - rows} more rows" in made
    assert "How it was measured" in made


def test_a_verdict_of_500_benchmarks_is_cut_to_size(entry, result_of):
    """Every regression's row comes before anything else; passes take no room."""
    names = [f"bench_suite.QuickDecode.time_decode({n}, 'cpu-flash')" for n in range(500)]
    result = result_of([entry(name, "regression" if n < 30 else "pass", 1.1 + n / 100) for n, name in enumerate(names)])
    made = markdown.comment(result)
    assert made.count("| **regression** |") == 30
    assert made.count("no cause found for") == made.count("</details>") == 1
    assert "Cut to size" not in made


def test_the_summary_is_appended_once_a_step(rich, tmp_path):
    """After what is there already, without the comment's mark; without the variable nothing happens."""
    path = tmp_path / "summary.md"
    path.write_text("before\n")
    assert outputs.step_summary(rich, {"GITHUB_STEP_SUMMARY": str(path)}) == ""
    text = path.read_text()
    assert text.startswith("before\n\n### rocattn gate: regression\n")
    assert markdown.MARKER not in text
    assert outputs.step_summary(rich, {}) == ""


def test_the_summary_never_makes_the_file_too_large(hostile, tmp_path):
    """GitHub drops a summary above 1 MiB, all of it: what is there keeps its place, and the gate goes on."""
    path = tmp_path / "summary.md"
    big = hostile(text="y" * 300, entries=9000)
    for before in (0, 600_000, 1_040_000):
        path.write_text("x" * before)
        said = outputs.step_summary(big, {"GITHUB_STEP_SUMMARY": str(path)})
        assert path.stat().st_size <= 1 << 20
        assert bool(said) is (before > 1_000_000)
    assert outputs.step_summary(big, {"GITHUB_STEP_SUMMARY": str(tmp_path / "no" / "folder")}).startswith(
        "cannot write"
    )
