"""Control flow of any shape: against plain definitions on random graphs, and at sizes that show quadratic time."""

import random
import sys

import pytest

from rocattn_profiling.kernels.model.cost import loop_cost
from rocattn_profiling.kernels.model.loops import (
    Dominance,
    dominators,
    find_loops,
    has_irregular_cycles,
    hot_loop,
    usual_path,
)
from rocattn_profiling.kernels.read.assembly import AssemblyFunction, BasicBlock, Instruction, parse_assembly
from rocattn_profiling.kernels.read.instructions import Access, Pipe

from ..counting import counts_of

WMMA = "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]"
MANY = 12_000  # blocks: a quadratic step over these would take minutes


def read(lines):
    """Return the function that these lines are."""
    body = "".join(f"{line}\n" if line.startswith(".") else f"\t{line}\n" for line in lines)
    (function,) = parse_assembly(f'\t.amdgcn_target "x--gfx1100"\n\t.type\tk,@function\nk:\n{body}\ts_endpgm\n')
    return function


def graph_of(successors):
    """Return a function with one instruction a block and these edges."""
    return AssemblyFunction(
        "k", "gfx1100", tuple(BasicBlock("", (Instruction("s_nop", "0"),), to) for i, to in enumerate(successors))
    )


def random_graph(seed):
    """Return successors of 1 to 14 nodes, up to three each."""
    chance = random.Random(seed)  # noqa: S311  seeded, for graphs
    size = chance.randrange(1, 15)
    return [tuple({chance.randrange(size) for _ in range(chance.randrange(4))}) for _ in range(size)]


def reachable(successors, start, without=None):
    """Return the nodes that are reached from one, not passing another."""
    found, waiting = set(), [start] if start != without else []
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [to for to in successors[node] if to != without]
    return found


@pytest.mark.parametrize("block", range(8))
def test_dominators_are_what_every_way_leads_through(block):
    """On random graphs, reducible or not: removing a dominator makes the node unreachable."""
    for seed in range(block * 40, block * 40 + 40):
        graph = random_graph(seed)
        nodes = reachable(graph, 0)
        immediate = dominators(graph, 0)
        dominates = Dominance(immediate)
        assert set(immediate) == nodes
        for node in nodes:
            for other in nodes:
                plain = node == other or other not in reachable(graph, 0, without=node)
                assert dominates(node, other) == plain, (seed, node, other)
            strict = {other for other in nodes if other != node and dominates(other, node)}
            if node:
                assert immediate[node] in strict
                assert all(dominates(other, immediate[node]) for other in strict)


@pytest.mark.parametrize("block", range(8))
def test_loops_are_the_natural_ones(block):
    """On random graphs: body, nesting, what is a loop's own, and which cycles are none."""
    for seed in range(block * 40, block * 40 + 40):
        graph = random_graph(seed)
        function = graph_of(graph)
        nodes = reachable(graph, 0)
        back = {}
        for node in nodes:
            for to in graph[node]:
                if to == node or node not in reachable(graph, 0, without=to):
                    back.setdefault(to, set()).add(node)
        inward = [tuple(node for node in nodes if to in graph[node]) for to in range(len(graph))]
        bodies = {
            header: {header} | set().union(*(reachable(inward, latch, without=header) for latch in latches))
            for header, latches in back.items()
        }
        loops = find_loops(function)
        assert {loop.header: (loop.latches, loop.blocks) for loop in loops} == {
            header: (latches, bodies[header]) for header, latches in back.items()
        }
        for loop in loops:
            around = [other for other in loops if loop.header in other.blocks and other.header != loop.header]
            outer = [other for other in loops if loop in other.inner]
            assert outer == ([min(around, key=lambda other: len(other.blocks))] if around else [])
            inside = [other.blocks for other in loops if other.header in loop.blocks and other.header != loop.header]
            assert loop.own == loop.blocks.difference(*inside)
            path = usual_path(function, loop)
            assert (path[0], path[-1] in loop.latches, set(path) <= loop.blocks) == (loop.header, True, True)
        kept = [[to for to in graph[node] if node not in back.get(to, ())] for node in range(len(graph))]
        cyclic = any(node in reachable(kept, to) for node in nodes for to in kept[node])
        assert has_irregular_cycles(function, loops) == cyclic


SHAPES = {
    "many branches to one exit": [*["s_cbranch_scc1 .Lexit"] * MANY, ".Lexit:"],
    "a deep nest": [
        line
        for lines in (
            [text for i in range(MANY // 2) for text in (f".L{i}:", "s_nop 0")],
            [f"s_cbranch_scc1 .L{i}" for i in reversed(range(MANY // 2))],
        )
        for line in lines
    ],
    "loops of one block": [line for i in range(MANY) for line in (f".L{i}:", f"s_cbranch_scc1 .L{i}")],
    "branches everywhere": [
        line for i in range(MANY) for line in (f".L{i}:", f"s_cbranch_scc1 .L{(i * 7919 + 13) % MANY}")
    ],
    "one cycle without an exit": [line for i in range(MANY) for line in (f".L{i}:", f"s_branch .L{(i + 1) % MANY}")],
    "many ways back": [".L0:", *["s_cbranch_scc1 .L0"] * MANY],
    "a ladder": [line for i in range(MANY) for line in (f".L{i}:", f"s_cbranch_scc1 .L{min(i + 2, MANY - 1)}")],
    "labels that are missing": [f"s_cbranch_scc1 .Lgone{i}" for i in range(MANY)],
    "jumps to registers": ["s_setpc_b64 s[0:1]"] * MANY,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_shape_of_branches_is_too_much(shape):
    """Thousands of blocks, more than Python allows calls: all are read, and the cost is counted."""
    assert sys.getrecursionlimit() < MANY
    function = read(SHAPES[shape])
    assert len(function.blocks) >= MANY // 2
    cost = loop_cost(function, "")
    assert cost.has_loop == bool(find_loops(function))
    assert cost.issue_cycles > 0


class TestPathsThroughLoopsOverLanes:
    """A loop that runs until no lane is left branches on exec: its way out is not the way that lanes take."""

    def test_a_loop_that_ends_with_a_test_is_run_through_once(self):
        """The branch back is taken while a lane is active."""
        function = read([
            ".LBB0_1:", WMMA, ".LBB0_2:", "ds_load_b32 v9, v8", "s_cbranch_execnz .LBB0_2", "v_mov_b32 v0, 0",
            "s_cbranch_scc1 .LBB0_1",
        ])  # fmt: skip
        counts = counts_of(function, usual_path(function, hot_loop(function)))
        assert (counts.units[Pipe.MATRIX], counts.units[Pipe.LDS], counts.units[Pipe.VECTOR]) == (1, 1, 1)

    def test_a_loop_that_begins_with_a_test_is_passed_over(self):
        """Its body leads only back to the test."""
        function = read([
            ".LBB0_1:", WMMA, ".LBB0_2:", "s_cbranch_execz .LBB0_4", "ds_load_b32 v9, v8", "s_branch .LBB0_2",
            ".LBB0_4:", "v_mov_b32 v0, 0", "s_cbranch_scc1 .LBB0_1",
        ])  # fmt: skip
        counts = counts_of(function, usual_path(function, hot_loop(function)))
        assert (counts.units[Pipe.MATRIX], counts.units[Pipe.LDS], counts.units[Pipe.VECTOR]) == (1, 0, 1)


class TestLoopsWithoutMatrixProducts:
    """Kernels for GPUs or types without matrix instructions."""

    def test_the_loop_with_the_most_flops_is_the_hot_one(self):
        """Not the one with more vector instructions, which compute addresses."""
        function = read([
            ".LBB0_1:", *["v_add_u32 v0, v1, v2"] * 9, "s_cbranch_scc1 .LBB0_1",
            ".LBB0_2:", *["v_fmac_f32_e32 v0, v1, v2"] * 2, "s_cbranch_scc1 .LBB0_2",
        ])  # fmt: skip
        assert function.blocks[hot_loop(function).header].label == ".LBB0_2"

    def test_the_usual_path_takes_the_products(self):
        """Multiply-adds attract it; the steps of a division, and multiplications alone, do not."""
        function = read([
            ".LBB0_1:", "s_cbranch_vccz .LBB0_3", "v_fmac_f32_e32 v0, v1, v2",
            ".LBB0_3:", "s_cbranch_vccz .LBB0_5", "v_div_scale_f32 v0, vcc, v1, v2, v1", "v_fma_f32 v0, v1, v2, v3",
            ".LBB0_5:", "s_cbranch_vccz .LBB0_7", "v_mul_f32_e32 v0, v1, v2",
            ".LBB0_7:", "s_cbranch_scc1 .LBB0_1",
        ])  # fmt: skip
        path = usual_path(function, hot_loop(function))
        assert [
            one.mnemonic for block in path for one in function.blocks[block].instructions if one.mnemonic[0] == "v"
        ] == ["v_fmac_f32_e32"]

    def test_usual_path_has_the_widest_loads(self):
        """The next tile is fetched, not only what stands beside it."""
        function = read([
            ".LBB0_1:", WMMA, "s_cbranch_scc0 .LBB0_3", "global_load_b32 v1, v9, s[0:1]", "s_branch .LBB0_4",
            ".LBB0_3:", *["global_load_b128 v[0:3], v9, s[0:1]"] * 3, ".LBB0_4:", "s_cbranch_scc1 .LBB0_1",
        ])  # fmt: skip
        assert counts_of(function, usual_path(function, hot_loop(function))).lane_bytes(Pipe.GLOBAL) == 48


class TestMasksOfAllLanes:
    """Branches on a scalar round loads: where a wave loads a row of a tile together, as Triton's matmul does."""

    @pytest.mark.parametrize(
        "shape",
        [
            ["{skip} .LBB0_2", "{load}", ".LBB0_2:"],
            ["{skip} .LBB0_2", "{load}", "s_branch .LBB0_3", ".LBB0_2:", "v_mov_b32 v8, 0", ".LBB0_3:"],
            ["{skip} .LBB0_2", "s_waitcnt vmcnt(0)", "v_add_u32 v6, v6, v7", "s_waitcnt_depctr 0xfffe", "{load}",
             "s_branch .LBB0_3", ".LBB0_2:", "v_mov_b32 v8, 0", "s_branch .LBB0_3", ".LBB0_3:"],
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("width", ["u16", "b32", "b128"])
    def test_they_mask_no_load_of_the_usual_iteration(self, shape, width):
        """It may have another way that sets zeros, and wait before it loads."""
        load = f"global_load_{width} v8, v[6:7], off"
        rows = [
            line.format(skip="s_cbranch_scc1", load=load).replace("LBB0_", f"LBB{row}_") for row in (1, 2, 3)
            for line in shape
        ]  # fmt: skip
        function = read([".LBB0_1:", WMMA, "global_load_b128 v[0:3], v9, s[0:1]", *rows, "s_cbranch_scc1 .LBB0_1"])
        counts = counts_of(function, usual_path(function, hot_loop(function)))
        assert counts.accesses(Pipe.GLOBAL, Access.LOAD) == 4

    def test_the_mask_of_the_next_row_may_be_asked_in_each_way(self):
        """As on gfx90a, where LLVM copies the question into both ways: a ladder of loads beside one of zeros."""
        ask = "s_cmp_lg_u32 s2, 1"
        function = read([
            ".LBB0_1:", WMMA, "global_load_dwordx4 v[0:3], v[4:5], off", ask, "s_cbranch_scc0 .LBB0_4",
            "v_mov_b32 v8, 0", ask, "s_cbranch_scc0 .LBB0_5",
            ".LBB0_2:", "v_mov_b32 v9, 0", ask, "s_cbranch_scc0 .LBB0_6",
            ".LBB0_3:", "s_branch .LBB0_7",
            ".LBB0_4:", "global_load_ushort v8, v[6:7], off", ask, "s_cbranch_scc1 .LBB0_2",
            ".LBB0_5:", "global_load_ushort v9, v[6:7], off", ask, "s_cbranch_scc0 .LBB0_6",
            ".LBB0_7:", "v_mov_b32 v10, 0", "s_branch .LBB0_8",
            ".LBB0_6:", "global_load_ushort v10, v[6:7], off",
            ".LBB0_8:", "s_cbranch_scc1 .LBB0_1",
        ])  # fmt: skip
        counts = counts_of(function, usual_path(function, hot_loop(function)))
        assert counts.accesses(Pipe.GLOBAL, Access.LOAD) == 4
        function = read([
            ".LBB0_1:", WMMA, "global_load_b128 v[0:3], v9, s[0:1]", "s_cbranch_vccz .LBB0_3",
            "s_cbranch_vccnz .LBB0_5", "s_branch .LBB0_4",
            ".LBB0_3:", "global_load_u16 v8, v[6:7], off", "s_cbranch_vccnz .LBB0_5",
            ".LBB0_4:", "global_load_u16 v9, v[6:7], off",
            ".LBB0_5:", "s_cbranch_scc1 .LBB0_1",
        ])  # fmt: skip
        counts = counts_of(function, usual_path(function, hot_loop(function)))
        assert counts.accesses(Pipe.GLOBAL, Access.LOAD) == 3

    @pytest.mark.parametrize(
        "rare",
        [
            ["global_load_u16 v8, v[6:7], off", "s_waitcnt vmcnt(0)", "v_add_u32 v9, v8, v9"],
            ["global_load_u16 v8, v[6:7], off", "s_mov_b32 s4, 0"],
            ["global_load_u16 v8, v[6:7], off", "ds_store_b16 v7, v8"],
            ["global_load_u16 v8, v[6:7], off", "global_store_b16 v[6:7], v8, off"],
            ["s_barrier", "global_load_u16 v8, v[6:7], off"],
            ["v_mov_b32 v8, 0"],
        ],
    )
    def test_what_does_more_than_load_is_no_mask(self, rare):
        """It uses what it loads, or says to what follows that it ran: rare, as all that a branch may skip."""
        function = read([
            ".LBB0_1:", WMMA, "global_load_b128 v[0:3], v9, s[0:1]", "s_cbranch_scc1 .LBB0_2", *rare,
            ".LBB0_2:", "s_cbranch_scc1 .LBB0_1",
        ])  # fmt: skip
        counts = counts_of(function, usual_path(function, hot_loop(function)))
        assert (counts.accesses(Pipe.GLOBAL), counts.units[Pipe.VECTOR]) == (1, 0)

    @pytest.mark.parametrize("skip", ["s_cbranch_scc1", "s_cbranch_execz"])
    def test_a_mask_may_be_the_last_of_an_iteration(self, skip):
        """Its branch leads back to the loop's beginning, and so does what it guards."""
        function = read([
            ".LBB0_1:", "s_cbranch_vccz .LBB0_2", WMMA, "global_load_b128 v[0:3], v9, s[0:1]", f"{skip} .LBB0_1",
            "global_load_u16 v8, v[6:7], off", "s_branch .LBB0_1", ".LBB0_2:",
        ])  # fmt: skip
        counts = counts_of(function, usual_path(function, hot_loop(function)))
        assert counts.accesses(Pipe.GLOBAL, Access.LOAD) == 2


@pytest.mark.parametrize(
    ("stored", "hot"),
    [
        ("global_store_b32 v[6:7], v8, off", ".LBB0_2"),
        ("global_atomic_add_f32 v9, v8, s[0:1]", ".LBB0_2"),
        ("s_nop 0", ".LBB0_1"),
    ],
)
def test_persistent_kernels_tile_loop_is_not_hot(stored, hot):
    """Though the ends of the inner loop's pipeline give it more products of its own: it stores what those sum up."""
    function = read([
        ".LBB0_1:", WMMA, ".LBB0_2:", WMMA, WMMA, "s_cbranch_scc1 .LBB0_2",
        *[WMMA] * 3, stored, "s_cbranch_scc1 .LBB0_1",
    ])  # fmt: skip
    assert function.blocks[hot_loop(function).header].label == hot
