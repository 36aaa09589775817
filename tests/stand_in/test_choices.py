"""Bounds and choices agree with PyTorch's."""

import pytest

from tests.support.stand_in import agree, both_refuse


@pytest.mark.parametrize(
    "code",
    [
        *(
            "x.clamp(-1, 1)",
            "x.clamp(min=0.5)",
            "torch.clamp(x, max=0.5)",
            "x.clamp(min=row)",
            "ties.clamp(0, 1)",
        ),
        *("x.clamp(min=row, max=column)", "torch.clip(x, 0.0, 2.0)", "x.clamp_min(0.5)", "x.clamp_max(0.5)"),
        *(
            "index.clamp(1, 1)",
            "torch.where(mask, x, y)",
            "torch.where(mask, x, 0.0)",
            "torch.where(x > 0, 1, 0)",
        ),
        *("torch.where(flags, column, row)", "torch.where(mask, 0.0, x.log())", "x.masked_fill(mask, -inf)"),
        *(
            "x.masked_fill(flags, 0)",
            "torch.nonzero(mask)",
            "torch.where(mask)",
            "x.nan_to_num(1.0, 2.0, 3.0)",
        ),
        *(
            "edges.nan_to_num(posinf=5.0)",
            "edges.nan_to_num()",
            "x.nonzero()",
            "x.lerp(y, p)",
            "edges.clamp(-1, 1)",
        ),
    ],
)
def test_bounds_and_choices(code):
    agree(code)


@pytest.mark.parametrize("code", ["x.clamp()", "x.masked_fill(index, 0.0)", "torch.where(mask, x, cube)"])
def test_what_both_refuse(code):
    both_refuse(code)
