"""Synthetic series and commits: the site is a pure function of them, so no test here measures anything."""

import pytest

from rocattn_profiling.asv.series import Point, Series
from rocattn_profiling.site.commits import CommitInfo, History

from ..made_reports import HOSTILE, records, verdict  # noqa: F401 - fixtures


def make_series(
    values, *, benchmark="bench.inference.cpu", params=None, machine="box", env="py3.11-numpy2.4", spread=0.01,
    unit="seconds", places=None,
):  # fmt: skip
    """A series with a point for each value (None failed, NaN n/a) on commits 0, 1, 2 and so on."""
    points = [
        Point(
            sha=f"{n:040x}", date_ms=1_789_000_000_000 + n * 86_400_000, value=v,
            low=v * (1 - spread) if v else None, high=v * (1 + spread) if v else None,
        )
        for n, v in enumerate(values)
    ]  # fmt: skip
    shown = {"config": "b1-h3-q33"} if params is None else params
    return Series(
        benchmark=benchmark, params=shown, arguments=tuple(map(repr, shown.values())), unit=unit, machine=machine,
        env_name=env, points=points, places=places or {},
    )  # fmt: skip


@pytest.fixture(scope="module")
def series_of():
    """`make_series`."""
    return make_series


@pytest.fixture(scope="module")
def log_of():
    """Return a function: a number of commits on the branch, named as in `make_series`, a millisecond apart."""

    def log(count):
        shas = [f"{n:040x}" for n in range(count)]
        infos = [CommitInfo(sha, 1_789_000_000_000 + n, f"Commit {n}", n, on_branch=True) for n, sha in enumerate(shas)]
        return History(dict(zip(shas, infos, strict=True)), "main", shas[-1])

    return log


@pytest.fixture
def history():
    """Twelve commits named as in `make_series`; the fourth has a hostile subject."""
    commits = {
        f"{n:040x}": CommitInfo(f"{n:040x}", 0, HOSTILE if n == 3 else f"Commit {n}", n, on_branch=True)
        for n in range(12)
    }
    return History(commits, "main", f"{11:040x}")
