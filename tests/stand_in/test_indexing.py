"""Choices by index, and what is written through them, agree with PyTorch's."""

import pytest

from tests.support.stand_in import agree, both_refuse


@pytest.mark.parametrize(
    "code",
    [
        *(
            "x.gather(1, index)",
            "x.gather(-1, ids)",
            "torch.gather(x, 0, index.clamp(max=1))",
            "x.gather(1, index[:, :2])",
        ),
        *(
            "cube.gather(2, index.clamp(max=1).unsqueeze(-1))",
            "x.index_select(1, places)",
            "x.index_select(0, places)",
        ),
        *(
            "x.take_along_dim(ids, 1)",
            "x.scatter(1, ids, 5.0)",
            "x.scatter(1, ids, column)",
            "x.scatter(1, index[:, :2], y[:, :2])",
        ),
        *(
            "x.scatter_add(1, index, y)",
            "x.index_add(1, places, y)",
            "x.index_add(0, places, torch.stack([row] * 3))",
        ),
        *(
            "x.masked_select(mask)",
            "x.masked_select(flags)",
            "x.triu()",
            "x.tril(-1)",
            "square.triu(1)",
            "x.tril(1)",
        ),
        "x.scatter(1, ids, value=2.0)",
    ],
)
def test_by_index(code):
    agree(code)


@pytest.mark.parametrize(
    "code",
    [
        *(
            "x[0]",
            "x[-1]",
            "x[:, 1]",
            "x[..., -1]",
            "x[:, 1:]",
            "x[:, :-1]",
            "x[::2]",
            "x[None]",
            "x[:, None]",
            "x[0, 1]",
        ),
        *(
            "cube[0, ..., 1]",
            "cube[:, 1, :]",
            "x[mask]",
            "x[:, flags]",
            "x[places]",
            "x[:, places]",
            "x[[0, 1], [2, 0]]",
        ),
        *(
            "x[torch.arange(2), ids[:, 0]]",
            "x[torch.arange(2).unsqueeze(1), index]",
            "cube[places, :, 1]",
            "x[()]",
        ),
        *(
            "cube[:, places, places.clamp(max=1)]",
            "x[torch.tensor(1)]",
            "x[5:]",
            "x[:, 5:1]",
            "row[flags].sum()",
        ),
        *(
            "x[0][1]",
            "x[mask].mean()",
            "(x * y)[mask & (x > 0)]",
            "row[counts.clamp(max=2)]",
            "cube[..., 0][:, 1:]",
        ),
    ],
)
def test_brackets(code):
    agree(code)


@pytest.mark.parametrize(
    "code",
    [
        *("z = x * 1; z[0] = 2.0; z", "z = x.clone(); z[:, 1] = y[:, 1]; z", "z = x + 0; z[mask] = 0.0; z"),
        *(
            "z = x + y; z[:, 0] = row[0]; z * z",
            "z = torch.zeros(2, 3); z[:, 1:] = x[:, 1:]; z",
            "z = x * 2; z += y; z",
        ),
        *(
            "z = x * 2; z *= 3; z",
            "z = x * 2; z -= z; z",
            "z = x + 1; z.mul_(y); z",
            "z = x + 0; z.clamp_(0, 1); z",
        ),
        *(
            "z = x * 1; z.masked_fill_(mask, 0); z",
            "z = torch.zeros(2, 3); z.scatter_(1, ids, column); z",
            "x / 1",
        ),
        *(
            "z = torch.zeros(2, 3); z.scatter_add_(1, index, x); z",
            "z = mask.clone(); z.logical_and_(flags); z",
        ),
        *(
            "z = x * 1; z.zero_(); z",
            "z = x * 1; z.fill_(2); z",
            "z = torch.zeros(2, 3); z.copy_(row); z",
            "x - 0",
        ),
        "z = x * 1; w = z * z; z = z + 1; w + z",
    ],
)
def test_in_place(code):
    agree(code)


@pytest.mark.parametrize(
    "code",
    [
        *("x[2]", "x[0, 0, 0]", "x[:, 3]", "x.gather(1, x)", "x[0] = 1; x", "x.gather(1, index + 1)"),
        *("x.gather(1, places)", "x.add_(1)", "z = index * 1; z += 0.5; z", "z = row * 1; z += x; z"),
    ],
)
def test_what_both_refuse(code):
    both_refuse(code)


@pytest.mark.parametrize(
    "code", ["z = x * 1; w = z[0]; w.mul_(2); z", "z = x * 1; w = z.view(-1); z.add_(1); w"]
)
def test_memory_that_two_tensors_show_is_not_written_to(code):
    with pytest.raises(AttributeError, match="another tensor shows too") as caught:
        agree(code)
    assert "kl-companion audit loss.py:NAME" in str(caught.value)
