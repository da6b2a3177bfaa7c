"""Name of a profiler -> its module's object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocattn_profiling.profile.collect.rocprof import Rocprof, Rocprofv2
from rocattn_profiling.profile.collect.rocprof_compute import RocprofCompute
from rocattn_profiling.profile.collect.rocprofv3 import Rocprofv3

if TYPE_CHECKING:
    from rocattn_profiling.profile.collect.launch import Collector

COLLECTORS: dict[str, Collector] = {
    "rocprofv3": Rocprofv3(),
    "rocprofv2": Rocprofv2(),
    "rocprof": Rocprof(),
    "rocprof-compute": RocprofCompute(),
}
