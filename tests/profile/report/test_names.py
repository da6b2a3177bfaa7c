"""Kernels' names in tables: real ones of PyTorch, rocPRIM, Composable Kernel, Tensile and others."""

import pytest

from rocattn_profiling.profile.report.names import base_name, short_name, short_names

ABS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::AbsFunctor<float>, std::array<char*, 2ul> >"
    "(int, at::native::AbsFunctor<float>, std::array<char*, 2ul>)"
)
LAMBDA = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::ceil_kernel_cuda(at::TensorIteratorBase&)::"
    "{lambda()#1}::operator()() const::{lambda(float)#1}, std::array<char*, 2ul> >(int, std::array<char*, 2ul>)"
)
MERGE = (
    "void gunrock::operators::advance::merge_path::merge_path_kernel<256, 11, (gunrock::operators::advance_io_type_t)1,"
    " (gunrock::operators::advance_io_type_t)1, gunrock::graph::graph_t<(gunrock::memory::memory_space_t)0, int> >(int)"
)
BATCHED = "void batched_matrix_multiplication_matrix_core_{0}<64u, 64u, 8u>(unsigned int, std::bfloat16_t const*, dim3)"


@pytest.mark.parametrize(
    ("name", "most", "short"),
    [
        ("vecCopy(double*, double*, double*, int, int)", 40, "vecCopy"),
        ("void (anonymous namespace)::wave_table<1u>(unsigned char const*, int)", 40, "wave_table<1u>"),
        ("attention_forward.kd", 40, "attention_forward"),
        ("mul [clone .kd]", 40, "mul"),
        (ABS, 80, "vectorized_elementwise_kernel<4, AbsFunctor<float>, array<char*, 2ul>>"),
        (ABS, 62, "vectorized_elementwise_kernel<4, AbsFunctor<float>, array<…>>"),
        (ABS, 40, "vectorized_elementwise_kernel<4, …>"),
        (ABS, 32, "vectorized_elementwise_kernel<…>"),
        (ABS, 24, "vectorized…kernel"),
        (LAMBDA, 80, "vectorized_elementwise_kernel<4, ceil_kernel_cuda, array<char*, 2ul>>"),
        (MERGE, 60, "merge_path_kernel<256, 11, 1, 1, graph_t<0, int>>"),
        (BATCHED.format("64x64x4"), 36, "batched_matrix…matrix_core_64x64x4"),
        ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT32x32x32_" + "MI16_" * 60, 30, "Cijk_Ailk_Bljk_S_B_Bias_HA_S…"),
        ("x" * 50, 20, "x" * 19 + "…"),
        ("void cut_off<float, std::arr", 40, "cut_off<float, arr>"),
    ],
)
def test_a_name_is_cut_where_a_reader_would_cut(name, most, short):
    """Parameters, return type and namespaces go first, then arguments of arguments, then arguments; no type is torn."""
    assert short_name(name, most) == short
    assert len(short) <= most


def test_names_in_one_table_differ_if_they_can():
    """Two functors of one kernel: the argument that differs takes the place of the first ones."""
    other = ABS.replace("AbsFunctor", "NegFunctor")
    functors = [f"void kernel<512, 128, {functor}>(int)" for functor in ("AbsFunctor", "NegFunctor")]
    assert short_names(functors, 24) == ["kernel<…, AbsFunctor>", "kernel<…, NegFunctor>"]
    assert short_names(functors[:1], 24) == ["kernel<512, 128, …>"]
    assert short_names([ABS, other], 36) == ["vectorized…<…, AbsFunctor, …>", "vectorized…<…, NegFunctor, …>"]
    assert short_names([ABS, ABS], 70) == [short_name(ABS, 70)] * 2


def test_functions_as_arguments_keep_their_names():
    """GNU's and LLVM's spelling; both were "k<&, float>"."""
    for spelled in ("&(op_{}(float))", "(&op_{}(float))", "&op_{}(float)", "&(float ns::op_{}<1>(float))"):
        names = [f"void k<{spelled.format(each)}, float>(float*)" for each in ("silu", "gelu")]
        assert [each.replace("<1>", "") for each in short_names(names, 40)] == [
            "k<&op_silu, float>",
            "k<&op_gelu, float>",
        ]


def test_names_differ_by_what_lies_deep_in_them():
    """Functors within functors, parameters alone, a tile's size in the middle of a Tensile name, another order."""
    unary = "void at::native::vectorized_elementwise_kernel<4, at::native::AUnaryFunctor<float, {}<float> >, int>(int)"
    told = short_names([unary.format(each) for each in ("MulFunctor", "DivFunctor")], 40)
    assert told == ["vectorized…<…, MulFunctor, …>", "vectorized…<…, DivFunctor, …>"]
    tiles = ["Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT{}_MI16x16x1_SN_LDSB1_" + "AFC1_" * 30] * 2
    tiles = [tile.format(size) for tile, size in zip(tiles, ("128x256x32", "256x16x64"), strict=True)]
    assert short_names(tiles, 40) == [
        "Cijk_Alik_Bljk_BBS_BH_Bias…MT128x256x32",
        "Cijk_Alik_Bljk_BBS_BH_Bias…MT256x16x64",
    ]
    for pair in (("scale(float*)", "scale(half*)"), ("k<A<int, long>, 1>", "k<A<long, int>, 1>")):
        for most in (14, 20, 40):
            first, second = short_names(pair, most)
            assert first != second
            assert max(len(first), len(second)) <= most
    four = [unary.replace("<4", f"<{width}").format(f"{each}Functor") for width in (4, 8) for each in ("Mul", "Div")]
    assert len(set(short_names([*four, *four], 40))) == 4


def test_no_name_makes_it_fail():
    """Brackets that do not match, operators, nothing."""
    for name in ("", "<", ">>", "a<b", "operator<<(int)", "f(", "::", "((((", "a b c", "{lambda"):
        assert len(short_name(name, 12)) <= 12


def test_instances_of_a_function_have_one_base_name():
    """By it a kernel is found again whose tile's size, a template argument, changed."""
    assert base_name(ABS) == base_name(LAMBDA) == "vectorized_elementwise_kernel"
    assert base_name("void ns::gemm<128>(int)") == base_name("gemm<64>") == "gemm"
    assert base_name(BATCHED.format("64x64x4")) == base_name(BATCHED.format("128x128x16"))
