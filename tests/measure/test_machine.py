"""What is said of the machine and the commit is what the system says, inside containers too."""

import json
import os
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from rocattn.errors import RocattnError
from rocattn.gpu.driver import GpuDevice
from rocattn.gpu.probe import GpuProbe
from rocattn_profiling.bench import limits
from rocattn_profiling.bench.limits import last_level_cache_bytes, measure_ceilings
from rocattn_profiling.measure import machine
from rocattn_profiling.measure.worker import Crash, Reply

GIB = 2**30
UNLIMITED_V1 = 9223372036854771712


def write(root, **files):
    """Write files under a root; "__" in a name stands for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def version_2(tmp_path):
    """A container with its own cgroup 2 namespace: its group is the root of the mount."""
    write(
        tmp_path,
        proc__self__mountinfo="30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
        proc__self__cgroup="0::/\n",
        sys__fs__cgroup__cpu="",
    )
    return tmp_path


@pytest.fixture
def version_1(tmp_path):
    """A host with cgroup 1, where the group of the process is below the mount and its parent has a limit too."""
    mounts = "".join(f"3{i} 31 0:2{i} / /sys/fs/cgroup/{n} rw - cgroup cgroup rw,{n}\n"
                     for i, n in enumerate(("memory", "cpu,cpuacct")))  # fmt: skip
    write(
        tmp_path,
        proc__self__mountinfo="31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" + mounts,
        proc__self__cgroup="8:cpu,cpuacct:/jobs/7\n4:memory:/jobs/7\n1:name=systemd:/\n0::/\n",
    )
    return tmp_path


def test_cgroup_2_limits_are_read(version_2):
    """cpu.max and memory.max; pages the kernel can drop are not counted as used."""
    stat = f"anon 5\ninactive_file {GIB}\n"
    folder = version_2 / "sys/fs/cgroup"
    (folder / "cpu").unlink()
    write(folder, **{"cpu.max": "150000 100000\n", "memory.max": f"{4 * GIB}\n", "memory.current": f"{3 * GIB}\n"})
    write(folder, **{"memory.stat": stat})
    assert machine.cpu_quota(version_2) == 1.5
    assert machine.memory_limit_bytes(version_2) == 4 * GIB
    assert machine.memory_left_bytes(version_2) == 2 * GIB


def test_cgroup_2_without_limits_is_no_limit(version_2):
    """The word "max", and a group without the files (the root), are both no limit."""
    assert machine.cpu_quota(version_2) is None
    write(version_2 / "sys/fs/cgroup", **{"cpu.max": "max 100000\n", "memory.max": "max\n", "memory.current": "7\n"})
    assert machine.cpu_quota(version_2) is None
    assert machine.memory_limit_bytes(version_2) is None
    assert machine.memory_left_bytes(version_2) is None


def test_cgroup_1_takes_the_tightest_limit_of_its_parents(version_1):
    """The group has no memory limit of its own, its parent has; the CPU quota is the group's."""
    memory, cpu = version_1 / "sys/fs/cgroup/memory/jobs", version_1 / "sys/fs/cgroup/cpu,cpuacct/jobs/7"
    (memory / "7").mkdir(parents=True)
    write(memory, **{"memory.limit_in_bytes": f"{2 * GIB}\n", "memory.usage_in_bytes": f"{GIB}\n"})
    write(memory, **{"memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB // 2}\n"})
    write(memory / "7", **{"memory.limit_in_bytes": f"{UNLIMITED_V1}\n", "memory.usage_in_bytes": "5\n"})
    write(cpu, **{"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"})
    assert machine.memory_limit_bytes(version_1) == 2 * GIB
    assert machine.memory_left_bytes(version_1) == GIB + GIB // 2
    assert machine.cpu_quota(version_1) == 0.5


def test_cgroup_1_has_a_group_of_its_own_for_each_controller(version_1):
    """Limits of the group that another controller has are not this process's; a period of 0 is no quota."""
    write(version_1, proc__self__cgroup="8:cpu,cpuacct:/jobs/7\n4:memory:/big\n")
    mounts = version_1 / "sys/fs/cgroup"
    for group, quota, limit in (("jobs/7", 250000, 2 * GIB), ("big", 50000, 4 * GIB)):
        write(mounts / "cpu,cpuacct" / group, **{"cpu.cfs_quota_us": f"{quota}\n", "cpu.cfs_period_us": "100000\n"})
        write(mounts / "memory" / group, **{"memory.limit_in_bytes": f"{limit}\n"})
    assert machine.cpu_quota(version_1) == 2.5
    assert machine.memory_limit_bytes(version_1) == 4 * GIB
    write(mounts / "cpu,cpuacct/jobs/7", **{"cpu.cfs_period_us": "0\n"})
    assert machine.cpu_quota(version_1) is None


def test_a_group_above_its_limit_has_nothing_left(version_2):
    """The kernel allows it for a moment."""
    (version_2 / "sys/fs/cgroup/cpu").unlink()
    write(version_2 / "sys/fs/cgroup", **{"memory.max": f"{GIB}\n", "memory.current": f"{GIB + 1}\n"})
    assert machine.memory_left_bytes(version_2) == 0


def test_a_system_without_control_groups_has_no_limits(tmp_path):
    """macOS, or /proc not mounted."""
    assert machine.cpu_quota(tmp_path) is None
    assert machine.memory_limit_bytes(tmp_path) is None
    assert machine.memory_left_bytes(tmp_path) is None


def test_available_memory_and_cores_honour_the_control_group(monkeypatch):
    """The smaller of the machine's and the group's counts; half a core is one."""
    monkeypatch.setattr(machine, "memory_left_bytes", lambda: 12345)
    monkeypatch.setattr(machine, "memory_limit_bytes", lambda: 23456)
    monkeypatch.setattr(machine, "cpu_quota", lambda: 0.5)
    assert machine.available_memory_bytes() == 12345
    assert machine.total_memory_bytes() == 23456
    assert machine.available_cores() == 1
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    for quota, cores in ((1.5, 2), (4.0, 4), (64.0, 6), (None, 6)):
        monkeypatch.setattr(machine, "cpu_quota", lambda quota=quota: quota)
        assert machine.available_cores() == cores
    # cgroup 1 without a limit says so by a number larger than any memory.
    monkeypatch.setattr(machine, "memory_left_bytes", lambda: UNLIMITED_V1)
    monkeypatch.setattr(machine, "memory_limit_bytes", lambda: UNLIMITED_V1)
    assert machine.available_memory_bytes() < machine.total_memory_bytes() < 1 << 60


def test_the_machines_facts_are_filled_in():
    """Each fact is there, and numpy's are numpy's."""
    found = machine.this_machine()
    assert found.name
    assert found.cpu
    assert 1 <= found.cores <= os.cpu_count()
    assert found.memory_bytes >= machine.available_memory_bytes() > 0
    assert found.numpy == np.__version__
    assert found.blas


def test_the_machine_is_named_for_its_hardware(monkeypatch):
    """Two containers of one type share a name, whatever their host names; ROCATTN_MACHINE overrides it."""
    monkeypatch.delenv("ROCATTN_MACHINE", raising=False)
    name = machine.machine_name("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", 4, 16 * GIB - 5_000_000)
    assert name == "intel-xeon-e5-2680-v4-4c-16g"
    monkeypatch.setenv("ROCATTN_MACHINE", "bench box/1")
    assert machine.machine_name("any", 1, GIB) == "bench-box-1"


def test_the_cpu_model_has_a_fallback(tmp_path):
    """arm64 lists no model name, other systems have no /proc: something readable is said all the same."""
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: AMD EPYC  9754 128-Core Processor \nflags: x\n")
    assert machine.cpu_model(file) == "AMD EPYC 9754 128-Core Processor"
    file.write_text("processor : 0\nBogoMIPS : 50\n")
    assert machine.cpu_model(file)
    assert machine.cpu_model(tmp_path / "none")


@pytest.fixture
def repository(tmp_path):
    """A git repository with one commit."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")

    def git(*words):
        settings = ["-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *settings, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "--quiet")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "--quiet", "--message", "A subject with  spaces", "--date", "2001-02-03T04:05:06Z")
    return tmp_path, git


def test_the_commit_is_named_with_its_date_and_dirtiness(repository):
    """A changed file or a new source makes the tree dirty, a stray file does not; the subject is whole."""
    root, git = repository
    commit = machine.this_commit(root)
    assert commit.sha == git("rev-parse", "HEAD")
    assert commit.date_ms == 1000 * int(git("show", "-s", "--format=%ct"))
    assert commit.subject == "A subject with  spaces"
    assert not commit.dirty
    (root / "package").mkdir()
    (root / "package/old.py").touch()
    git("add", "package")
    git("commit", "--quiet", "--message", "more")
    (root / "log").write_text("2")
    assert not machine.this_commit(root).dirty
    (root / "package/new.py").touch()
    assert machine.this_commit(root).dirty
    (root / "package/new.py").unlink()
    (root / "file").write_text("3")
    assert machine.this_commit(root).dirty


def test_git_s_settings_do_not_change_the_commit(repository, tmp_path_factory, monkeypatch):
    """Shown signatures and another encoding are a user's settings; GIT_DIR is what a hook of another repository has."""
    root, git = repository
    git("commit", "--quiet", "--allow-empty", "--message", "Größe in µs")
    git("config", "log.showSignature", "true")
    git("config", "i18n.logOutputEncoding", "ISO-8859-1")
    sha = git("rev-parse", "HEAD")
    other = tmp_path_factory.mktemp("other")
    subprocess.run(["git", "init", "--quiet"], cwd=other, check=True)
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    commit = machine.this_commit(root)
    assert (commit.sha, commit.subject) == (sha, "Größe in µs")


def test_without_a_repository_there_is_no_commit(tmp_path, monkeypatch):
    """None, not an error: results can still be measured, only not stored by commit."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert machine.this_commit(tmp_path) is None
    if shutil.which("git"):
        subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
        assert machine.this_commit(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert machine.this_commit(tmp_path) is None


def test_an_installed_copy_belongs_to_no_checkout(tmp_path, monkeypatch, repository):
    """A .venv inside a repository is not that repository's code."""
    root, _ = repository
    package = root / ".venv/lib/site-packages/rocattn"
    package.mkdir(parents=True)
    monkeypatch.setattr(machine.rocattn, "__file__", str(package / "__init__.py"))
    assert machine.measured_repo() is None
    (root / "rocattn").mkdir()
    monkeypatch.setattr(machine.rocattn, "__file__", str(root / "rocattn/__init__.py"))
    assert machine.measured_repo() == root.resolve()


def test_the_largest_cache_sizes_the_memory_measurement(tmp_path):
    """Sizes come as 32K or 96M; without any, 32 MiB is assumed."""
    write(tmp_path, index0__size="48K\n", index2__size="odd\n")
    assert last_level_cache_bytes(tmp_path) == 48 << 10
    write(tmp_path, index3__size="96M\n")
    assert last_level_cache_bytes(tmp_path) == 96 << 20
    assert last_level_cache_bytes(tmp_path / "none") == 0


def test_ceilings_are_positive_and_consistent():
    """Every number is measured; the memory ceiling is the larger of reading and copying."""
    found = measure_ceilings(1, quick=True)
    found.pop("disturbed", None)
    assert min(found.values()) > 0
    assert found["memory_gbps"] == max(found["memory_read_gbps"], found["memory_copy_gbps"])
    assert set(found) == {"gemm_tflops", "gemm_float64_tflops", "memory_gbps", "memory_read_gbps", "memory_copy_gbps"}


@pytest.mark.parametrize("quick", [True, False])
def test_a_product_of_the_ceiling_is_short(quick, monkeypatch):
    """Under a millisecond on any CPU: other processes interrupt a longer one, and attention exceeded it."""
    asked = []
    rates = {"float32": 1.0, "float64": 0.25}
    monkeypatch.setattr(limits, "_gemm_tflops", lambda dtype, sizes, _s: asked.extend(sizes) or rates[dtype])
    monkeypatch.setattr(limits, "_memory_gbps", lambda *_: (1.0, 2.0))
    measured = limits._measured(1, quick=quick)
    assert measured.pop("switches_per_s") >= 0
    assert min(asked) <= 256
    assert max(asked) >= 1024
    assert measured == {
        "gemm_tflops": 1.0, "gemm_float64_tflops": 0.25, "memory_gbps": 2.0, "memory_read_gbps": 1.0,
        "memory_copy_gbps": 2.0,
    }  # fmt: skip


def test_ceilings_use_the_threads_and_fail_in_one_line(monkeypatch):
    """The process has the environment that holds every thread pool; its last words are quoted."""
    asked = []

    def run(module, job, env, _timeout_s):
        asked.append((module, json.loads(job), env["OMP_NUM_THREADS"]))
        return next(replies)

    replies = iter([Reply(b'{"failed":"MemoryError: no room"}', ""), Crash("", "the process was killed")])
    monkeypatch.setattr(limits, "run_worker", run)
    for reason in ("MemoryError: no room", "the process was killed"):
        with pytest.raises(RocattnError, match=f"ceilings failed: {reason}$"):
            measure_ceilings(3, quick=True)
    assert asked == 2 * [("rocattn_profiling.bench.limits", {"threads": 3, "quick": True}, "3")]


@pytest.mark.parametrize(
    ("takes", "used", "best", "sure"),
    [
        ([1, 1.02, 9], 2, 1.02, True), ([1, 3, 2, 2.95, 9], 4, 3, True), ([1, 2, 3, 4, 5, 6, 9], 6, 6, False),
        ([-1, -1, 3, 3], 4, 3, True), ([-1, -1, -1, 9], 3, 1, False), ([-3, 1, 1], 3, 3, True),
    ],
)  # fmt: skip
def test_ceilings_are_retaken_until_two_agree(monkeypatch, takes, used, best, sure):
    """Two that other processes left alone (a minus: they did not); after six, three of which none was, it is said."""
    left = iter(takes)
    replies = (
        Reply(json.dumps({"gemm_tflops": abs(take), "switches_per_s": 100.0 + (take < 0)}).encode(), "")
        for take in left
    )
    monkeypatch.setattr(limits, "run_worker", lambda *_: next(replies))
    assert measure_ceilings(1) == {"gemm_tflops": best} | ({} if sure else {"disturbed": 1.0})
    assert len(list(left)) == len(takes) - used


def test_a_rate_is_of_the_shortest_call_after_one_that_warms_up(monkeypatch):
    """Calls of 9 (not counted), 3, 1, 2 and 2 s of 6 units each: 6 a second. It goes on for 6 s, and thrice."""
    now, lengths = [0.0], iter([9.0, 3.0, 1.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr(limits.time, "perf_counter", lambda: now[0])

    def call():
        now[0] += next(lengths)

    assert limits._best_rate(call, 6.0, budget_s=6.0, tries=3) == 6.0
    assert next(lengths) == 2.0, "four calls took the 6 s"
    lengths = iter([1.0, 4.0, 3.0, 5.0])
    assert limits._best_rate(call, 6.0, budget_s=0.0, tries=3) == 2.0
    assert list(lengths) == []


def test_ceilings_count_operations_and_bytes(monkeypatch):
    """2 n^3 of the best n; what is read once, or read and written by a copy of half of it, in units of 1e9 and 1e12."""
    works, copied = [], []

    def rate(call, work, _budget_s, _tries):
        call()
        works.append(work)
        return {0: 3e12, 1: 5e12, 2: 4e12}[len(works) - 1] if len(works) < 4 else 1e9 * len(works)

    monkeypatch.setattr(limits, "_best_rate", rate)
    assert limits._gemm_tflops("float32", (8, 16, 4), 0.0) == 5.0
    assert works == [2 * 8**3, 2 * 16**3, 2 * 4**3]
    monkeypatch.setattr(limits, "_SMALLEST_ARRAY", 1 << 16)
    monkeypatch.setattr(limits, "last_level_cache_bytes", lambda: 1 << 18)
    monkeypatch.setattr(np, "copyto", lambda target, source: copied.append((target.nbytes, source.nbytes)))
    assert limits._memory_gbps(3, 0.0, 4) == (5.0, 6.0)
    array = works[3]
    assert works[3:] == [array, array, array]
    assert array >= 4 << 18, "nothing of it can stay in the cache"
    assert len(copied) == 3
    assert sum(target for target, _ in copied) == sum(source for _, source in copied) == array // 2
    monkeypatch.setattr(limits, "available_memory_bytes", lambda: 1 << 19)
    works[3:] = []
    limits._memory_gbps(1, 0.0, 4)
    assert works[3] <= 1 << 17, "the array leaves most of the memory that is left"


def test_every_thread_pool_is_held_to_the_number_asked_for():
    """OpenMP, the BLAS libraries numpy may have, and our own kernels."""
    found = machine.thread_environment(3)
    assert found.pop("OPENBLAS_THREAD_TIMEOUT") == "20"
    assert int(found.pop("MALLOC_TRIM_THRESHOLD_")) == 2**30
    assert int(found.pop("MALLOC_MMAP_THRESHOLD_")) == 2**25
    assert set(found.values()) == {"3"}
    assert {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "ROCATTN_NUM_THREADS"} <= set(found)


def test_a_machine_is_named_after_its_gpu_too(monkeypatch):
    """Two GPUs in one type of host are two machines; the stand-in is no GPU, and no driver is needed to say so."""
    real = GpuDevice("AMD Instinct MI300X", "gfx942:sramecc+:xnack-", 304, 192 * GIB, 64)
    for device, facts in (
        (real, {"gpu": "AMD Instinct MI300X", "gfx": "gfx942"}),
        (replace(real, name=""), {"gpu": "gfx942", "gfx": "gfx942"}),
        (replace(real, is_stand_in=True), {}),
    ):
        monkeypatch.setattr(machine, "probe", lambda device=device: GpuProbe(devices=[device], runtime="7.2"))
        machine.gpu_facts.cache_clear()
        found = machine.gpu_facts()
        assert {name: found[name] for name in found if name != "driver"} == facts
        assert not found or found["driver"].endswith("HIP 7.2")
    machine.gpu_facts.cache_clear()
    monkeypatch.delenv("ROCATTN_MACHINE", raising=False)
    assert machine.machine_name("AMD EPYC 9654", 96, 768 * GIB, real.name) == (
        "amd-epyc-9654-96c-768g-amd-instinct-mi300x"
    )
    assert machine.machine_name("AMD EPYC 9654", 96, 768 * GIB) == "amd-epyc-9654-96c-768g"
