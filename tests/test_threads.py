"""How many threads the CPU kernels may use."""

import os

import pytest

from rocattn import threads


@pytest.fixture(autouse=True)
def no_wish(monkeypatch):
    """Nobody asks for a number."""
    monkeypatch.delenv("ROCATTN_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.parametrize(("set_to", "count"), [("3", 3), ("5,2", 5)])
def test_thread_count_is_what_the_user_says(monkeypatch, set_to, count):
    """ROCATTN_NUM_THREADS before OMP_NUM_THREADS, whose list counts by its first number."""
    monkeypatch.setenv("OMP_NUM_THREADS", set_to)
    assert threads.thread_count() == count
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "7")
    assert threads.thread_count() == 7


@pytest.mark.parametrize("nonsense", ["", "0", "-2", "many", "2147483648", "9" * 5000])
def test_nonsense_is_passed_over(monkeypatch, nonsense):
    """What is no count of threads does not count."""
    monkeypatch.setenv("ROCATTN_NUM_THREADS", nonsense)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads.thread_count() == 2


def test_thread_count_respects_affinity_and_cgroup(monkeypatch):
    """Without a wish it is the smaller of both."""
    monkeypatch.setattr(threads, "_cgroup_cpus", lambda: 1)
    assert threads.thread_count() == 1
    monkeypatch.setattr(threads, "_cgroup_cpus", lambda: 1 << 20)
    assert threads.thread_count() == len(os.sched_getaffinity(0))


def test_a_cgroup_quota_is_read(tmp_path):
    """Quota over period, rounded up; "max" is none."""
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert threads._quota_v2(tmp_path / "cpu.max") == 2
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert threads._quota_v2(tmp_path / "cpu.max") > 1000
    (tmp_path / "cpu.cfs_quota_us").write_text("-1\n")
    assert threads._quota_v1(tmp_path) > 1000
    (tmp_path / "cpu.cfs_quota_us").write_text("250000\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    assert threads._quota_v1(tmp_path) == 3
