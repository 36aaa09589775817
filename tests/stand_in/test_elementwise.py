"""Operations entry by entry agree with PyTorch's."""

import pytest

from tests.support.stand_in import agree, both_refuse

UNARY = (
    *("exp", "expm1", "exp2", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "sigmoid"),
    *("tanh", "sin", "cos", "erf", "abs", "neg", "sign", "square", "relu", "floor", "ceil", "trunc", "round"),
    *("isnan", "isinf", "isfinite", "isneginf", "isposinf", "logical_not", "positive"),
)
ON_EDGES = set(UNARY) - {"sin", "cos"}
BINARY = (
    *(
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "remainder",
        "xlogy",
        "logaddexp",
        "atan2",
        "eq",
        "ne",
    ),
    *("lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_xor"),
)


@pytest.mark.parametrize("name", UNARY)
def test_one_tensor(name):
    agree(f"torch.{name}(x)")
    agree(f"torch.{name}(p)")
    agree(f"torch.{name}(number)")
    if name in ON_EDGES:
        agree(f"torch.{name}(edges)")


@pytest.mark.parametrize("name", ["abs", "neg", "sign", "square", "relu", "exp", "log", "isnan", "sqrt"])
def test_whole_numbers(name):
    agree(f"torch.{name}(index)")


@pytest.mark.parametrize("name", BINARY)
def test_two_tensors(name):
    agree(f"torch.{name}(x, y)")
    agree(f"torch.{name}(p, row)")
    agree(f"torch.{name}(column, row)")
    agree(f"torch.{name}(ties, column)")
    agree(f"torch.{name}(number, p)")
    agree(f"torch.{name}(p, index)")


@pytest.mark.parametrize(
    "code",
    [
        *("x + 1", "1 - x", "2 * x", "x / 3", "1 / p", "x ** 2", "p ** 0.5", "2 ** x", "p ** x", "x ** 0"),
        *(
            "x % 2",
            "x.detach() // 2",
            "-x",
            "+x",
            "abs(x)",
            "x + mask",
            "index + 1",
            "index / 2",
            "index // 2",
        ),
        *("index * 1.5", "index % 2", "index ** 2", "mask + mask", "mask * mask", "mask * x", "True + x"),
        *("x > 0", "x >= row", "0 < x", "x == ties", "x != 0", "index == 1", "mask == True"),
        *("mask & (x > 0)", "mask | flags", "mask ^ flags", "~mask", "index & 1", "~index"),
        *("x.add(y, alpha=2)", "torch.sub(x, y, alpha=0.5)", "x.div(y, rounding_mode='floor')"),
        *("x.div(y, rounding_mode='trunc')", "x.pow(3)", "torch.pow(2, x)", "x.exp().log()"),
        *("edges / 0", "edges * 0", "edges - edges", "torch.exp(edges * 1000)", "p.log() * 0"),
        *("torch.maximum(edges, number)", "torch.minimum(edges, number)", "edges.clamp(-1, 0.5)"),
        *("x.lerp(y, 0.25)", "x.sigmoid() * x.tanh()", "x.true_divide(2)", "torch.xlogy(ties, ties)"),
        *(
            "ties ** 2",
            "ties ** 1.5",
            "ties ** -1",
            "x ** y",
            "torch.isclose(x, y)",
            "torch.isclose(edges, edges, equal_nan=True)",
        ),
    ],
)
def test_operators(code):
    agree(code)


@pytest.mark.parametrize(
    "code", ["x + cube[0, :2]", "x & mask", "~x", "x + 'a'", "x.div(y, rounding_mode='up')", "x % 'a'"]
)
def test_what_both_refuse(code):
    both_refuse(code)


def test_a_slope_that_is_not_here_is_said():
    with pytest.raises(AttributeError, match=r"gradient of torch\.lgamma"):
        agree("torch.lgamma(p)")
    agree("torch.lgamma(p.detach())")
    agree("torch.lgamma(index)")
