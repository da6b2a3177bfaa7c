"""The site's pages: no script, no foreign resource, nothing injected, every link alive, every point told."""

import csv
import errno
import io
import math
import os
import re
import signal
from dataclasses import replace
from html.parser import HTMLParser

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn.errors import RocattnError
from rocattn_profiling.base.files import StagedFiles
from rocattn_profiling.bench import report as bench_report
from rocattn_profiling.gate.formats import page as gate_page
from rocattn_profiling.pages.render import breakable
from rocattn_profiling.report.command import report_html
from rocattn_profiling.site import site as site_module
from rocattn_profiling.site.asv_pages import AsvPages
from rocattn_profiling.site.changes import find_changes, where_of
from rocattn_profiling.site.commits import with_pull_requests
from rocattn_profiling.site.site import Site, pages_of, write_site

from .reading import words

VOID = {"meta", "link", "br", "hr", "img", "input", "wbr"}


class Outline(HTMLParser):
    """Tags with attributes, and whether every opened element is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.problems = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        """Open an element."""
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """Note an element that is closed at once."""
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        """Close the innermost element, which must be this one."""
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()}")


@pytest.fixture
def site(series_of, history, records, verdict):
    """A site with everything on it, hostile names included."""
    step = [0.004] * 8 + [0.0052] * 4
    series = [
        series_of([0.005] * 12),
        series_of(step, benchmark="bench.inference.cpu_flash"),
        series_of(
            [*step[:3], None, float("nan"), *step[5:]],
            benchmark="suite.Class.time_x",
            params={"backend": "cpu", "n": "33"},
        ),
        series_of([3.0] * 12, benchmark="<img src=x onerror=alert(1)>", params={"<b>p</b>": "<i>v</i>"}),
    ]
    machines = {"box": {"cpu": "<u>cpu</u>", "ram": str(9 << 30), "num_cpu": "3"}}
    asv, problems = AsvPages(published=True), ["passed over <x>.json: broken", "<s>note</s>"]
    report = bench_report.build(records)
    return Site(series, history, machines, report, verdict, asv, problems, made_ms=1_790_000_000_000)


def lead(text):
    """What a page says first."""
    return words(re.search(r'<p class="lead">.*?</p>', text, re.DOTALL)[0])


@pytest.fixture
def pages(site):
    """Every page's text by path, without feed and style sheet."""
    return {path: text for path, text in pages_of(site) if path.endswith(".html")}


def test_every_page_is_there(pages):
    """Front page, lists, report, gate, one page a family and one a commit."""
    assert {path for path in pages if not path.startswith("commits/")} == {
        "index.html", "changes.html", "commits.html", "compare.html", "bench.html", "gate.html",
        "history/bench-inference.html", "history/suite-class-time-x.html", "history/img-src-x-onerror-alert-1.html",
    }  # fmt: skip
    assert sum(path.startswith("commits/") for path in pages) == 12


def test_pages_need_no_script_of_others_and_no_network(pages, records, verdict):
    """No script but our own file, no handler, no address of another machine: the pages open from disk."""
    every = {**pages, "bench": report_html(bench_report.build(records), 0), "gate": gate_page.html(verdict)}
    for name, text in every.items():
        outline = Outline(text)
        assert not {tag for tag, _ in outline.tags} & {"iframe", "object", "embed", "img"}, name
        scripts = [attributes for tag, attributes in outline.tags if tag == "script"]
        ours = {"src": "../" * name.count("/") + "site.js", "defer": None}
        data = [{"type": "application/json", "id": "compared"}]
        expected = [ours] if name == "index.html" or name.startswith("history/") else []
        assert scripts == ([ours, *data] if name == "compare.html" else expected), name
        for tag, attributes in outline.tags:
            assert tag != "link" or attributes["rel"] in {"stylesheet", "alternate"}, name
            assert not [a for a in attributes if a.startswith("on")], name
            assert not re.match(r"\s*(https?:|//|javascript:|data:)", attributes.get("href") or ""), name
        assert not re.search(r"url\(|@import|https?://", text), name


def test_the_script_loads_nothing_and_writes_text_only(site):
    """It neither fetches nor makes markup of a stranger's text nor runs any, and it is small."""
    script = dict(pages_of(site))["site.js"]
    assert not re.search(
        r"fetch|XMLHttp|import|eval|Function\(|innerHTML|outerHTML|insertAdjacent|document\.write|://", script
    )
    assert len(script) < 12_000


def test_the_style_sheet_knows_the_dark(site, records):
    """The site's pages share one style sheet, a standalone page has its own; both follow the reader's colours."""
    for text in (dict(pages_of(site))["style.css"], report_html(bench_report.build(records), 0)):
        assert "prefers-color-scheme: dark" in text


def test_pages_are_well_formed(pages):
    """Every element is closed where it was opened, and the page says its language and fits a phone."""
    for name, text in pages.items():
        outline = Outline(text)
        assert (outline.problems, outline.open) == ([], []), name
        assert ("html", {"lang": "en"}) in outline.tags
        assert any(tag == "meta" and a.get("name") == "viewport" for tag, a in outline.tags), name


def test_hostile_names_are_text(pages, records, verdict):
    """Benchmark names, parameters, subjects, reasons, notes and machine facts cannot become markup or templates."""
    every = "".join([*pages.values(), report_html(bench_report.build(records), 0), gate_page.html(verdict)])
    for markup in ("<script>", "<img", "<b>p", "<i>v", "<u>cpu", "<s>note", "<x>.json"):
        assert markup not in every
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in every
    assert "{{ 7*7 }}" in every
    assert str(breakable("<a.b_c>&.d")) == "&lt;a.<wbr>b_<wbr>c&gt;&amp;.<wbr>d"


def test_links_are_alive(site):
    """Every link leads to a page, and to a place on it; each page has a link (asv and Sphinx write theirs)."""
    from posixpath import dirname, join, normpath

    written = dict(pages_of(replace(site, documents="docs/index.html")))
    pages = {path: Outline(text) for path, text in written.items() if path.endswith(".html")}
    ids = {path: {a["id"] for _, a in outline.tags if "id" in a} for path, outline in pages.items()}
    known = {*written, "asv/index.html", "docs/index.html"}
    linked = set()
    for name, outline in pages.items():
        for _, attributes in outline.tags:
            if address := attributes.get("href") or attributes.get("src"):
                path, _, place = address.partition("#")
                target = normpath(join(dirname(name), path)) if path else name
                assert target in known, (name, address)
                selects = target == "compare.html" and place.startswith("new=")
                assert not place or selects or target not in ids or place in ids[target], (name, address)
                linked.add(target)
    assert linked == known


def test_history_draws_each_line_with_its_gaps(pages):
    """A failed commit is a cross, n/a a gap: a line is broken there, and every point has its commit in a tooltip."""
    text = pages["history/suite-class-time-x.html"]
    runs = [len(p.split()) for p in re.findall(r'<polyline class="trace" points="([^"]+)"', text)]
    assert sorted(runs) == [3, 7, 10, 10]  # the chart of its own breaks; the two overviews draw what there is
    assert text.count('class="cross"') == 1
    titles = re.findall(r"<title>([^<]+)</title>", text)
    assert any("failed" in t and "00000000 2026-09-13" in t for t in titles)
    assert re.findall(r"4\.00 ms \(.*?\)", "".join(titles)) == ["4.00 ms (3.96 to 4.04 ms)"] * 6
    # What moved, and every commit with its subject, are text too, not only pictures.
    text = pages["history/bench-inference.html"]
    assert "5.20 ms" in text
    assert "+30.0 %" in text
    assert all(f"Commit {n}" in text for n in range(12) if n != 3)
    assert text.count('<th scope="row" class="mono">') == 12
    assert len(re.findall(r'role="img" aria-label="[^"]{20,}', text)) == 3


@pytest.mark.parametrize(
    ("unit", "values", "above", "below", "worse"),
    [
        ("seconds", [4.0, 5.0], 1, 0, True),
        ("seconds", [5.0, 4.0], 0, 1, False),
        ("seconds", [4.0, 4.01], 0, 0, False),
        ("GB/s", [4.0, 5.0], 1, 0, False),
        ("GB/s", [5.0, 4.0], 0, 1, True),
    ],
)
def test_a_move_is_marked_at_the_commit_where_it_happens(series_of, history, unit, values, above, below, worse):
    """A point outside of the previous one's interval: a hint in neutral words, in colour only where it is worse."""
    made = dict(pages_of(Site([series_of(values, benchmark="suite.track_x", unit=unit)], history)))
    text = made["index.html"]
    assert (text.count("1 above the previous commit"), text.count("1 below the previous commit")) == (above, below)
    assert ('<span class="tag warn">1 ' in text) == worse
    assert ('<span class="tag warn" title="the intervals' in made["history/suite-track-x.html"]) == worse


def test_values_below_zero_are_not_upside_down(series_of, history):
    """A value that falls from -3 to -6 goes down in the sketch, and by 100 % of its size."""
    pages = dict(pages_of(Site([series_of([-3.0, -6.0])], history)))
    first, last = re.search(r'class="spark".* points="([^"]+)"', pages["index.html"])[1].split()
    assert float(last.split(",")[1]) > float(first.split(",")[1])  # y grows downwards
    assert "-100 %</span>" in pages["history/bench-inference.html"]
    assert "+100" not in pages["history/bench-inference.html"]


def test_results_of_two_machines_or_environments_stay_apart(series_of, history):
    """Each line has a chart that names its place; the combination counts once, with the places beside it."""
    series = [
        series_of([1.0, 1.1]),
        series_of([2.0, 2.1], machine="other"),
        series_of([3.0, 3.1], env="py3.13-numpy2.5"),
    ]
    pages = dict(pages_of(Site(series, history)))
    text = pages["history/bench-inference.html"]
    assert {"on box, py3.11-numpy2.4", "on box, py3.13-numpy2.5", "on other"} <= set(
        re.findall(r"on (?:box|other)[^<]*", text)
    )
    assert lead(text) == snapshot("1 parameter combination in 3 environments over 2 commits. Lower is better.")
    assert words(re.search(r'<span class="note">.*?</span></a>', pages["index.html"], re.DOTALL)[0]) == snapshot(
        "1 combination in 3 environments, 2 commits 3 above the previous commit"
    )


def test_long_histories_say_what_they_leave_out(series_of, history):
    """The table ends after the newest 200 commits, the chart has them all in fewer points; the page says both."""
    values = [1.0 + 0.001 * (n % 7) for n in range(430)]
    values[217] = 3.0
    text = dict(pages_of(Site([series_of(values)], history)))["history/bench-inference.html"]
    assert lead(text) == snapshot("1 parameter combination over 430 commits. Lower is better.")
    assert words(re.search(r"<h2>Each combination</h2>.*?</p>", text, re.DOTALL)[0]) == snapshot("""\
Each combination
Dots are medians; bars are 95 % intervals over the samples of that commit's run. There are more commits than
  dots: each stretch shows its lowest and its highest value, so no outlier is hidden. A highlighted difference
  lies outside the previous commit's interval. It is only a hint, because runs on different days can differ by
  more than that.\
""")
    assert words(re.search(r"<summary>The same as.*?</summary>", text)[0]) == snapshot(
        "The same as a table (the newest 200 commits, newest first)"
    )
    assert text.count('<th scope="row" class="mono">') == 200
    assert len(re.findall("<circle", text)) < 100
    assert re.findall(r"<title>(cpu: 3\.00 s.*)", text)[:1] == ["cpu: 3.00 s (2.97 to 3.03 s)"]  # it stands out


def test_gate_page_shows_the_worst_first_and_every_launch(pages):
    """In words, worst first; five dots a side of what did not pass; no ratio where none is known."""
    text = pages["gate.html"]
    parts = re.findall(r'<(?:h2|summary)><span class="tag [a-z]*">([a-z0-9 ]+)</span>', text)
    assert parts == ["slower", "fails on head", "1 undecided", "1 pass"]
    assert text.count("<title>base: ") == text.count("<title>head: ") == 10
    assert "inf]" not in text
    assert "ratio unknown" in text
    assert "x1.300" in text


def test_asv_pages_that_need_something_say_so(series_of, history):
    """asv's scripts come from CDNs, and its pages from a server: that is announced, as is why there are none."""
    for asv, told in (
        (
            AsvPages(published=True),
            snapshot("""\
More
Feed of regressions (Atom)
asv's pages : grid , list , regressions found by asv , zoom and select by parameter. They are made after these
  pages; until then, those of the previous run stay. They need a web server ( python3 -m http.server in this
  folder) and a network: they load scripts from CDNs.\
"""),
        ),
        (
            AsvPages(reason="the store is empty"),
            snapshot("""\
More
Feed of regressions (Atom)
asv's pages were not made: the store is empty\
"""),
        ),
    ):
        text = dict(pages_of(Site([series_of([1.0, 1.0])], history, asv=asv)))["index.html"]
        assert words(re.search(r"<h2>More</h2>.*?</ul>", text, re.DOTALL)[0]) == told


def test_an_empty_site_still_says_how_to_begin(history):
    """Without results the front page names the commands instead of showing empty tables."""
    pages = dict(pages_of(Site([], history)))
    assert list(pages) == ["index.html", "style.css"]
    assert "rocattn gate run" in pages["index.html"]
    assert "<table" not in pages["index.html"]


def test_pages_are_written_whole_or_not(site, tmp_path):
    """The site lands as files in UTF-8; a path that cannot be written is one line."""
    written = write_site(tmp_path / "site", site)
    assert written[0] == tmp_path / "site" / "index.html"
    assert written[0].read_text(encoding="utf-8").endswith("</html>\n")
    assert not list((tmp_path / "site").rglob("*.partial"))
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RocattnError, match="cannot write") as caught:
        write_site(tmp_path / "file" / "site", site)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["killed", "ended", "failed"])
def test_an_earlier_site_stays_when_a_process_fails(site, tmp_path, monkeypatch, how):
    """Whatever ends one of those that lay out and write pages, nothing of theirs is left; then all is written."""
    out = tmp_path / "site"
    write_site(out, site)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    add, here, changed = StagedFiles.add, os.getpid(), replace(site, project="other")

    def torn(self, path, pieces):
        add(self, path, [b"half"])
        if os.getpid() != here and path.parent.name == "history":
            if how == "failed":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.kill(os.getpid(), signal.SIGKILL if how == "killed" else signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(StagedFiles, "add", torn)
        with pytest.raises((RocattnError, OSError), match=r"helper process was killed|No space left"):
            write_site(out, changed, jobs=2)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert len(write_site(out, changed, jobs=2)) == len(before)
    assert "other" in (out / "index.html").read_text()


def test_processes_write_what_one_does(site, tmp_path):
    """The same pages, told in the same order."""
    alone, both = (write_site(tmp_path / str(jobs), site, jobs=jobs) for jobs in (1, 2))
    assert [path.relative_to(tmp_path / "1") for path in alone] == [path.relative_to(tmp_path / "2") for path in both]
    assert [path.read_bytes() for path in alone] == [path.read_bytes() for path in both]


def test_the_values_behind_a_chart_are_a_file_beside_it(site):
    """A row for each line and commit, failed ones without a value; no text is a formula of a spreadsheet."""
    written = dict(pages_of(site))
    texts = [text for path, text in written.items() if path.startswith("history/") and path.endswith(".csv")]
    rows = [row for text in texts for row in csv.DictReader(io.StringIO(text))]
    assert len(rows) == sum(len(line.points) for line in site.series)
    told = {(row["benchmark"], row["where"], row["commit"]): row["value"] for row in rows}
    for line in site.series:
        for point in line.points:
            value = told[line.label, where_of(line), point.sha]
            assert value == "" if point.value is None else float(value) == point.value or math.isnan(point.value)
    evil = [msgspec.structs.replace(site.series[0], benchmark="=cmd()\x1b[2J"), *site.series[1:]]
    whole = "".join(text for path, text in dict(pages_of(replace(site, series=evil))).items() if path.endswith(".csv"))
    assert re.search(r"""^"?'=cmd\(\)""", whole, re.MULTILINE)
    assert "\x1b" not in whole


def test_a_history_too_long_for_csv_says_so(site, monkeypatch):
    """A million values are 130 MB: they are left out, and the page says where they are."""
    monkeypatch.setattr(site_module, "CSV_VALUES", 10)
    written = dict(pages_of(site))
    assert not [path for path in written if path.endswith(".csv")]
    (page, *_) = [text for path, text in written.items() if path.startswith("history/")]
    assert words(re.search(r'<p class="note">Hover.*?</p>', page)[0]) == snapshot("""\
Hover over a line for its name. Hover over a dot for its commit, date, and value; click it for the commit's
  page. The dashed line is each line's first point. The history is too long for CSV files; asv's store has the
  values.\
""")


def test_pull_requests_are_links_where_the_project_is_on_github():
    """Numbers alone become links, to the repository that the commits are shown in; other text is text."""
    shown = with_pull_requests("Fix <b> (#12)", "https://github.com/o/r/commit/")
    assert shown == 'Fix &lt;b&gt; (<a href="https://github.com/o/r/pull/12">#12</a>)'
    for url in ("", "https://gitlab.com/o/r/-/commit/", 'https://github.com/"/commit/'):
        assert with_pull_requests("Fix (#12)", url) == "Fix (#12)"


def test_a_suites_own_title_is_the_title(series_of, history):
    """With the full name beside it; what it holds is text."""
    line = msgspec.structs.replace(
        series_of([1.0, 1.1], benchmark="a.B.time_c", params={}), pretty_name="Sort <b>1</b>"
    )
    text = dict(pages_of(Site([line], history)))["history/a-b-time-c.html"]
    assert re.search(r"<h1>Sort &lt;b&gt;1&lt;/b&gt;</h1>\s+<p[^>]*>a\.<wbr>B\.", text)
    assert "<title>Sort &lt;b&gt;1" in text


def test_a_foreign_project_reads_no_words_of_ours(series_of, history):
    """A line without a backend has no invented name, and no gate decides where there is none."""
    pages = dict(pages_of(Site([series_of([1.0, 1.1], benchmark="a.B.time_c", params={})], history, project="other")))
    every = "".join(pages.values())
    assert not re.search(r">result<|result: |backend|gate", every.replace(pages["style.css"], ""))
    assert re.findall(r"<title>(1\.10 s.*)", pages["history/a-b-time-c.html"])[:1] == ["1.10 s (1.09 to 1.11 s)"]


def test_a_line_and_a_commit_have_addresses(series_of, history):
    """A change leads to its line's dot at its commit, by an anchor that is the same in the next build."""
    series = [series_of([(1.3 if n > 5 else 1.0) * (1 + 0.001 * (n % 3)) for n in range(12)], benchmark="a.time_b")]
    changes = find_changes(series, history)
    pages = dict(pages_of(Site(series, history, changes=changes)))
    place = re.search(r'href="(history/a-time-b.html)#(line-[0-9a-f]{10}-[0-9a-f]+)"', pages["changes.html"])
    text = pages[place[1]]
    assert place[2].endswith(f"{6:040x}")
    assert re.search(rf'<circle class="dot" id="{place[2]}"[^>]*><title>[^<]*Commit 6<', text)
    assert f'<tr id="at-{6:040x}">' in text
    longer = [series_of([p.value for p in series[0].points] + [1.3], benchmark="a.time_b")]
    assert place[2] in dict(pages_of(Site(longer, history)))[place[1]]


def test_lines_and_points_that_are_alike_are_drawn(series_of, history):
    """A parameter that was renamed, and two results of a commit: neither ends the command, nor does a missing point."""
    values = [(1.3 if n > 5 else 1.0) * (1 + 0.001 * (n % 3)) for n in range(12)]
    one = series_of(values, benchmark="a.time_b", params={"n": "1"})
    twice = msgspec.structs.replace(one, points=[*one.points, one.points[6]])
    renamed = series_of(values[:4], benchmark="a.time_b", params={"m": "1"})
    for series in ([twice], [one, renamed], [renamed, one]):
        changes = find_changes(series, history)
        assert changes.listed
        assert "history/a-time-b.html#line-" in dict(pages_of(Site(series, history, changes=changes)))["changes.html"]
