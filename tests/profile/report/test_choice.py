"""A part of a profile: kernels, launches and a GPU that were asked for, and pairs of kernels of different names."""

import json

import pandas as pd
import pytest
from inline_snapshot import snapshot

from rocattn.errors import RocattnError
from rocattn_profiling.cli import main
from rocattn_profiling.profile.ingest.choice import SYNTAX, LaunchChoice, ranges_of
from rocattn_profiling.profile.ingest.table import SAMPLE_DTYPES
from rocattn_profiling.profile.report import compare as profile_compare
from rocattn_profiling.profile.report import report as profile_report
from rocattn_profiling.profile.report.names import matching

from .test_units import launched

SILU, GELU = (f"void gated<&(op_{name}(float)), float>(float const*, float*)" for name in ("silu", "gelu"))
WORK = [{"blocks": 608, "ns": 10_000 + n, "kernel": kernel, "gpu": n % 2} for kernel in (SILU, GELU) for n in range(6)]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs `rocattn report` on made profiles with options, and returns status, text and JSON."""
    made = {"after": launched(*WORK), "before": launched(*WORK)}
    for name in made:
        (tmp_path / name).mkdir()
    monkeypatch.setattr("rocattn_profiling.profile.ingest.read", lambda paths: made[paths[0].name])

    def run(*options):
        (tmp_path / "out/profile.json").unlink(missing_ok=True)
        status = main(["report", str(tmp_path / "after"), *options, "--out", str(tmp_path / "out")])
        file = tmp_path / "out/profile.json"
        return status, capsys.readouterr().err, json.loads(file.read_text()) if file.exists() else None

    run.before = str(tmp_path / "before")
    return run


@pytest.mark.parametrize(
    ("options", "left"),
    [
        (("--kernel", "op_silu"), [6]),
        (("--kernel", "gated<&op_gelu, float>"), [6]),
        (("--launches", "2"), [2, 2]),
        (("--launches", "[1,3]", "--gpu-id", "5"), [2, 2]),
        (("--launches", "1-2", "--kernel", "silu"), [4]),
    ],
)
def test_a_part_is_reported_and_said(run, options, left):
    """How many of how many launches, by what."""
    status, text, content = run(*options)
    assert status == 0
    assert sorted(kernel["launches"] for kernel in content["kernels"]) == left
    assert content["chosen"] == f"{sum(left)} of 12 launches ({' '.join(options_in_order(options))})"
    assert text.startswith(content["chosen"])
    # The other launches are in the files: without them the GPU is not idle.
    assert (content["timeline"]["unknown"] == "part") == ({"--kernel", "--launches"} & {*options} != set())
    assert "is busy" not in text or "--gpu-id" in options


def options_in_order(options):
    """Return options as the report lists them."""
    pairs = dict(zip(options[::2], options[1::2], strict=True))
    return [word for name in ("--kernel", "--launches", "--gpu-id") if name in pairs for word in (name, pairs[name])]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--kernel", "op_sulu"), "no kernel matches 'op_sulu': there are gated<&op_"),
        (("--kernel", "(op"), "'(op' is not a regular expression"),
        (("--launches", "0-3"), f"--launches 0-3: write the launches of each kernel as {SYNTAX}"),
        (("--launches", "9-3"), f"--launches 9-3: write the launches of each kernel as {SYNTAX}"),
        (("--launches", "70"), "--launches 70 leaves none of the 12 launches"),
        (("--gpu-id", "1"), "no GPU 1 ran a kernel: there is 4, 5"),
        (("--pair", "a=b"), "--pair compares with an earlier profile: name it with --against PATH"),
    ],
)
def test_what_matches_nothing_is_refused_in_one_line(run, options, says):
    """With what there is."""
    status, text, content = run(*options)
    assert (status, content) == (4, None)
    assert says in text
    assert len(text.strip().splitlines()) == 1


def test_two_kernels_are_compared_if_asked(run):
    """Their names are printed ones or regular expressions; without both, or with several, it is refused."""
    status, text, content = run("--against", run.before, "--pair", "gated<&op_silu, float>=op_gelu")
    assert status == 0
    first, second = content["against"]
    assert (first["before"], first["kernel"], first["paired_by"]) == (SILU, GELU, "--pair")
    assert second["paired_by"] == "instance"
    assert "was gated<&op_silu, float>" in text
    for asked, says in (
        ("gated=gelu", "2 kernels match, give more of the name"), ("silu", "name a kernel of the earlier profile"),
        ("relu=gelu", "no kernel matches 'relu'"),
    ):  # fmt: skip
        status, text, _ = run("--against", run.before, "--pair", asked)
        assert (status, says in text) == (4, True)


def test_the_only_kernels_left_of_one_shape_are_a_pair():
    """One kernel gone and one new, of other names: that was "nothing to compare"."""
    common = {"blocks": 608, "ns": 5000, "kernel": "softmax(float*)"}
    one, other = (
        {"blocks": 1216, "ns": ns, "kernel": name} for name, ns in (("naive(int)", 80_000), ("tiled(int)", 40_000))
    )
    before = profile_report.build(launched(*[common] * 3, *[one] * 3))
    after = profile_report.build(launched(*[common] * 3, *[other] * 3))
    comparison = profile_compare.compare(before, after)
    assert comparison.pairs[0].ratio == pytest.approx(0.5)
    assert comparison.lines[0].startswith("-50.0 %: kernel 1")
    assert comparison.lines == snapshot(
        [
            "-50.0 %: kernel 1, no limit was counted in both profiles",
            "+0.0 %: kernel 2, unchanged within 2 %",
            "the only unmatched kernels, launched with the same blocks, are a pair: naive before, tiled after",
        ]
    )
    wider = profile_report.build(launched(*[common] * 3, *[other | {"blocks": 4096}] * 3))
    found = profile_compare.to_json(profile_compare.compare(before, wider))
    assert {each["kernel"]: each["only_in"] for each in found} == {
        "softmax(float*)": None, "naive(int)": "before", "tiled(int)": "after",
    }  # fmt: skip


def test_shapes_and_gpus_are_compared_with_their_like():
    """A shape with its shape; a GPU that became slow with the row it was in; a kernel's only shape with another."""
    steady = [
        {"blocks": blocks, "ns": 100 * blocks, "gpu": gpu} for blocks in (64, 4096) for gpu in (0, 1) for _ in range(3)
    ]
    slowed = [each | {"ns": each["ns"] * (2 if each["gpu"] and each["blocks"] == 4096 else 1)} for each in steady]
    pairs = profile_compare.compare(*(profile_report.build(launched(*each)) for each in (steady, slowed))).pairs
    assert {(pair.launched, pair.ratio) for pair in pairs} == {
        ("64 blocks of 256; 2 GPUs", 1.0), ("4,096 blocks of 256; GPU 4", 1.0), ("4,096 blocks of 256; GPU 5", 2.0),
    }  # fmt: skip
    (pair,) = profile_compare.compare(
        *(profile_report.build(launched(*[{"blocks": n, "ns": 100 * n}] * 3)) for n in (64, 128))
    ).pairs
    assert pair.ratio == 2.0


def test_a_choice_keeps_counters_and_samples_of_its_launches():
    """Rows are renumbered; samples of other launches go."""
    made = launched(*[each | {"times": 1 + n} for n, each in enumerate(WORK)], passes=2)
    made.samples = pd.DataFrame(
        [{"pass": "run_0", "process": 7, "dispatch": n, "kernel": SILU, "count": 9} for n in (0, 5)]
    ).reindex(columns=list(SAMPLE_DTYPES))
    part = LaunchChoice(matching([SILU, GELU], "silu"), ranges_of("3"), 5).of(made)
    assert part.dispatches["dispatch"].tolist() == [5, 5]
    reads = part.counters[part.counters["counter"] == "TCC_EA0_RDREQ_sum"]
    assert (reads["row"].tolist(), reads["value"].tolist()) == ([0, 1], [6 * 6_250_000] * 2)
    assert part.samples["dispatch"].tolist() == [5]
    assert len(LaunchChoice(ranges=ranges_of("1"), passes=["run_1"]).of(made).dispatches) == 12 + 4
    with pytest.raises(RocattnError, match="counted from 1"):
        ranges_of("a")
