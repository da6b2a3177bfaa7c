"""Which mistakes in ten core files do the tests of `make test` catch? Each is made in a copy, and tests are run there.

Needs this project's environment and a C compiler for the kernels; about half an hour of one core. From the top of the
checkout::

    .venv/bin/python research/mutants.py                        # all
    .venv/bin/python research/mutants.py --file tile.h          # those of some files
    .venv/bin/python research/mutants.py --json out/mutants.json

A mutant is a text that occurs once in its file, and what replaces it: a change of behaviour that some test should
notice. One that survives is either without effect, and teaches nothing, or shows what no test looks at. The status is 1
if one survived or ran out of time.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import cache_from_source
from pathlib import Path
from typing import NamedTuple

from rocattn_profiling.base.process import run_group

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 600.0  # of one run of tests
PYTEST = (sys.executable, "-m", "pytest", "-n", "0", "-x", "-m", "not exhaustive", "-p", "no:cacheprovider")
# Where an import in the copy's tests finds the project.
PLACES = (
    "import rocattn, rocattn_profiling as toolkit, rocattn.sources as s; "
    "print(rocattn.__file__, toolkit.__file__, s.kernel_root(), sep='\\n')"
)


class Subject(NamedTuple):
    """A file, the tests that should catch its mutants, and these: (text, what replaces it)."""

    file: str
    tests: str
    mutants: list[tuple[str, str]]


# In the order in which they run: fast ones and those that look closest come first.
RULE = " ".join(
    f"tests/gate/rule/test_{name}.py"
    for name in ("zeros", "guards", "suite", "reasons", "covariates", "noise", "pairs", "past_noise")
)
INGEST = " ".join(
    f"tests/profile/ingest/test_{name}.py"
    for name in ("passes", "runs", "instruction_samples", "formats", "profile_files", "broken", "csv")
)
FLASH = "tests/kernels/test_flash_on_hostgpu.py tests/varlen/test_gpu.py"
CPU = "tests/attention/test_options.py tests/attention/test_huge_scores.py tests/varlen/test_contract.py"
SUBJECTS = [
    Subject("profiling/rocattn_profiling/gate/rule/suite.py", RULE, [
        ("policy.called * min(base, head)", "policy.called * max(base, head)"),
        ("for look in policy.looks[:-1] if look < rounds)", "for look in policy.looks[:-1] if look <= rounds)"),
        ("return reached if most in reached else [*reached, most]", "return reached"),
        ("benchmark.settle_pass(policy.pass_alpha(index))", "benchmark.settle_pass(policy.pass_alpha(0))"),
        ("if not b.verdict and b.stored < last", "if not b.verdict and b.stored <= last"),
        ("suite.leniency(planned,", "suite.leniency(rounds,"),
        ("min(self.p_regression, self.last.p_regression / self.leniency)", "self.last.p_regression / self.leniency"),
        ("policy.level / (len(benchmarks) - rejected)", "policy.level / len(benchmarks)"),
        ("limit = share * min(", "limit = min("),
        ("len(shifts) >= SESSION_BENCHMARKS", "len(shifts) > SESSION_BENCHMARKS"),
        ("agreeing >= SESSION_AGREES", "agreeing > 0"),
        ("canary * shift > 0 and abs(canary) > SESSION_CANARY * abs(shift)", "canary * shift > 0"),
        ('invalid and self.verdict in {"regression", "improvement"}', 'invalid and self.verdict == "regression"'),
        ("p <= LISTED * rank / len(benchmarks)", "p <= LISTED / len(benchmarks)"),
    ]),
    Subject("profiling/rocattn_profiling/gate/rule/interim.py", RULE, [
        ("abs(medians[1] - medians[0]) >= least", "abs(medians[1] - medians[0]) > least"),
        ("(min(b) > max(a), max(b) < min(a))", "(min(b) >= max(a), max(b) <= min(a))"),
        ("pair.rounds < MIN_LAUNCHES", "pair.rounds <= MIN_LAUNCHES"),
        ("return max(pair.floor,", "return min(pair.floor,"),
        ("drifted if selection.proven else 1.0", "drifted"),
        ("min(1.0, disturbance.spells * proven)", "proven"),
        ("fitted.level)) - drifted", "fitted.level)) + drifted"),
        ("return max(fitted.posterior.p_above(least),", "return min(fitted.posterior.p_above(least),"),
        ("policy.log_margin + disturbance.drift", "policy.log_margin"),
        ("abs(shift) < policy.log_called", "abs(shift) < policy.log_margin"),
        ("abs(math.expm1(shift)) * interim.base <", "abs(math.expm1(shift)) <"),
        ("if guards.rounds_contradict(", "if False and guards.rounds_contradict("),
        ('("two_modes", 1.0, modes)', '("two_modes", 0.0, modes)'),
        ("factor = max(disturbance.spells, factor)", "factor = min(disturbance.spells, factor)"),
        ("max(interim.p_regression, other.p_regression)", "min(interim.p_regression, other.p_regression)"),
    ]),
    Subject("profiling/rocattn_profiling/gate/waivers.py", "tests/gate/test_waivers.py tests/gate/test_verdict.py", [
        ("if ratio <= best.ceiling", "if ratio < best.ceiling"),
        ("best = max(waivers", "best = min(waivers"),
        ("entry.decision.has_ratio else math.inf", "entry.decision.has_ratio else 0.0"),
        ("waiver.expires < today", "waiver.expires <= today"),
        ("if waiver.expires is None or _expired(waiver, today):", "if _expired(waiver, today):"),
        ('in {"pass", "improvement"}', 'in {"pass"}'),
        ("if narrowed or any(", "if any("),
        ('e.arch in {"", waiver.arch}', "e.arch == waiver.arch"),
        ('label.startswith((f"{part}(", f"{part}.", f"{part}::"))', "label.startswith(part)"),
        ("in waivers[:index] if w.key == waiver.key", "in waivers[:index] if w == waiver"),
        ("or not is_number(ceiling) or not ceiling > 1", "or not is_number(ceiling) or not ceiling >= 1"),
        ("if match is None or not ceiling > 1:", "if match is None:"),
        ("added=(w.key, w.ceiling, w.expires) not in before", "added=w.key not in {row[0] for row in before}"),
        ('f"{base.sha}..{head.sha}"', "head.sha"),
    ]),
    Subject("rocattn/registry.py", "tests/attention/test_registry.py", [
        ("(-b.priority, b.name)", "(b.priority, b.name)"),
        ("(-b.priority, b.name)", "-b.priority"),
        ("if backend.name in self._backends:", "if backend in self._backends.values():"),
        ("= backend\n            self._order = None", "= backend"),
        ("pop(name, None)\n            self._order = None", "pop(name, None)"),
        ("None if self._default == name else self._default", "self._default"),
        ("if backends == tuple(self._backends.values()):", "if backends:"),
        ("    self.get(name)\n        self._default = name", "    pass\n        self._default = name"),
        ("backend.available() and support(backend, config)", "support(backend, config)"),
        ("self._last = backend.name", "self._last = name"),
        ("if not answer:", "if answer is None:"),
        ("b.name != self._default))", "b.name == self._default))"),
    ]),
    Subject("profiling/rocattn_profiling/kernels/model/occupancy.py", "tests/kernels/model/test_occupancy.py", [
        ("_up(vgprs, chip.agpr_granule) + agprs", "vgprs + agprs"),
        ("chip.cus_per_wgp if wgp_mode else 1", "chip.cus_per_wgp"),
        ("-(-(self.block or self.wave_size) // self.wave_size)", "(self.block or self.wave_size) // self.wave_size"),
        ("not 0 <= number <= limit", "not 0 <= number < limit"),
        ("waves * kernel.simds // kernel.waves", "waves // kernel.waves * kernel.simds"),
        ("arch.sgpr_granule) + arch.trap_sgprs", "arch.sgpr_granule)"),
        ("kernel.lds_bytes <= arch.lds_block_bytes", "kernel.lds_bytes < arch.lds_block_bytes"),
        ("kernel.block is not None and kernel.waves > 1", "kernel.block is not None"),
        ("// waves // granule * granule, arch.max_vgprs", "// waves, arch.max_vgprs"),
        ("(arch.sgprs // waves - arch.trap_sgprs)", "arch.sgprs // waves"),
        ("min(sgprs, max(arch.max_sgprs, kernel.sgprs))", "min(sgprs, arch.max_sgprs)"),
        ("min(lds, arch.lds_block_bytes)", "lds"),
        ("if waves > kernel.arch.waves_per_simd", "if waves >= kernel.arch.waves_per_simd"),
    ]),
    Subject("profiling/rocattn_profiling/profile/metrics/evaluate.py", "tests/profile/metrics", [
        ("devices.get(int(agent), devices.get(-1))", "devices.get(int(agent))"),
        ("np.array(known, np.float64)[of_launch]", "np.array(known, np.float64)[0 * of_launch]"),
        ("busy / xcds > duration_ns", "busy > duration_ns"),
        ("clock / 1000 * SHORT", "clock / 1000"),
        ("here & np.isnan(values)", "here"),
        ("np.where(np.isnan(known), values, known)", "values"),
        ("(values < least)", "(values <= least)"),
        ("most * (1 + metric.slack)", "most"),
        ("np.logical_or.reduce([use.is_short for use in single])", "single[0].is_short"),
        ("[~np.isnan(first), *(first == each for each in others)]", "[~np.isnan(first)]"),
        ("(*exact, *others)", "(*others, *exact)"),
        ("own = launches.time_beside(each)", "own = each.duration_ns"),
        ("rest &= ~where", "pass"),
        ("if not way.one_pass and rest.any()", "if rest.any()"),
        ("passes, len(passes) > 1, borrowed", "passes, len(passes) > 0, borrowed"),
    ]),
    Subject("profiling/rocattn_profiling/profile/ingest/merge.py", INGEST, [
        ("if not rest.all() and not len(part.counters):", "if not rest.all():"),
        ('known["process"].nunique() > 1', 'known["process"].nunique() > 2'),
        ("key=_detail, reverse=True", "key=_detail"),
        ('["counter"].cat.categories) <= measured', '["counter"].cat.categories) & measured'),
        ("sum(len(part.counters) > 0 for part in run if part.family == family) > 0", "False"),
        ("-_FULLEST.index(family)", "_FULLEST.index(family)"),
        ("values.isna().to_numpy() & matched", "matched"),
        ("rest[at[matched]] = False", "rest[at[matched]] = True"),
        ('dispatches.sort_values("dispatch", kind="stable").index', "dispatches.index"),
        ("stem.isdecimal() and len(stem) < 10", "stem.isdecimal()"),
        (' and stem[-len(str(pid)) - 1] in "-_."', ""),
        ("if taken[shown] & numbers:", "if taken[shown]:"),
        ("fresh -= 1", "fresh = NO_PROCESS - 1"),
        ("np.int32) + np.int32(offset)", "np.int32)"),
        ("for key in (shown, None) if", "for key in (None, shown) if"),
    ]),
    Subject("kernels/include/rocattn/flash.h", FLASH, [
        ("            k_rows = k_rows.before((stop - first) * S::TILE_KEYS);\n", ""),
        ("reference[i] * unit() - lift()", "reference[i] * unit()"),
        ("scores.block_hides(key) && keep_finite(v)", "false"),
        ("block_barrier();  // all waves are done with what LDS held before", ""),
        ("key + S::TILE_KEYS; next < end)", "key + S::TILE_KEYS; next <= end)"),
        ("if (hides && any_flag())", "if (hides && found)"),
        ("beyond |= top[i] > limit[i]", "beyond = top[i] > limit[i]"),
        ("    sum[i] *= factor;\n", ""),
        ("o[i][f] *= column_factor;", ";"),
        ("SLACK = PLAIN ? 8.0f : 8.0f * LN_2", "SLACK = PLAIN ? 24.0f : 24.0f * LN_2"),
        ("NEAR = 16384.0f", "NEAR = 1e30f"),
        ("if (part > 0 && part + 1 == S::PARTS) sum[i] += fresh[i];", ""),
        ("smaller(first + S::TILE_KEYS, block.seq_k)", "first + S::TILE_KEYS"),
        ("scores.sees(i, key) ? ~0u : 0u", "~0u"),
        ("block_barrier();\n        if (!any_flag())", "if (!any_flag())"),
    ]),
    Subject("kernels/include/rocattn/tile.h", f"{FLASH} tests/kernels/test_backward.py", [
        ("(COUNT & flip)", "((COUNT - 1) & flip)"),
        ("static_cast<i64>(COUNT - 1) * stride", "static_cast<i64>(COUNT) * stride"),
        ("? 0x7c007c00u :", "? 0x00007c00u :"),
        (": 0x7f807f80u;", ": 0x00007f80u;"),
        ("(carry >> (8 * BYTES - 1))", "0"),
        ("STEP == ANY_COLUMNS)\n            low += first;", "STEP == ANY_COLUMNS)\n            low += 0;"),
        ("if (!FULL && row_at + d * ROW_STEP >= rows)", "if (!FULL && row_at + d * ROW_STEP > rows)"),
        ("x[d][a] = load_chunk<Stored, WIDTH, STEP>(from, first", "x[d][a] = load_chunk<Stored, WIDTH, STEP>(from, 0"),
        ("NonFinite<Stored>::find(x[d][a], found)", "NonFinite<Stored>::find(x[0][a], found)"),
        ("|| (!ALL_ROWS && row >= ROWS)) continue;", ") continue;"),
        ("if constexpr (!WHOLE) chunk =", "if constexpr (false) chunk ="),
        ("if (!FULL && row_at[d] + i * CHAIN_STEP<M> >= rows)", "if (!FULL && row_at[d] + i * CHAIN_STEP<M> > rows)"),
        ("n / 4) + n % 4 * CHAIN_STEP<M>", "n / 4) + n % 4"),
        ("[n % 4] = load_chunk<Stored, WIDTH, STEP>(from, first", "[n % 4] = load_chunk<Stored, WIDTH, STEP>(from, 0"),
        ("NonFinite<Stored>::find(x[d][a][i], found)", "NonFinite<Stored>::find(x[d][a][0], found)"),
        ("second = taken[i ^ 2]", "second = taken[i ^ 1]"),
        ("COLUMNS % 16 == 0 ? 0 : before", "0"),
    ]),
    Subject("kernels/hip/flash_decode.hip", FLASH, [
        ("i64 b = 0, slopes_of = block_z()", "i64 b = 0, slopes_of = 0"),
        ("kv_head * group + packed / seq_q", "kv_head * group + packed % group"),
        ("ROCATTN_SCORE_SCALE(block_z(), kv_head)", "ROCATTN_SCORE_SCALE(block_z(), 0)"),
        ("band(options, 0, seq_q - 1)", "band(options, 0, 0)"),
        ("(is_part ? block_x() * batch : 0) + block_z()", "(is_part ? block_x() : 0) + block_z()"),
        ("if (packed >= packed_rows) rows[i].out", "if (packed > packed_rows) rows[i].out"),
        ("slopes_of * num_heads + head", "head"),
        (" + head * mask_stride_h +", " +"),
        ("first_key + block_x() * keys_per_split", "block_x() * keys_per_split"),
        ("start + static_cast<i32>(keys_per_split) - 1", "start + static_cast<i32>(keys_per_split)"),
        ("round_up(ceil_div(span, splits), KEYS_PER_TILE)", "keys_per_split"),
        ("total == 0.0f ? 0.0f : v_scale / total", "v_scale / total"),
        ("if (ends && first_lane)", "if (first_lane)"),
    ]),
    Subject("kernels/cpu/decode.cpp", f"{CPU} tests/attention/test_cpu_kernels.py", [
        ("store(l, load(l) * alpha);", ""),
        ("store(o + d, load(o + d) * alpha)", ""),
        ("set1(*m == -kInf ? 0.0f : -*m)", "set1(-*m)"),
        ("factor, base) - rest)", "factor, base))"),
        ("w[r] == 0 ? 1.0f : 1.0f / w[r]", "1.0f / w[r]"),
        ("a.sinks && first_range ?", "a.sinks ?"),
        ("min2(seen.hi, (range + 1) * f.range_keys)", "seen.hi"),
        ("t < seen.inner_lo || ", ""),
        ("f.p.general || n % VL != 0", "f.p.general"),
        ("block.zero && block.may_hide", "false"),
        ("if (!f.alone || *y.held != first)", "if (!f.alone || *y.held < 0)"),
        ("part[0] > top || (part[0] == top && part[all] > low)", "part[0] > top"),
        ("exp2s((part[0] - top) + (part[all] - low))", "exp2s(part[0] - top)"),
        ("f.items(), ranges ? f.p.heads : 0,", "f.items(), 0,"),
        ("a.D % VL != 0 || a.Dv % VL != 0", "a.Dv % VL != 0"),
    ]),
]  # fmt: skip


def copy_checkout(folder: Path) -> Path:
    """Return a copy of the working tree's tracked files."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    copy = folder / "checkout"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def environment(folder: Path, copy: Path) -> dict[str, str]:
    """Return an environment in which the copy is imported; compiled kernels stay in the temporary folder."""
    paths = os.pathsep.join([str(copy), str(copy / "profiling")])
    (folder / "pytest").mkdir(exist_ok=True)
    return os.environ | {
        "PYTHONPATH": paths, "ROCATTN_CACHE_DIR": str(folder / "cache"),
        "PYTEST_DEBUG_TEMPROOT": str(folder / "pytest"),
    }  # fmt: skip


class Tests:
    """Runs tests in the copy, each run within a time."""

    def __init__(self, folder: Path, seconds: float):
        self.folder, self.seconds = folder, seconds
        self.copy = copy_checkout(folder)
        self.environment = environment(folder, self.copy)
        self.passing: set[str] = set()  # what the unchanged copy has passed
        status, places, _ = self.run(sys.executable, "-c", PLACES)
        elsewhere = [place for place in places.split() if not Path(place).is_relative_to(self.copy)]
        if status or elsewhere:
            raise SystemExit(f"mutants.py: the copy would not be tested, but {places.strip()}")

    def run(self, *command: str) -> tuple[int | None, str, float]:
        """Return the status (None: out of time), the output and the seconds."""
        with (self.folder / "output").open("w+b") as output:
            ended = run_group(
                command, env=self.environment, cwd=self.copy, stdout=output, stderr=output, timeout_s=self.seconds,
                grace_s=0.0,
            )  # fmt: skip
            output.seek(0)
            return ended.status, output.read().decode(errors="replace"), ended.seconds

    def require_pass(self, tests: str) -> None:
        """Run tests of the unchanged copy, once; end if they do not pass."""
        if tests in self.passing:
            return
        status, output, _ = self.run(*PYTEST, *tests.split())
        if status != 0:
            raise SystemExit(f"{output}\nmutants.py: the unchanged copy does not pass {tests}")
        print(f"unchanged: {tests}: {output.strip().splitlines()[-1]}", flush=True)
        self.passing.add(tests)

    def judge(self, tests: str) -> tuple[str, str, float]:
        """Return a mutant's fate, the test that caught it, and the seconds."""
        status, output, seconds = self.run(*PYTEST, *tests.split())
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
        if status is None:
            return "timed out", "", seconds
        if status == 0:
            return "survived", "", seconds
        if status in {3, 4, 5}:  # pytest's own mistakes, and no test at all
            raise SystemExit(f"{output}\nmutants.py: pytest ended with status {status}")
        if re.search(r"^E .*\b(ToolchainError|SyntaxError)\b", output, re.MULTILINE):
            return "does not compile", "", seconds
        return "killed", failed[1] if failed else f"a crash (status {status})", seconds


def changed(subject: Subject, old: str, new: str) -> tuple[str, int]:
    """Return the file's text with one mutant, and its line."""
    text = (ROOT / subject.file).read_text()
    if (count := text.count(old)) != 1:
        raise SystemExit(f"mutants.py: {subject.file}: occurs {count} times, not once: {old!r}")
    return text.replace(old, new), text[: text.index(old)].count("\n") + 1


def main() -> None:
    """Judge the mutants of the chosen files, and print their counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", default="", metavar="SUBSTRING", help="only files whose path has this in it")
    parser.add_argument("--json", type=Path, help="write the results here, too")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the most for one mutant (default %(default)g)")
    arguments = parser.parse_args()
    chosen = [subject for subject in SUBJECTS if arguments.file in subject.file]
    for subject in chosen:  # before anything is run
        for old, new in subject.mutants:
            changed(subject, old, new)
    results = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tests = Tests(Path(folder), arguments.seconds)
        for subject in chosen:
            tests.require_pass(subject.tests)
            file = tests.copy / subject.file
            for old, new in subject.mutants:
                text, line = changed(subject, old, new)
                whole = file.read_bytes()
                file.write_text(text)
                # Bytecode is renewed by a file's size and its time in seconds, which may both be those of the mutant
                # before.
                Path(cache_from_source(str(file))).unlink(missing_ok=True)
                try:
                    fate, by, seconds = tests.judge(subject.tests)
                finally:
                    file.write_bytes(whole)
                shown = f"killed by {by}" if by else fate.upper()
                print(f"{subject.file}:{line}: {shown}, {seconds:.1f} s: {old!r} -> {new!r}", flush=True)
                results.append({"file": subject.file, "line": line, "old": old, "new": new, "fate": fate, "by": by,
                                "seconds": round(seconds, 1)})  # fmt: skip
    for subject in chosen:
        fates = [result["fate"] for result in results if result["file"] == subject.file]
        late = f", {fates.count('timed out')} timed out" if "timed out" in fates else ""
        print(f"{subject.file}: {fates.count('killed')} of {len(fates)} killed{late}")
    print(f"all: {sum(result['fate'] == 'killed' for result in results)} of {len(results)} killed")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(any(result["fate"] != "killed" for result in results))


if __name__ == "__main__":
    main()
