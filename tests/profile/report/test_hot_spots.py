"""Hot spots of a report: lines and instructions with what waves wait for, their static cost, and when to speak up."""

import html
import json

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.cli import main
from rocattn_profiling.profile import ingest
from rocattn_profiling.profile.report import hot_spots, pages
from rocattn_profiling.profile.report.report import build
from rocattn_profiling.profile.report.summary import summarise

from ..ingest import generators as g
from ..ingest import sample_generators as samples
from ..ingest.sample_generators import LOOP, Sample
from .test_judgement import COPY, WAITS
from .test_limits import BMM2, made_of

MADE = [g.Launch(dispatch=number, kernel="attn", ns=50_000) for number in (1, 2, 3)]


def report(folder, of=LOOP, *, gpu=None, method="stochastic"):
    """Return the report of a run with these samples and a kernel trace."""
    samples.v3_json(folder / "1_results.json", of, made=MADE, stochastic=method == "stochastic")
    return build(ingest.read([folder]), gpu=gpu)


def test_lines_come_with_their_share_cause_and_static_cost(tmp_path):
    """A wait's counter says what is waited for; a line in ROCm's headers is counted where it is called."""
    made = report(tmp_path)
    (spots,) = made.hot_spots
    assert (spots.kernel, spots.number, spots.total, spots.launches) == ("attn", 1, 900, 2)
    assert [(line.place, line.count, line.wait) for line in spots.lines] == [
        ("attn.hip:118", 700, "vector_memory"), ("attn.hip:97", 150, "barrier"), ("attn.hip:131", 40, "dependency"),
        ("2+0x1100", 10, ""),
    ]  # fmt: skip
    assert spots.causes == {"vector_memory": 600, "barrier": 150, "issued": 110, "dependency": 40}
    first = spots.lines[0]
    assert first.cycles == 4 + 32, "of a wait and of a product on a gfx942 (rates.toml), however often they were met"
    assert [each.text.split()[0] for each in first.instructions] == ["s_waitcnt", "v_mfma_f32_32x32x8_f16"]
    assert spots.lines[2].instructions[0].lanes == 32
    assert made.not_hot.startswith("10 %"), "in code that cannot be decoded"


def test_the_hottest_line_is_a_finding_with_an_upper_bound(tmp_path):
    """Two thirds of the samples wait at one line: no more of the kernel's time can be gained there."""
    made = report(tmp_path)
    (finding,) = [each for each in made.kernels[0].findings if each.key == "hot-line"]
    assert finding.gain == pytest.approx(600 / 900)
    assert finding.sentence == snapshot(
        "67 % of its samples wait for vector memory at attn.hip:118 (s_waitcnt vmcnt(0)): request the data earlier, "
        "or keep more waves resident to cover the latency"
    )
    assert made.hot_spots[0].finding is finding


def test_waiting_for_a_saturated_limit_is_its_effect(tmp_path):
    """A kernel whose LDS is busy at 79 % waits for it: no more than the rest can be gained, by moving less."""
    samples.csv(tmp_path / "1_x.csv", [Sample("s_waitcnt lgkmcnt(0)", "bmm.hip:40", "WAITCNT", 900)])
    profile = made_of(BMM2)
    sampled = ingest.read([tmp_path]).samples
    sampled["kernel"] = sampled["kernel"].cat.rename_categories({"": "bmm"})
    profile.samples = sampled
    (kernel,) = build(profile).kernels
    (finding,) = [each for each in kernel.findings if each.key == "hot-line"]
    assert finding.gain == pytest.approx(1 - kernel.bounds.nearest.pct / 100)
    assert finding.numbers["part"] == 1
    assert finding.sentence == snapshot(
        "100 % of its samples wait for LDS or scalar memory at bmm.hip:40 (s_waitcnt lgkmcnt(0)): that is the effect "
        "of the LDS limit (LDS at least 79 %): rows padded to a multiple of the access size make it faster"
    )
    assert kernel.verdict.finding == "lds-bound"


def sampled(counted, of, tmp_path):
    """Return the kernel of one launch with these counters and these samples."""
    samples.csv(tmp_path / "1_x.csv", of)
    profile = made_of(counted)
    table = ingest.read([tmp_path]).samples
    table["kernel"] = table["kernel"].cat.rename_categories({"": "bmm"})
    profile.samples = table
    return build(profile)


LDS = [Sample("s_waitcnt lgkmcnt(0)", "bmm.hip:40", "WAITCNT", 900)]
SPREAD = [Sample(f"s_waitcnt vmcnt({n})", f"a.hip:{n}", "WAITCNT", 100, offset=0x1000 + n) for n in range(1, 11)]


@pytest.mark.parametrize(
    ("counted", "of", "text", "remedy", "finding"),
    [
        (WAITS, LDS, "100 % of its samples wait for LDS or scalar memory", "", "hot-line"),
        ({"ns": 37482}, LDS, "the files have times only", "rocattn profile --metrics lds small_caches -- COMMAND",
         "hot-line"),
        (WAITS, SPREAD, "100 % of its samples wait for vector memory: request the data earlier", "", ""),
    ],
    ids=["far", "times only", "spread over lines"],
)  # fmt: skip
def test_samples_are_an_input_of_the_verdict(tmp_path, counted, of, text, remedy, finding):
    """What the waves wait for is known, so nobody is told to sample them, or given a guess beside it."""
    report = sampled(counted, of, tmp_path)
    (kernel,) = report.kernels
    assert (kernel.verdict.code, kernel.verdict.finding, kernel.verdict.remedy) == ("sampled", finding, remedy)
    assert text in kernel.verdict.text
    assert not any(each.key.startswith("latency-bound") for each in kernel.findings)
    assert ("hot-line" in {each.key for each in kernel.findings}) == bool(finding)
    summary = summarise(report)
    assert not any("pc-sampling" in command for command in summary.commands)
    assert kernel.verdict.brief in summary.headline or text in summary.headline
    assert not any("pc-sampling" in each.command for each in kernel.findings)


def test_a_wait_is_no_effect_of_another_unit(tmp_path):
    """Waves of a kernel at the memory's limit wait for LDS: that is a cause of its own."""
    (kernel,) = sampled(COPY, LDS, tmp_path).kernels
    (finding,) = [each for each in kernel.findings if each.key == "hot-line"]
    assert kernel.verdict.finding == "memory-bound"
    assert "effect of" not in finding.sentence
    assert "read LDS earlier" in finding.sentence


@pytest.mark.parametrize(
    ("of", "why"),
    [
        ([Sample("s_waitcnt vmcnt(0)", "a.hip:1", "WAITCNT", 150)], "too few samples"),
        ([Sample(f"s_waitcnt vmcnt({n})", f"a.hip:{n}", "WAITCNT", 100, offset=0x1000 + n) for n in range(1, 11)],
         "spread over ten lines"),
        ([Sample("v_fma_f32 v0, v1, v2, v3", "a.hip:1", "", 1000)], "it issues all the time"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)  # fmt: skip
def test_nothing_is_said_without_a_reason(tmp_path, of, why):
    """A finding needs enough samples, on one line, that wait."""
    made = report(tmp_path, of)
    assert made.hot_spots[0].finding is None, why
    assert not any(each.key == "hot-line" for each in made.kernels[0].findings)


def test_host_trap_samples_conclude_waits_from_the_instruction(tmp_path):
    """They have no reasons, may lie late, and a better method exists on this GPU."""
    (spots,) = report(tmp_path, method="host_trap").hot_spots
    assert spots.causes == {"vector_memory": 600, "barrier": 150, "sampled": 150}
    assert "near attn.hip:118" in spots.finding.sentence
    assert spots.remedy == "rocattn profile --pc-sampling stochastic -- COMMAND"


def test_a_thread_trace_has_cycles_of_each_execution(tmp_path):
    """9600 cycles in 48 executions of a wait whose issue takes 4."""
    samples.stats_csv(tmp_path)
    spots, fill = build(ingest.read([tmp_path]), gpu="MI300X").hot_spots
    assert (spots.kernel, fill.kernel, spots.unit) == ("attn(float*)", "fill", "traced cycles")
    first = spots.lines[0]
    assert (first.place, first.causes) == ("attn.py:395", {"lds_or_scalar": 9408, "issued": 192})
    (wait,) = first.instructions
    assert (wait.hits, wait.cycles, wait.lanes) == (48, 4, None)
    assert "full" in spots.lines[1].causes, "a store that could not be issued"


def test_kernels_that_no_traced_wave_ran_are_left_out(tmp_path):
    """A trace lists the code of its neighbours, too."""
    path = samples.stats_csv(tmp_path)
    path.write_text(path.read_text().replace('"v_mov_b32_e32 v1, 0",16,64,0,16', '"v_mov_b32_e32 v1, 0",0,0,0,0'))
    assert [each.kernel for each in build(ingest.read([path])).hot_spots] == ["attn(float*)"]


def test_without_a_gpu_there_is_no_static_cost(tmp_path):
    """Tables do not say which GPU it was; the reason stands in the report."""
    samples.csv(tmp_path / "1_pc_sampling_stochastic.csv")
    made = build(ingest.read([tmp_path]))
    (spots,) = made.hot_spots
    assert (spots.kernel, spots.number, spots.lines[0].cycles) == ("", None, None)
    assert spots.no_cycles
    assert build(ingest.read([tmp_path]), gpu="MI300X").hot_spots[0].lines[0].cycles == 36
    assert spots.remedy == "rocattn profile --metrics memory caches -- COMMAND"


def test_a_line_of_a_helper_says_where_it_is_called(tmp_path):
    """A load is one line for all that call it: rocprofiler-sdk has the callers behind it."""
    chains = ("/k/load.h:8 -> /k/flash.h:217 -> /k/attn.hip:3", "/k/load.h:8 -> /k/flash.h:310 -> /k/attn.hip:3")
    of = [Sample("s_waitcnt vmcnt(0)", chain, "WAITCNT", 100 * n) for n, chain in enumerate(chains, 1)]
    samples.csv(tmp_path / "1_x.csv", of)
    (line,) = build(ingest.read([tmp_path])).hot_spots[0].lines
    assert (line.place, line.count) == ("load.h:8", 300)
    assert [(each.caller, each.count) for each in line.instructions] == [("flash.h:310", 200), ("flash.h:217", 100)]


def test_files_of_one_name_are_told_apart(tmp_path):
    """By as little of their paths as is needed."""
    of = [Sample("s_nop 0", f"/src/{folder}/k.hip:7", "", 100, offset=0x1000 + 4 * n) for n, folder in enumerate("ab")]
    (spots,) = report(tmp_path, of).hot_spots
    assert {line.place for line in spots.lines} == {"a/k.hip:7", "b/k.hip:7"}


@pytest.mark.parametrize(
    ("instruction", "cause"),
    [
        ("s_waitcnt vmcnt(0)", "vector_memory"), ("s_waitcnt lgkmcnt(0)", "lds_or_scalar"),
        ("s_waitcnt vmcnt(0) lgkmcnt(0)", "memory"), ("s_waitcnt_vscnt null, 0x0", "stores"),
        ("s_wait_loadcnt 0x0", "vector_memory"), ("s_wait_dscnt 0x1", "lds"), ("s_wait_kmcnt 0x0", "scalar_memory"),
        ("s_wait_loadcnt_dscnt 0x0", "memory"), ("s_barrier_wait -1", "barrier"), ("v_mov_b32 v0, v1", "sampled"),
    ],
)  # fmt: skip
def test_a_wait_says_what_it_waits_for(instruction, cause):
    """By the counters in its operands; gfx12 has an instruction for each."""
    assert hot_spots.cause_of("SAMPLED", instruction) == cause


def test_every_reason_of_the_profiler_has_words():
    """Also the rare ones, and names of a later release."""
    from rocattn_profiling.profile.ingest.pc_samples import REASONS

    assert {hot_spots.cause_of(reason, "v_mov_b32 v0, v1") for reason in [*REASONS, "LATER"]} <= set(hot_spots.CAUSES)
    assert hot_spots.cause_of("OTHER_WAIT", "s_waitcnt vmcnt(0)") == "other"


def test_the_pages_show_the_same_lines(tmp_path, capsys):
    """HTML opens a line to its instructions, Markdown has the first lines, the JSON all, the terminal a few."""
    samples.v3_json(tmp_path / "run" / "1_results.json", made=MADE)
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--json"]) == 0
    output = capsys.readouterr()
    (spots,) = json.loads(output.out)["hot_spots"]
    assert (spots["total"], spots["lines"][0]["place"]) == (900, "attn.hip:118")
    assert "77.8 %  attn.hip:118" in output.err
    page = (tmp_path / "out" / "profile.html").read_text()
    assert page.count('<details class="spots">') == 4
    assert "s_waitcnt vmcnt(0)" in page
    assert "attn.hip:118" in html.unescape((tmp_path / "out" / "profile.md").read_text())


def test_samples_alone_are_a_report(tmp_path):
    """Without times and counters there is no verdict, and the page says so."""
    samples.csv(tmp_path / "1_pc_sampling_host_trap.csv", stochastic=False)
    made = build(ingest.read([tmp_path]), gpu="MI300X")
    assert made.kernels == []
    assert "attn.hip:118" in pages.profile_html(made, 0)
    assert "attn.hip:118" in html.unescape(pages.profile_markdown(made))
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "out")]) == 0


def test_a_report_per_dispatch_has_hot_spots_of_whole_kernels(tmp_path):
    """Samples of several launches are no finding about one of them."""
    samples.v3_json(tmp_path / "1_results.json", made=MADE)
    made = build(ingest.read([tmp_path]), per="dispatch")
    assert [(each.kernel, each.number) for each in made.hot_spots] == [("attn", None)]
    spots = {each.finding.key for each in made.hot_spots if each.finding}
    assert not any(finding.key in spots for each in made.kernels for finding in each.findings)


def test_the_list_of_files_counts_samples(tmp_path, capsys):
    """Cycles of a thread trace are no samples."""
    samples.csv(tmp_path / "1_pc_sampling_stochastic.csv")
    samples.stats_csv(tmp_path / "traced")
    assert main(["report", str(tmp_path), "--files", "--json"]) == 0
    assert sorted(each["samples"] for each in json.loads(capsys.readouterr().out)["files"]) == [0, 1000]
