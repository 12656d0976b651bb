"""Programs of StableHLO, as JAX 0.10 lowers them: products by hand, loops, refusals."""

from pathlib import Path

import pytest

from meshwright.base.errors import MeshwrightError, SpecError, UnsupportedError
from meshwright.catalog.graphs.programs import read_program
from meshwright.graph.kernels.declared import to_graph
from meshwright.graph.kernels.kernel import Unit

FILES = Path(__file__).parents[2] / "data" / "stablehlo"


def read(name, **sizes):
    """Return the graph of a file."""
    return to_graph(read_program(str(FILES / f"{name}.mlir"), sizes=sizes))


def product_flops(graph):
    return sum(k.flops(graph.sizes) for k in graph.kernels if k.unit is Unit.MATRIX)


@pytest.mark.parametrize(
    ("name", "flops", "parameters"),
    [
        ("mlp", 2 * 2 * 8 * 32 * 64 * 256, 2 * 64 * 256 + 64),
        ("attention", 2 * 4 * 32 * 32 * 32 + 2 * 2 * 2 * 4 * 16 * 16 * 8, 4 * 32 * 32),
        # 3 x 3 x 3 and 3 x 3 x 1 products a point, 16 x 16 and 8 x 8 points, and the head
        (
            "convolutions",
            2 * 4 * (16 * 16 * 8 * 27 + 8 * 8 * 16 * 9 + 16 * 10),
            3 * 3 * 3 * 8 + 3 * 3 * 16 + 160,
        ),
        ("scan", 2 * 12 * 4 * (8 + 16) * 16, 8 * 16 + 16 * 16),  # 12 steps, counted by the file
        ("embedding_step", 3 * 2 * 4 * 8 * 16 * 100, 2 * 16 * 100),  # forward and two gradients
        ("experts", 2 * 24 * (16 * 4 + 2 * 4 * 16 * 32 + 4 * 16), 16 * 4 + 2 * 4 * 16 * 32),
        ("convolution_step", 2 * 2 * 2 * 64 * 6 * 4 * 9, 0),  # forward, gradient of the weight
        ("narrow", 2 * 16 * 32 * 8, 0),
        ("transform", 0, 0),
    ],
)
def test_programs_of_jax_by_hand(name, flops, parameters) -> None:
    graph = read(name)
    assert product_flops(graph) == flops
    assert graph.num_parameters == parameters


def test_a_branch_and_a_loop_without_an_end_take_a_count() -> None:
    with pytest.raises(SpecError, match=r"--dim case.6: runs one of its branches"):
        read("branches")
    one = 2 * 8 * 16 * 16
    assert [product_flops(read("branches", **{"case.6": n})) for n in (1, 2)] == [2 * one, one]
    with pytest.raises(SpecError, match=r"--dim case.6: 3 is no branch \(1 to 2\)"):
        read("branches", **{"case.6": 3})
    with pytest.raises(SpecError, match=r"--dim while.2: runs as often as the data decide"):
        read("open_loop")
    assert product_flops(read("open_loop", **{"while.2": 5})) == 5 * one


HEAD = "func.func @main(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "%0 = stablehlo.frobnicate %arg0 : tensor<4x8xf32>\nreturn %0\n}", "frobnicate"),
        (HEAD.replace("4x8xf32>)", "?x8xf32>)") + "return %arg0\n}", r"\[\?, 8\]"),
        (HEAD + "return %0 : tensor<4x8xf32>\n}", "%0 is used before it is made"),
        (HEAD + "%0 = call @main(%arg0) : (tensor<4x8xf32>) -> tensor<4x8xf32>\nreturn %0\n}",
         "main"),
        (HEAD, "is not closed"),
        ("module {\n}", "holds no function"),
        ("[" * 300, "nested too deep"),
        ("ML\xefR", "cannot be read"),
    ],
)  # fmt: skip
def test_what_is_no_program_is_refused(tmp_path, text, message) -> None:
    path = tmp_path / "net.mlir"
    path.write_text(text)
    with pytest.raises(MeshwrightError, match=message):
        read_program(str(path))


def test_functions_that_call_each_other_do_not_multiply_without_end(tmp_path) -> None:
    """Each of 60 functions calls the next one twice: 2^60 operations."""
    type_of = "(tensor<4x8xf32>) -> tensor<4x8xf32>"
    text = HEAD + f"%0 = call @f0(%arg0) : {type_of}\nreturn %0 : tensor<4x8xf32>\n}}\n"
    for number in range(60):
        text += f"func.func private @f{number}(%a: tensor<4x8xf32>) -> tensor<4x8xf32> {{\n"
        text += f"%0 = call @f{number + 1}(%a) : {type_of}\n"
        text += f"%1 = call @f{number + 1}(%0) : {type_of}\nreturn %1 : tensor<4x8xf32>\n}}\n"
    text += "func.func private @f60(%a: tensor<4x8xf32>) -> tensor<4x8xf32> {\n"
    text += "%0 = stablehlo.add %a, %a : tensor<4x8xf32>\nreturn %0 : tensor<4x8xf32>\n}\n"
    path = tmp_path / "net.mlir"
    path.write_text(text)
    with pytest.raises(SpecError, match="calls more than 100,000 operations"):
        read_program(str(path))


def test_an_unknown_operation_is_named_with_the_known_ones(tmp_path) -> None:
    path = tmp_path / "net.mlir"
    path.write_text(HEAD + "%0 = stablehlo.all_reduce %arg0 : tensor<4x8xf32>\nreturn %0\n}")
    with pytest.raises(UnsupportedError, match=r"all_reduce.*known operators.*dot_general"):
        read_program(str(path))
