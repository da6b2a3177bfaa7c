"""The site in headless Chromium: nothing fails, all can be read, on a desk and on a phone, light and dark."""

import contextlib
import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest

from rocattn_profiling.bench import report as bench_report
from rocattn_profiling.site.asv_pages import AsvPages
from rocattn_profiling.site.changes import find_changes
from rocattn_profiling.site.commits import CommitInfo, History
from rocattn_profiling.site.site import Site, write_site

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
HOSTILE = "</style><img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>{{7*7}}"

LOOK = """<!doctype html><title>look</title><body><script>
const pages = PAGES, widths = WIDTHS, found = [];
function parse(colour) {
  const canvas = parse.canvas ||= document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255];
}
function luminance([r, g, b]) {
  const linear = [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}
function behind(element, view) {
  for (let at = element; at; at = at.parentElement) {
    const colour = parse(view.getComputedStyle(at).backgroundColor);
    if (colour[3] > 0.99) return colour;
  }
  return [255, 255, 255, 1];
}
function pale(doc, view) {
  const seen = new Set(), bad = [];
  for (const element of doc.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || ['TITLE', 'STYLE', 'SCRIPT'].includes(element.tagName) || !element.getClientRects().length) continue;
    const style = view.getComputedStyle(element), drawn = element instanceof view.SVGElement;
    const ink = parse(drawn ? style.fill : style.color), paper = behind(element, view);
    const key = ink + '|' + paper;
    if (seen.has(key)) continue;
    seen.add(key);
    const [high, low] = [luminance(ink), luminance(paper)].sort((a, b) => b - a);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < (large ? 3 : 4.5)) bad.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)}`);
  }
  return bad;
}
function graphs(doc, view) {
  const lines = [...doc.querySelectorAll('polyline')].filter(l => l.getClientRects().length);
  return [lines.length, lines.filter(l => l.getTotalLength() < 5 || view.getComputedStyle(l).stroke === 'none').length];
}
function crowded(doc) {
  const bad = [];
  for (const svg of [...doc.querySelectorAll('svg')].filter(one => one.getClientRects().length)) {
    const frame = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map(one => [one.textContent, one.getBoundingClientRect()]);
    texts.forEach(([name, at], number) => {
      const cut = at.left < frame.left - 1 || at.right > frame.right + 1 || at.bottom > frame.bottom + 1;
      if (cut) bad.push(`${name} cut`);
      for (const [other, on] of texts.slice(number + 1))
        if (at.left < on.right && on.left < at.right && at.top < on.bottom - 2.5 && on.top < at.bottom - 2.5)
          bad.push(`${name} on ${other}`);
    });
  }
  return bad;
}
async function look(page, width) {
  const frame = document.createElement('iframe');
  frame.style.cssText = `width:${width}px;height:844px;border:0`;
  document.body.append(frame);
  await new Promise(done => { frame.onload = done; frame.src = page; });
  const doc = frame.contentDocument, view = frame.contentWindow, root = doc.documentElement;
  found.push({
    page, width, title: doc.title, wide: Math.max(root.scrollWidth, doc.body.scrollWidth) - root.clientWidth,
    pale: pale(doc, view), graphs: graphs(doc, view), crowded: crowded(doc),
    scripts: [...doc.scripts].filter(s => !s.src.endsWith('/site.js') && s.type !== 'application/json').length,
    dead: [...doc.querySelectorAll('a[href],link[href]')].map(a => new URL(a.getAttribute('href'), doc.URL).href),
  });
  frame.remove();
}
(async () => {
  try {
    for (const page of pages) for (const width of widths) await look(page, width);
    const links = [...new Set(found.flatMap(f => f.dead.map(l => l.split('#')[0])))];
    const status = {};
    await Promise.all(links.map(async l => { status[l] = (await fetch(l, {method: 'HEAD'})).status; }));
    for (const f of found) f.dead = f.dead.filter(l => status[l.split('#')[0]] !== 200);
  } catch (error) { found.push({error: String(error)}); }
  const out = document.createElement('pre');
  out.id = 'found'; out.textContent = JSON.stringify(found); document.body.append(out);
})();
</script>"""


def wobble(level, count):
    """Values around a level, the same in every run."""
    return [level * (1 + 0.004 * ((7 * n) % 11 - 5) / 5) for n in range(count)]


@pytest.fixture(scope="module")
def made(tmp_path_factory, series_of, records, verdict):
    """(folder, pages) of a site with every kind of page; subjects, branch, benchmarks and kernels are hostile."""
    count = 90
    commits = {
        f"{n:08x}{n:032x}": CommitInfo(f"{n:08x}{n:032x}", 1_789_000_000_000 + n * 10**7, HOSTILE, n, on_branch=n != 44)
        for n in range(count)
    }
    named = dict(zip([f"{n:040x}" for n in range(count)], commits, strict=True))

    def line(values, **about):
        one = series_of(values, **about)
        points = [msgspec.structs.replace(p, sha=named[p.sha]) for p in one.points]
        return msgspec.structs.replace(one, points=points, places=places)

    places = {sha: {"driver": "6.3" if n < 70 else f"6.4 {HOSTILE}"} for n, sha in enumerate(commits)}
    kernel = {"arch": "gfx942", "kernel": HOSTILE}
    series = [
        line([*wobble(1.0, 30), *wobble(1.3, 30), *wobble(1.0, 30)]),
        line(
            [*wobble(2.0, 50), *wobble(2.6, 20), None, float("nan"), *wobble(2.6, 18)],
            benchmark="bench.inference.cpu_flash",
        ),
        line([*wobble(1.0, 40), *wobble(0.7, 50)], benchmark=HOSTILE, params={HOSTILE: HOSTILE}),
        line([120.0] * 20 + [136.0] * 70, benchmark="bench_audit.Kernels.track_vgprs", params=kernel, unit="registers"),
        line(wobble(1.0, 7), benchmark="few.time_x"),
        line(wobble(1.1, 7), benchmark="few.time_x", machine="fox"),
    ]
    tags = [(HOSTILE if n == 6 else f"v2026.{n}.0", sha) for n, sha in enumerate(commits) if n % 2 == 0]
    history = History(commits, f"evil/{HOSTILE}", list(commits)[-1], tags)
    changes = find_changes(series, history, lambda label, *_: HOSTILE if "flash" in label else "")
    report = bench_report.build(records)
    site = Site(
        series, history, {"box": {"cpu": HOSTILE}}, report, verdict, AsvPages(reason=HOSTILE), [HOSTILE],
        1_790_000_000_000, changes, baselines={"square": report},
    )  # fmt: skip
    out = tmp_path_factory.mktemp("site")
    written = write_site(out, site)
    chosen = [path.relative_to(out).as_posix() for path in written if path.suffix == ".html"]
    # Of the commits' pages those on which something is: all are made by one template.
    told = sorted((p for p in chosen if p.startswith("commits/")), key=lambda p: -(out / p).stat().st_size)[:6]
    return out, [p for p in chosen if not p.startswith("commits/")] + told


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the site and the page that looks at it; the style sheet light or dark as the address asks."""

    def log_message(self, *_):
        """Say nothing."""

    def do_GET(self):
        """Serve the harness from memory, the style sheet for the dark where asked, files otherwise."""
        path = Path(self.directory) / self.path.lstrip("/")
        if self.path == "/look.html":
            self._send("text/html", self.server.harness)
        elif self.path.endswith("/style.css") and self.server.dark:
            self._send("text/css", path.read_text().replace("@media (prefers-color-scheme: dark)", "@media all"))
        else:
            super().do_GET()

    def _send(self, kind, text):
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())


@contextlib.contextmanager
def served(out):
    """A server of the site and of the page that looks at it."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(out))) as server:
        server.dark = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def visited(server, tmp_path_factory):
    """What the page that looks found in Chromium, and what was written to the console."""
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path_factory.mktemp('profile')}", "--virtual-time-budget=60000", "--dump-dom",
    ]  # fmt: skip
    command = [CHROMIUM, *flags, f"http://127.0.0.1:{server.server_port}/look.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=True)
    found = json.loads(html.unescape(re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)[1]))
    return found, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]


@pytest.fixture(scope="module", params=["light", "dark"])
def looked(made, tmp_path_factory, request):
    """What Chromium found on every page at both widths, and what it wrote to its console."""
    out, pages = made
    with served(out) as server:
        server.dark = request.param == "dark"
        server.harness = LOOK.replace("PAGES", json.dumps(pages)).replace("WIDTHS", "[390, 1280]")
        found, console = visited(server, tmp_path_factory)
    return found, console, pages


def test_every_page_was_looked_at_without_an_error(looked):
    """Each page at both widths; no script but our own ran in any, and the console stayed empty."""
    found, console, pages = looked
    assert [(f.get("page"), f.get("width")) for f in found] == [(p, w) for p in pages for w in (390, 1280)], found[-1]
    assert console == []
    assert {f["scripts"] for f in found} == {0}
    assert not any("hacked" in f["title"].partition(" - ")[2] or f["title"] == "hacked" for f in found)


def test_nothing_hangs_over_the_edge_of_a_phone(looked):
    """At 390 pixels no page scrolls sideways: wide tables scroll in their own frame."""
    assert {(f["page"], f["width"]): f["wide"] for f in looked[0] if f["wide"] > 0} == {}


def test_all_text_stands_out_from_what_is_behind_it(looked):
    """WCAG 2 level AA: 4.5 to 1, 3 to 1 for large text, computed from the colours as drawn."""
    assert {f["page"]: f["pale"] for f in looked[0] if f["pale"]} == {}


def test_graphs_are_drawn(looked):
    """History and kernel pages have lines with a length and a colour at both widths."""
    for f in looked[0]:
        if f["page"].startswith(("history/", "kernels/")):
            drawn, empty = f["graphs"]
            assert drawn > 0, f["page"]
            assert empty == 0, f["page"]


def test_no_label_of_a_history_is_cut_or_on_another(looked):
    """Dates, tags and values at both widths, of 90 commits with 45 tags."""
    assert {f["page"]: f["crowded"] for f in looked[0] if f["crowded"] and f["page"].startswith("history/")} == {}


def test_no_link_is_dead(looked):
    """Every link, the feed and the style sheet included, answers."""
    assert {f["page"]: f["dead"] for f in looked[0] if f["dead"]} == {}


TRY = """<!doctype html><title>try</title><body><script>
const told = {};
async function open(page) {
  const frame = document.createElement('iframe');
  frame.style.cssText = 'width:1280px;height:844px;border:0';
  document.body.append(frame);
  await new Promise(done => { frame.onload = done; frame.src = page; });
  return frame.contentDocument;
}
const seen = list => [...list].filter(one => one.getClientRects().length);
const later = () => new Promise(done => setTimeout(done, 50));
function put(field, value, kind) {
  if (field.type === 'checkbox') field.checked = value; else field.value = value;
  field.dispatchEvent(new Event('input', {bubbles: true}));
  if (kind) field.dispatchEvent(new Event(kind, {bubbles: true}));
}
(async () => {
  try {
    let doc = await open('index.html');
    const cards = () => seen(doc.querySelectorAll('a.family')).map(card => card.getAttribute('href'));
    told.all = cards();
    put(doc.forms.find.elements.find, 'FEW time');
    told.typed = cards();
    told.count = doc.querySelector('#find output').textContent;
    put(doc.forms.find.elements.find, '');
    put(doc.forms.find.elements.open, true);
    told.open = cards();
    put(doc.forms.find.elements.open, false);
    put(doc.forms.find.elements.largest, true, 'change');
    told.largest = cards();
    told.address = doc.location.hash;
    put(doc.forms.find.elements.largest, false, 'change');
    told.again = cards();
    doc = await open('index.html#find=few');
    told.linked = cards();

    doc = await open('history/HISTORY');
    const box = one => one.getBoundingClientRect();
    const dots = () => seen(doc.querySelectorAll('.grid circle')).map(dot => box(dot).x - box(dot.closest('svg')).x);
    const from = doc.forms.pick.elements.from, to = doc.forms.pick.elements.to;
    told.dots = dots();
    put(from, from.options[31].value);
    put(to, to.options[41].value, 'change');
    told.zoomed = dots();
    const line = box(doc.querySelector('.grid polyline')), svg = box(doc.querySelector('.grid svg'));
    told.line = [line.left - svg.left, line.right - svg.left, svg.width];
    const anchor = doc.querySelector('.grid circle[id]').id;
    doc = await open('history/HISTORY' + doc.location.hash);
    told.same = JSON.stringify(dots()) === JSON.stringify(told.zoomed);
    doc = await open('history/HISTORY#' + anchor);
    told.target = doc.querySelector(':target').id === anchor;
    doc = await open('history/HISTORY#from=nonsense');
    told.unknown = doc.querySelector('#pick output').textContent;

    doc = await open('history/few-time-x.html');
    told.panels = seen(doc.querySelectorAll('.grid section')).map(one => one.dataset.place);
    doc = await open('history/few-time-x.html#place=fox');
    told.fox = seen(doc.querySelectorAll('.grid section, .legend a, g[data-place]')).map(one => one.dataset.place);

    doc = await open('compare.html');
    const rows = () => [...doc.querySelectorAll('#lines tbody tr')].map(r => [...r.cells].map(c => c.textContent));
    told.script = rows();
    const form = doc.forms.compare.elements;
    put(form.old, form.old.options[form.old.length - 1].value);
    put(form.new, form.new.options[form.new.length - 36].value, 'change');
    told.compared = rows();
    told.said = doc.querySelector('#compare output').textContent;
    const chosen = doc.location.hash;
    doc = await open('compare.html#old=00000006&new=00000006&from=0&to=1');
    told.machines = rows();
    doc = await open('compare.html' + chosen);
    told.relinked = JSON.stringify(rows()) === JSON.stringify(told.compared);
  } catch (error) { told.error = String(error.stack || error); }
  const out = document.createElement('pre');
  out.id = 'found'; out.textContent = JSON.stringify(told); document.body.append(out);
})();
</script>"""


@pytest.fixture(scope="module")
def tried(made, tmp_path_factory):
    """What the script did when it was used, what it wrote to the console, and the pages as text."""
    out, pages = made
    with served(out) as server:
        longest = max((p for p in pages if p.startswith("history/")), key=lambda p: (out / p).stat().st_size)
        server.harness = TRY.replace("HISTORY", longest.removeprefix("history/"))
        found, console = visited(server, tmp_path_factory)
    return found, console, {page: (out / page).read_text() for page in pages}


def test_typing_finds_benchmarks(tried):
    """All words must occur, in any case; a filter leaves open regressions, and sorting puts the largest first."""
    told, console, pages = tried
    assert "error" not in told, told["error"]
    assert console == []
    assert told["typed"] == told["linked"] == ["history/few-time-x.html"]
    assert told["count"] == f"1 of {len(told['all'])}"
    sizes = dict(
        re.findall(r'class="panel family" href="([^"]+)" data-name="[^"]*" data-size="([^"]+)"', pages["index.html"])
    )
    assert told["open"] == [page for page in told["all"] if float(sizes[page]) > 0] != []
    assert told["largest"] == sorted(told["all"], key=lambda page: -float(sizes[page])) != told["all"]
    assert told["address"] == "#largest=yes"
    assert told["again"] == told["all"]


def test_a_link_selects_commits_of_a_chart(tried):
    """Ten commits fill the width; the link selects them again, and one that leads nowhere says so."""
    told, *_ = tried
    assert 0 < len(told["zoomed"]) < len(told["dots"])
    assert min(told["dots"]) == pytest.approx(min(told["zoomed"]), abs=12)
    left, right, width = told["line"]
    assert left > 0
    assert width > right > 0.9 * width
    assert told["same"]
    assert told["target"]
    assert told["unknown"] == "not on this page: nonsense"
    assert told["panels"] == ["box", "fox"]
    assert set(told["fox"]) == {"fox"}


def test_any_two_commits_are_compared(tried):
    """The script's table is the page's own for its own two commits, and that of the chosen ones for others."""
    told, _, pages = tried
    told_by_page = re.findall(r"<tr><th scope=\"row\">.*?</tr>", pages["compare.html"], re.DOTALL)
    plain = [
        [html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)]
        for row in told_by_page
    ]
    assert [row[:4] for row in told["script"]] == [row[:4] for row in plain] != []
    assert told["compared"] != told["script"]
    assert told["relinked"]
    ((name, before, after, change, _),) = told["machines"]
    assert name.startswith("few.time_x")
    assert (before, after, change) == ("1.00 s", "1.10 s", "+10.0 %")
    assert re.fullmatch(r"\d+ lines compared, \d+ outside the other's interval(, \d+ without intervals)?", told["said"])
