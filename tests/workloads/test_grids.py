"""The grids are exactly what the project promises to measure."""

import subprocess
import sys

import pytest

from rocattn.errors import ConfigError
from rocattn_profiling.workloads.grids import GRIDS, get_grid


def test_inference_is_every_combination_of_its_sizes():
    """5 lengths x 3 head dimensions x 2 batches x causal and not, self-attention."""
    configs = GRIDS["inference"].configs()
    assert len(configs) == 60
    found = {(c.seq_q, c.head_dim, c.batch, c.causal) for c in configs}
    assert found == {(s, d, b, c) for s in (128, 256, 512, 1024, 2048) for d in (32, 64, 128) for b in (1, 4)
                     for c in (False, True)}  # fmt: skip
    assert all(c.seq_q == c.seq_k and c.num_heads == c.num_kv_heads == 8 for c in configs)


def test_square_is_one_head_of_n_tokens_and_n_dimensions():
    """[1, n, n] means batch 1, one head, n tokens, n dimensions."""
    configs = GRIDS["square"].configs()
    assert [(c.batch, c.num_heads, c.seq_q, c.seq_k, c.head_dim) for c in configs] == [
        (1, 1, n, n, n) for n in (32, 64, 128, 256, 512)
    ]


def test_gemma_has_both_head_groupings_at_all_sizes():
    """5 lengths x 4 batches x KV heads 32 and 8, D 256, causal."""
    configs = GRIDS["gemma"].configs()
    assert len(configs) == 40
    found = {(c.seq_q, c.batch, c.num_kv_heads) for c in configs}
    assert found == {(s, b, h) for s in (512, 1024, 2048, 4096, 8192) for b in (1, 4, 8, 16) for h in (32, 8)}
    assert {(c.num_heads, c.head_dim, c.causal) for c in configs} == {(32, 256, True)}


def test_decode_is_one_query_against_power_of_two_caches():
    """Sq 1; Sk 128 to 16384; 32 heads sharing 8 KV heads; D 128."""
    configs = GRIDS["decode"].configs()
    assert [c.seq_k for c in configs] == [128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    assert {(c.seq_q, c.num_heads, c.num_kv_heads, c.head_dim) for c in configs} == {(1, 32, 8, 128)}


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
