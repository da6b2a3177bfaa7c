"""Dispatches find the attention problem that they solved."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from rocattn.config import AttentionConfig
from rocattn.gpu.plan import plan
from rocattn_profiling.profile.metrics.attribution import PlanFileError, attribute, read_plans


def config(seq, **changes):
    """Return a small problem."""
    return AttentionConfig(batch=1, num_heads=4, seq_q=seq, seq_k=seq, head_dim=64, dtype="float16", **changes)


def launches(*made, suffix=""):
    """Return a profile's launches of plans, in order."""
    rows, seen = [], {}
    for one in made:
        for launch in one.launches:
            block = int(np.prod(launch.block))
            key = (launch.symbol, int(np.prod(launch.grid)) * block, block)
            seen[key] = seen.get(key, -1) + 1
            rows.append((launch.symbol + suffix, *key[1:], seen[key]))
    return pd.DataFrame(rows, columns=["kernel", "grid", "block", "ordinal"])


def test_a_launch_is_known_by_kernel_grid_and_block():
    """Two lengths make two grids; profilers decorate the kernel's name."""
    short, long = plan(config(128), "gfx1100"), plan(config(512), "gfx1100")
    found = attribute(launches(long, short, suffix=" [clone .kd]"), [(short, 1), (long, 1)])
    assert found.labels == [config(512).label, config(128).label]
    assert found.work["work_flops"].tolist() == [config(512).flops, config(128).flops]


def test_equal_grids_are_told_apart_by_the_order_of_the_runs(tmp_path):
    """Two scales make the same launch; the log says that they ran alternately."""
    first, second = plan(config(128), "gfx1100"), plan(config(128, scale=0.5), "gfx1100")
    lines = [{"process": 7, "number": n, "plan": one.as_dict()} for n, one in enumerate((first, second), 1)]
    lines += [{"process": 7, "ran": n} for n in (1, 2, 2, 1)]
    log = tmp_path / "plans.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = attribute(launches(first, second, second, first), read_plans([log]))
    assert found.labels == [config(128).label, *[config(128, scale=0.5).label] * 2, config(128).label]


def test_without_an_order_every_problem_that_fits_is_named():
    """A profile with another number of launches than the log is matched by shape alone."""
    first, second = plan(config(128), "gfx1100"), plan(config(128, scale=0.5), "gfx1100")
    found = attribute(launches(first, first, first), [(first, 1), (second, 1)])
    assert found.labels == [f"{config(128).label} or {config(128, scale=0.5).label}"] * 3
    assert found.work["work_flops"].tolist() == [config(128).flops] * 3, "both are the same amount of work"


def test_without_an_order_problems_of_different_work_have_none():
    """Four times as many keys are the same grid and four times the products."""
    first, second = (plan(replace(config(128), seq_k=keys), "gfx1100") for keys in (128, 512))
    found = attribute(launches(first, first, first), [(first, 1), (second, 1)])
    assert np.isnan(found.work["work_flops"]).all()


def test_a_kernel_of_a_path_of_several_is_not_the_whole_problem():
    """The standard path's products, softmax and sums have its label, and none of them all of its FLOPs."""
    standard = plan(config(128), "gfx1100", use_flash_attention=False)
    assert len(standard.launches) > 1
    found = attribute(launches(standard), [(standard, 1)])
    assert set(found.labels) == {config(128).label}
    assert np.isnan(found.work["work_flops"]).all()


def test_processes_are_ordered_by_number(tmp_path):
    """Profiles number the launches of their processes by process id."""
    first, second = plan(config(128), "gfx1100"), plan(config(128, scale=0.5), "gfx1100")
    lines = [{"process": pid, "number": 1, "plan": one.as_dict()} for pid, one in ((9, second), (7, first))]
    lines += [{"process": pid, "ran": 1} for pid in (9, 7)]
    (tmp_path / "log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = attribute(launches(first, second), read_plans([tmp_path / "log"]))
    assert found.labels == [config(128).label, config(128, scale=0.5).label]


@pytest.mark.parametrize("bits", [32, 62])
def test_a_grid_beyond_32_bits_is_matched(bits):
    """rocprofv3's counters wrap, its traces and databases do not."""
    made = plan(config(128), "gfx1100")
    launch = replace(made.launches[0], grid=(1 << 20, 1 << 12, 1))
    huge = replace(made, launches=(launch,))
    table = launches(huge)
    table["grid"] %= 1 << bits
    assert table["grid"].max() < 1 << bits
    assert attribute(table, [(huge, 1)]).labels == [config(128).label]


def test_kernels_of_others_have_no_label():
    """And no FLOPs are made up for them."""
    table = pd.DataFrame([("copy_kernel", 64, 64, 0)], columns=["kernel", "grid", "block", "ordinal"])
    found = attribute(table, [(plan(config(128), "gfx1100"), 1)])
    assert found.labels == [""]
    assert np.isnan(found.work["work_flops"]).all()


def test_a_file_of_something_else_is_one_line(tmp_path):
    """Not a traceback."""
    path = tmp_path / "x.json"
    path.write_text('{"a": 1}\n')
    with pytest.raises(PlanFileError, match="neither a plan"):
        read_plans([path])
