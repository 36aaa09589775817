"""New tensors agree with PyTorch's."""

import pytest

from tests.support.stand_in import agree, both_refuse


@pytest.mark.parametrize(
    "code",
    [
        *(
            "torch.zeros(2, 3)",
            "torch.zeros((2,))",
            "torch.ones(size=(2, 2))",
            "torch.full((2, 2), 1.5)",
            "torch.full((2,), 3)",
        ),
        *(
            "torch.zeros(2, dtype=torch.bool)",
            "torch.ones(3, dtype=torch.long)",
            "torch.zeros_like(x)",
            "torch.ones_like(index)",
        ),
        *(
            "torch.ones_like(x, dtype=torch.bool)",
            "torch.full_like(x, 2)",
            "x.new_zeros(2, 2)",
            "x.new_ones((3,))",
            "x.new_full((2,), 7)",
        ),
        *(
            "index.new_tensor([1, 2])",
            "torch.arange(4)",
            "torch.arange(1, 4)",
            "torch.arange(0, 1, 0.25)",
            "torch.arange(5, 0, -2)",
        ),
        *(
            "torch.arange(3, dtype=torch.float64)",
            "torch.arange(3.0)",
            "torch.linspace(-1, 1, 5)",
            "torch.eye(2)",
            "torch.eye(2, 3)",
        ),
        *(
            "torch.tensor([[1, 2], [3, 4]])",
            "torch.tensor(2.5)",
            "torch.tensor([True, False])",
            "torch.tensor([1, 2.5])",
        ),
        *(
            "torch.tensor([])",
            "torch.as_tensor([1.0])",
            "torch.as_tensor(x)",
            "torch.tensor(1, dtype=torch.float64)",
        ),
        *(
            "torch.tensor([x[0, 0].item(), 2.0])",
            "torch.full((), 0.5)",
            "torch.tensor((1, 2)) + 0.5",
            "torch.zeros(0).sum()",
        ),
    ],
)
def test_factories(code):
    agree(code)


@pytest.mark.parametrize(
    "code", ["torch.tensor([[1, 2], [3]])", "torch.tensor('a')", "torch.arange(3).requires_grad_()"]
)
def test_what_both_refuse(code):
    both_refuse(code)
