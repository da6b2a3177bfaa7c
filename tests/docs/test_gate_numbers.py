"""The numbers of the gate's pages are those of the recorded tables, rounded as shown."""

import csv
import re

import pytest

from ..screens import line
from .blocks import ROOT

PAGE = (ROOT / "docs/gate-measured.md").read_text()
GATE, REPEATED = "rocattn gate", "rocattn gate, slow launches repeated"
SIDES = 10  # of five sizes of change, each up and down: changed pairs for every pair of one change
LABELS = {  # of the page's table of results -> the recording
    "Xeon (43, 7.3)": "xeon_busy",
    "Xeon (53, 1.2)": "xeon_quiet",
    "Xeon (71, 3.3)": "xeon_loaded",
    "Xeon (73, 1.2)": "xeon_again",
    "Zen 4 (137, 1.5)": "zen4_by_rounds",
    "Zen 4 (89, 1.8)": "zen4_quiet",
    "Zen 4 (83, 4.2)": "zen4_loaded",
    "Zen 4 (97, 3.5)": "zen4_crowded",
    "Xeon, shared cores (107, 3.0)": "xeon_contended",
    "EPYC without canary (1.2)": "unseen_quiet",
    "EPYC without canary (2)": "unseen_light",
    "EPYC without canary (10)": "unseen",
}


@pytest.fixture(scope="module")
def recorded():
    """(recording, rule, rounds) -> the row of the data file."""
    with (ROOT / "docs/data/gate-rules.tsv").open() as lines:
        rows = csv.DictReader(lines, delimiter="\t")
        return {(row["recording"], row["rule"], row["rounds"]): row for row in rows}


def results():
    """Return (recording, rule, cells) for each row of the page's table of results but the goals."""
    section = PAGE[PAGE.index("## Results") : PAGE.index("How to read them")]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    rows, name = [], ""
    for row in lines[3:]:
        label, *cells = [cell.strip().strip("*") for cell in row.strip("|").split("|")]
        repeated = label.startswith("…")
        name = name if repeated else LABELS[label]
        rows.append((name, REPEATED if repeated else GATE, cells))
    return rows


def is_rounded(shown, value):
    """Whether a number as shown ("99.8") is the value, rounded to its digits."""
    digits = len(shown.partition(".")[2])
    return abs(float(shown) - float(value)) <= 0.5 * 10**-digits + 1e-9


def test_the_table_of_results_is_that_of_the_recordings(recorded):
    """Every cell of every row."""
    rows = results()
    assert {name for name, _, _ in rows} == set(LABELS.values())
    for name, rule, (unchanged, *shares) in rows:
        five, twenty = (recorded[name, rule, rounds] for rounds in ("5", "20"))
        assert unchanged == five["unchanged_pairs"], name
        columns = [
            *(five[column] for column in ("false_alarms_pct", "red_pull_requests_pct")),
            *(five[f"found_plus_{change}_pct"] for change in (10, 25)),
            *(twenty[column] for column in ("found_plus_5_pct", "false_alarms_pct")),
        ]
        wrong = [(share, value) for share, value in zip(shares, columns, strict=True) if not is_rounded(share, value)]
        assert not wrong, name


def test_the_pairs_called_the_opposite_are_the_recordings(recorded):
    """The sum over the table's recordings, launches as they came."""
    rows = [recorded[name, GATE, "5"] for name in LABELS.values()]
    opposite = sum(int(row["called_the_opposite"]) for row in rows)
    pairs = SIDES * sum(int(row["pairs_per_change"]) for row in rows)
    shown = line(PAGE, "opposite.")
    assert shown == f"After five rounds, {opposite} of {pairs:,} changed pairs were called the opposite."


def test_the_ranges_that_the_pages_begin_with(recorded):
    """Over all recordings that the rule was judged on."""
    judged = [row for (name, rule, rounds), row in recorded.items() if (rule, rounds) == (GATE, "5")]
    judged = [row for row in judged if row["used_for"] == "judging"]
    assert {row["recording"] for row in judged} == set(LABELS.values())
    others = [
        float(row["false_alarms_pct"]) for (name, rule, rounds), row in recorded.items()
        if not rule.startswith(GATE) and rounds == "5" and row["used_for"] == "judging"
    ]  # fmt: skip
    false, ten, large = (
        [float(row[column]) for row in judged]
        for column in ("false_alarms_pct", "found_plus_10_pct", "found_plus_25_pct")
    )
    _, rare, finds, *_ = (re.findall(r"[\d.]*\d", part) for part in PAGE.split("\n- "))
    assert rare == [f"{min(false):.2f}", f"{max(false):.2f}", f"{min(others):.2f}", f"{max(others):.0f}"]
    assert finds[:6] == [f"{value:.0f}" for value in (min(ten), max(ten), 10, min(large), max(large), 25)]


def rows_of(heading):
    """Return the cells of the first table below a heading of the page, without its head."""
    section = PAGE[PAGE.index(f"## {heading}\n") :]
    lines = section[section.index("\n|---") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def data(name):
    """Return the rows of a data file, as lists without its head."""
    return [line.split("\t") for line in (ROOT / "docs/data" / name).read_text().splitlines()[1:]]


def test_the_bound_on_any_test_is_that_of_the_data():
    """What the gate found of repeated launches, and what any test could, with red pull requests in brackets."""
    stored = {row[1]: row[3:] for row in data("gate-limit.tsv") if row[2] == "repeated"}
    shown = rows_of("How much any test could find")
    assert len(shown) == len(stored)
    for label, *cells in shown:
        gate, gate_red, most, most_red, _, _, *sequential = stored[label.rpartition(", ")[2]]
        long = [f"{found} ({red})" for found, red in zip(sequential[::2], sequential[1::2], strict=True)]
        assert cells == [f"{gate} ({gate_red})", f"{most} ({most_red})", *long], label


def test_simulated_noise_and_change_points_are_the_datas():
    """The rows that the page has of either."""
    renamed = {
        "slow periods on one side": "autocorrelated (0.7), 2 %, each side its own",
        "the same, which the canary does not see": "autocorrelated (0.7), 2 %, each side its own, canary still",
    }
    noises = {row[0]: row[2:] for row in data("gate-simulated.tsv")}
    for label, *cells in rows_of("Simulated noise"):
        assert cells == noises[renamed.get(label, label)], label
    histories = {row[1]: row[2:] for row in data("gate-changepoints.tsv") if row[0].startswith("100 commits")}
    for label, *cells in rows_of("Change points"):
        assert cells == histories[label], label
