"""Photograph a page of ``rocattn report`` with five numbered places, for docs/reading-a-report.md.

    .venv/bin/python docs/images/report_page.py FOLDER      # writes report-page.png and report-page-dark.png

FOLDER is workloads/bmm2/MI300X_A1 of HGLiu1998/batched_gemm on GitHub, which is not in this repository: a profile of
a real MI300X, by rocprof-compute 3.3.0.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from gate_page import photograph

HERE = Path(__file__).resolve().parent
SIZE = (560, 1580)  # CSS pixels
# What the page repeats elsewhere is left out of the picture; the numbers are those of the text.
SCRIPT = """\
<style>.callout{display:inline-grid;place-items:center;width:24px;height:24px;border-radius:50%;background:#a8161f;
color:#fff;font:700 14px system-ui,sans-serif;margin:0 7px}</style>
<script>
const all = (selector) => [...document.querySelectorAll(selector)];
const between = (first, last) => {
  for (let at = first; at && at !== last; ) { const next = at.nextElementSibling; at.remove(); at = next; }
};
const kernel = document.getElementById("k1"), findings = document.getElementById("findings");
between(document.getElementById("kernels"), findings);
between(findings.nextElementSibling.nextElementSibling, kernel);
all("header.top, .lead, #findings + ol > li:not(:first-child), #k1 > p, #k1 details").map((part) => part.remove());
all("#k1 section:not(:first-child), #k1 .two .scroll").map((part) => part.remove());
const rows = all("#k1 table.sol tbody tr");
const row = (name) => rows.find((cells) => cells.textContent.trim().startsWith(name)).querySelector("td .num");
[document.querySelector("#verdict p"), document.querySelector("#findings + ol > li"), row("L1"), row("LDS"),
 all("#k1 h3").find((title) => title.textContent === "Roofline")].forEach((place, index) => {
  const mark = document.createElement("span");
  mark.className = "callout";
  mark.textContent = index + 1;
  place.prepend(mark);
});
</script>
"""


def main() -> None:
    """Make the report of the folder that the command line names, and photograph its page."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: report_page.py FOLDER")
    with tempfile.TemporaryDirectory() as name:
        command = [str(Path(sys.executable).parent / "rocattn"), "report", sys.argv[1], "--out", name]
        subprocess.run(command, check=True)
        page = Path(name, "profile.html")
        page.write_text(page.read_text().replace("</body>", f"{SCRIPT}</body>"))
        photograph(page, HERE / "report-page.png", dark=False, size=SIZE)
        photograph(page, HERE / "report-page-dark.png", dark=True, size=SIZE)


if __name__ == "__main__":
    main()
