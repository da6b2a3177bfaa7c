"""asv.conf.json as the gate reads it."""

import pytest

from rocattn_profiling.revisions.asv_config import SuiteError, read_config


def test_the_configuration_is_read_as_asv_reads_it(tmp_path):
    """JSON 5, whose comments asv's users write; single-valued variables of the matrix are kept, lists are not."""
    (tmp_path / "perf" / "suite").mkdir(parents=True)
    text = """{
        // comment with "quotes" and https://example.org
        "benchmark_dir": "suite", /* block */
        "show_commit_url": 'https://example.org/commit/',
        project: "bare",
        "default_benchmark_timeout": 90,
        "matrix": {"env_nobuild": {"OMP_NUM_THREADS": ["2"], "MANY": ["1", "2"]}, "env": {"ONE": "x"},},
    }"""
    (tmp_path / "perf" / "asv.conf.json").write_text(text)
    for given in ("perf", "perf/asv.conf.json", "perf/suite"):
        config = read_config(tmp_path, given)
        assert config.benchmark_dir == "perf/suite"
        assert config.environment == {"OMP_NUM_THREADS": "2", "ONE": "x"}
        assert config.timeout_s == 90
        assert config.recipe.project == "bare"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no asv.conf.json"),
        ("{", "cannot read"),
        ("[]", "cannot read asv.conf.json: it holds no object"),
        ('{"benchmark_dir": "nowhere"}', "'nowhere'"),
        ('{"benchmark_dir": "../outside"}', "outside"),
    ],
)
def test_a_configuration_that_leads_nowhere_is_one_line(tmp_path, text, message):
    """Missing, malformed and misleading configurations are told apart."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tmp_path / "outside").mkdir()
    if text is not None:
        (tree / "asv.conf.json").write_text(text)
    with pytest.raises(SuiteError, match=message):
        read_config(tree, None)
