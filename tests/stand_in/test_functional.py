"""`torch.nn.functional` agrees with PyTorch's."""

import pytest

from tests.support.stand_in import agree, both_refuse

TWO = ("mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss")


@pytest.mark.parametrize(
    "code",
    [
        *(
            "F.log_softmax(x, dim=-1)",
            "F.softmax(x, 0)",
            "F.logsigmoid(x)",
            "F.sigmoid(x)",
            "F.softplus(x * 20)",
        ),
        *("F.relu(x)", "F.tanh(x)", "F.logsigmoid(edges)", "F.softplus(edges)", "F.one_hot(index)"),
        *("F.one_hot(ids, 4)", "F.normalize(x)", "F.normalize(x, p=1, dim=0)", "F.pad(x, (1, 2))"),
        *(
            "F.pad(x, (0, -1, 1, 0), value=3.0)",
            "F.pad(index, (0, 1), value=0)",
            "F.dropout(x, 0.1, training=False)",
        ),
    ],
)
def test_functions(code):
    agree(code)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum", "batchmean"])
def test_kl_div(reduction):
    agree(f"F.kl_div(x.log_softmax(-1), p, reduction='{reduction}')")
    agree(f"F.kl_div(x.log_softmax(-1), y.log_softmax(-1), reduction='{reduction}', log_target=True)")
    agree(f"F.kl_div(x, torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.5, 0.0]]), reduction='{reduction}')")


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(reduction):
    for name in TWO:
        agree(f"F.{name}(x, y, reduction='{reduction}')")
    agree(f"F.smooth_l1_loss(x, y, beta=0.5, reduction='{reduction}')")
    agree(f"F.huber_loss(x, y, delta=2.0, reduction='{reduction}')")
    agree(f"F.binary_cross_entropy_with_logits(x, p, reduction='{reduction}')")
    agree(f"F.cross_entropy(x, places[:2], reduction='{reduction}')")
    agree(f"F.cross_entropy(x, p, reduction='{reduction}')")
    agree(f"F.cross_entropy(x, torch.tensor([-100, 2]), reduction='{reduction}')")
    agree(f"F.cross_entropy(cube, index[:, :2], reduction='{reduction}')")
    agree(f"F.nll_loss(x.log_softmax(-1), ids[:, 0], ignore_index=0, reduction='{reduction}')")
    agree(f"F.nll_loss(row, places[0], reduction='{reduction}')")


@pytest.mark.parametrize("code", ["F.mse_loss(x, y, reduction='half')", "F.one_hot(index, 2)"])
def test_what_both_refuse(code):
    both_refuse(code)


@pytest.mark.parametrize(
    "code", ["F.cross_entropy(x, p, label_smoothing=0.1)", "F.dropout(x)", "F.pad(x, (1, 1), mode='reflect')"]
)
def test_what_is_not_here_is_said(code):
    with pytest.raises(NotImplementedError, match="does not run in this page"):
        agree(code)
