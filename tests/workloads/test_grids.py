"""The grids are exactly what the project promises to measure."""

import subprocess
import sys

import pytest

from rocattn.errors import ConfigError
from rocattn_profiling.workloads.grids import GRIDS, get_grid


@pytest.mark.parametrize(
    ("name", "fields", "sizes"),
    [
        ("inference", "seq_q seq_k head_dim batch causal num_heads num_kv_heads",
         [(s, s, d, b, c, 8, 8) for s in (128, 256, 512, 1024, 2048) for d in (32, 64, 128) for b in (1, 4)
          for c in (False, True)]),
        ("square", "batch num_heads seq_q seq_k head_dim", [(1, 1, n, n, n) for n in (32, 64, 128, 256, 512)]),
        ("gemma", "seq_q batch num_heads num_kv_heads head_dim causal",
         [(s, b, 32, h, 256, True) for s in (512, 1024, 2048, 4096, 8192) for b in (1, 4, 8, 16) for h in (32, 8)]),
        ("decode", "seq_q seq_k num_heads num_kv_heads head_dim", [(1, 1 << n, 32, 8, 128) for n in range(7, 15)]),
    ],
)  # fmt: skip
def test_a_grid_is_every_combination_of_its_sizes(name, fields, sizes):
    """[1, n, n] of square means batch 1, one head, n tokens, n dimensions; decode is one query against a cache."""
    found = [tuple(getattr(config, field) for field in fields.split()) for config in GRIDS[name].configs()]
    assert sorted(found) == sorted(sizes)


@pytest.mark.parametrize(("name", "count"), [("inference", 8), ("square", 3), ("gemma", 4), ("decode", 3), ("odd", 4)])
def test_the_quick_subset_keeps_every_option_of_the_grid(name, count):
    """Quick drops sizes, never a kind: causal or not, head dimensions, head groupings, batches of inference."""
    grid = GRIDS[name]
    quick, full = grid.configs(quick=True), grid.configs()
    assert len(quick) == count
    assert set(quick) < set(full)
    assert {c.causal for c in quick} == {c.causal for c in full}
    ratios = [{c.num_heads // c.num_kv_heads > 1 for c in configs} for configs in (quick, full)]
    assert ratios[0] == ratios[1]
    if name != "odd":
        assert {(c.num_heads, c.num_kv_heads) for c in quick} == {(c.num_heads, c.num_kv_heads) for c in full}
    if name == "inference":
        assert {c.head_dim for c in quick} == {32, 64, 128}
        assert {c.batch for c in quick} == {1, 4}


def test_varlen_has_prompts_and_steps_packed_and_in_pages():
    """Short and mixed prompts, decode steps, a chunk among steps; the work is that of each sequence alone."""
    configs = GRIDS["varlen"].configs()
    assert {config.varlen.page_size for config in configs} == {0, 16, 256}
    assert [config.batch for config in configs] == [32, 32, 6, 6, 32, 32, 32, 16, 16]
    chunk = configs[-1]
    assert chunk.flops == sum(alone.flops for alone in chunk.sequences)
    assert {(alone.seq_q, alone.seq_k) for alone in chunk.sequences} >= {(256, 2048), (1, 128)}


def test_configs_of_all_grids_have_different_labels():
    """A record's id is suite, backend and label: two configs of a grid must not share one."""
    for grid in GRIDS.values():
        labels = [config.label for config in grid.configs()]
        assert len(set(labels)) == len(labels)


def test_the_backward_direction_changes_nothing_else():
    """The same problems, backward; decode has no backward and says so."""
    forward, backward = GRIDS["square"].configs(), GRIDS["square"].configs(direction="backward")
    assert [c.replace(direction="forward") for c in backward] == forward
    assert {c.direction for c in backward} == {"backward"}
    with pytest.raises(ConfigError, match="decode"):
        GRIDS["decode"].configs(direction="backward")


def test_an_unknown_grid_is_answered_with_the_known_names():
    """The error lists what there is."""
    with pytest.raises(ConfigError, match="inference, square, gemma, decode"):
        get_grid("inferense")


def test_grids_load_without_numpy():
    """asv's discovery and --help import them: numpy would cost a tenth of a second each time."""
    code = "import sys; from rocattn_profiling.workloads.grids import GRIDS; GRIDS['gemma'].configs(); "
    code += "print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
