"""The pictures of the documents: drawn from what is measured, up to date, and legible on a phone and in the dark."""

import json
import re
import struct
import sys
from xml.etree import ElementTree as ET

import pytest

from .blocks import ROOT

IMAGES = ROOT / "docs" / "images"
DIAGRAMS = [path for path in sorted(IMAGES.glob("*.svg")) if not path.name.startswith("badge")]
SVG = "{http://www.w3.org/2000/svg}"
PHONE, SMALLEST = 390, 12  # pixels
WIDEST_LETTER = 0.53  # of a font's size, on average over a line of DejaVu Sans


@pytest.fixture
def images(monkeypatch):
    """The folder of the drawing programs, importable."""
    monkeypatch.setattr(sys, "path", [str(IMAGES), *sys.path])


def test_pictures_and_the_gates_table_are_up_to_date(images):
    """They are what docs/images/draw.py makes; run it after a change to its programs or to a recorded table."""
    import draw

    assert {name: (IMAGES / name).read_text() for name in draw.PICTURES} == {
        name: picture() for name, picture in draw.PICTURES.items()
    }
    assert {path.name for path in IMAGES.glob("*.svg")} == set(draw.PICTURES)
    assert draw.gate_power.TABLE.read_text() == draw.gate_power.table()


def test_every_recorded_table_is_in_the_gates_data(images):
    """None is left out, and a rule's numbers are those of its file."""
    import gate_power

    recorded = {path.stem: json.loads(path.read_text()) for path in (ROOT / "research/gate_pairs").glob("*.json")}
    assert {recording.name for recording in gate_power.ALL} == set(recorded)
    first, *rows = [line.split("\t") for line in gate_power.TABLE.read_text().splitlines()]
    assert len(rows) == sum(len(summary["rules"]) for summary in recorded.values())
    (gate,) = (
        row for row in (dict(zip(first, cells, strict=True)) for cells in rows)
        if (row["recording"], row["rule"], row["rounds"]) == ("zen4_by_rounds", "rocattn gate", "5")
    )  # fmt: skip
    assert (gate["unchanged_pairs"], gate["false_alarms_pct"], gate["found_plus_10_pct"]) == ("2976", "0.24", "81.59")


@pytest.mark.parametrize("path", DIAGRAMS, ids=lambda path: path.stem)
def test_a_diagram_is_legible_on_phones_and_in_the_dark(path):
    """Its smallest text at the width of a phone, colors for both schemes, a name, nothing cut off."""
    root = ET.fromstring(path.read_text())  # noqa: S314 - a file of ours
    width, height = (float(value) for value in root.get("viewBox").split()[2:])
    style = "".join(element.text or "" for element in root.iter(f"{SVG}style"))
    sizes = [float(size) for size in re.findall(r"([\d.]+)px", style)]
    assert sizes
    assert min(sizes) * min(1, PHONE / width) >= SMALLEST
    assert "prefers-color-scheme:dark" in style.replace(" ", "")
    assert root.get("aria-label")
    texts = list(root.iter(f"{SVG}text"))
    assert texts
    for element in texts:
        x, y, wide = float(element.get("x")), float(element.get("y")), WIDEST_LETTER * 14 * len(element.text)
        left = x - {"middle": wide / 2, "end": wide}.get(element.get("text-anchor"), 0)
        assert left >= 0, element.text
        assert left + wide <= width + 8, element.text
        assert 0 < y <= height, element.text


@pytest.mark.parametrize("name", ["gate-page.png", "gate-page-dark.png", "report-page.png", "report-page-dark.png"])
def test_the_picture_of_a_page_has_its_size(images, name):
    """A screenshot of a run cannot be made again byte for byte; that it is one, and how large, can be checked."""
    import gate_page
    import report_page

    data = (IMAGES / name).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    size = (gate_page.WIDTH, gate_page.HEIGHT) if name.startswith("gate") else report_page.SIZE
    assert struct.unpack(">II", data[16:24]) == tuple(gate_page.SCALE * pixels for pixels in size)
