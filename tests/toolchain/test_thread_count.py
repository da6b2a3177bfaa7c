"""How many threads the CPU kernels may use."""

import os
from pathlib import Path

import pytest

from rocattn import threads
from rocattn.errors import SettingError


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


@pytest.mark.parametrize("nonsense", ["0", "-2", "many", "2147483648", "9" * 5000])
def test_a_number_of_threads_that_is_none_is_refused(monkeypatch, nonsense):
    """It is the user's own variable of ours; OMP_NUM_THREADS is other programs', and passed over as OpenMP does."""
    monkeypatch.setenv("OMP_NUM_THREADS", nonsense)
    monkeypatch.setattr(threads, "_cgroup_cpus", lambda: 1)
    assert threads.thread_count() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("ROCATTN_NUM_THREADS", "")
    assert threads.thread_count() == 2
    monkeypatch.setenv("ROCATTN_NUM_THREADS", nonsense)
    with pytest.raises(SettingError, match=r"^ROCATTN_NUM_THREADS is '.*': set it to a number of threads, 1 or more"):
        threads.thread_count()


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


@pytest.mark.parametrize(
    ("groups", "files", "cpus"),
    [
        ("0::/jobs/7\n", {"jobs/7/cpu.max": "400000 100000", "jobs/cpu.max": "200000 100000"}, 2),
        ("0::/jobs/7\n", {"jobs/7/cpu.max": "max 100000", "cpu.max": "300000 100000"}, 3),
        ("0::/\n", {"cpu.max": "150000 100000"}, 2),
        (
            "8:cpu,cpuacct:/jobs/7\n4:memory:/a:b\n0::/\n",
            {"cpu/jobs/7/cpu.cfs_quota_us": "300000", "cpu/jobs/7/cpu.cfs_period_us": "100000"},
            3,
        ),
        ("8:cpu,cpuacct:/docker/1\n", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ("4:memory:/\n", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1 << 20),
        ("8:cpu:/\n", {"cpu/cpu.cfs_quota_us": "0", "cpu/cpu.cfs_period_us": "0"}, 1 << 20),
        ("0::/\n", {}, 1 << 20),
        (None, {"cpu.max": "100000 100000"}, 1 << 20),
    ],
)
def test_quotas_of_all_enclosing_cgroups_count(monkeypatch, tmp_path, groups, files, cpus):
    """Control groups 2 with every ancestor's limit, 1 of a host and of a container, and none."""
    written = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in (written if groups is None else {**written, "proc/self/cgroup": groups}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(threads, "Path", lambda text: Path(str(tmp_path) + text))
    assert threads._cgroup_cpus.__wrapped__() == cpus
