"""The picture of the book: where training on K1, K2 and K3 takes a policy of three tokens.

Policies are the points of a triangle whose corners are the first tokens of the example (`example`). Arrows
are steps against the expected gradient of the logits, lines are where such steps lead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kl_book.example import TOKENS, reference

if TYPE_CHECKING:
    from kl_companion.plotting import ThemedFigure

LOSSES = {
    "k1": "K1 in the loss: no gradient",
    "k2": "K2 in the loss: reverse KL",
    "k3": "K3 in the loss: forward KL",
    "k3 reward": "K3 in the reward: to a corner",
}
STARTS = ((0.86, 0.07, 0.07), (0.07, 0.07, 0.86), (0.10, 0.86, 0.04), (0.48, 0.04, 0.48))
PARTS = 9  # arrows start at multiples of a ninth
STEP, STEPS = 0.1, 1500
_CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]], dtype=torch.float64)


def weights(loss: str, policy: torch.Tensor) -> torch.Tensor:
    """The factor of each token's score in the expected gradient, [..., 3].

    Args:
        loss: One of `LOSSES`.
        policy: Probabilities, [..., 3].
    """
    w = reference() / policy
    return {"k1": torch.ones_like(w), "k2": -w.log(), "k3": 1 - w, "k3 reward": w - 1 - w.log()}[loss]


def gradient(loss: str, policy: torch.Tensor) -> torch.Tensor:
    """The expected gradient with respect to the logits, [..., 3]: of a cost, for a KL in the reward."""
    h = weights(loss, policy)
    return policy * (h - (policy * h).sum(-1, keepdim=True))


def paths(loss: str) -> torch.Tensor:
    """The policies that small steps against the expected gradient go through, [steps, starts, 3]."""
    logits = torch.tensor(STARTS, dtype=torch.float64).log()
    found = [logits.softmax(-1)]
    for _ in range(STEPS):
        logits = logits - STEP * gradient(loss, found[-1])
        found.append(logits.softmax(-1))
    return torch.stack(found)


def arrows(loss: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of the triangle and the change of the probabilities there, [points, 3] each."""
    inside = [(i, j, PARTS - i - j) for i in range(1, PARTS) for j in range(1, PARTS - i)]
    points = torch.tensor(inside, dtype=torch.float64) / PARTS
    g = gradient(loss, points)
    return points, -points * (g - (points * g).sum(-1, keepdim=True))


def simplex_figure() -> ThemedFigure:
    """Four triangles: fields and trajectories of K1, K2 and K3 in the loss, and of K3 in the reward.

    Raises:
        ImportError: Matplotlib or seaborn is missing (extra ``plots``).
    """
    from kl_companion.plotting import figure

    return figure(
        _draw,
        rows=2,
        columns=2,
        size=(7.4, 6.6),
        alt=(
            "Four triangles of policies over three tokens. K1 in the loss moves no policy, K2 and K3 in the "
            "loss lead every start to the reference by different routes, K3 in the reward leads to a corner."
        ),
        caption=(
            "Training on the KL term alone, on average. Each point is a policy over three first tokens; the "
            "ring is the reference, arrows are expected steps, and lines lead from four starts (dots) to "
            "where training ends (squares). K1 in the loss goes nowhere. K2 and K3 in the loss reach the "
            "reference by different routes, because they minimize different divergences. K3 in the reward "
            "drives tokens out."
        ),
    )


def _draw(axes: Any) -> None:
    from kl_companion.plotting import color

    for axis, (loss, title) in zip(axes, LOSSES.items(), strict=True):
        shade = color("k3" if loss == "k3 reward" else loss)
        axis.plot(*torch.cat([_CORNERS, _CORNERS[:1]]).T.tolist(), color="0.6", linewidth=1)
        points, steps = arrows(loss)
        longest = steps.norm(dim=-1).max().item()
        if longest > 1e-9:
            flat = [(points @ _CORNERS).T.tolist(), (steps @ _CORNERS).T.tolist()]
            axis.quiver(*flat[0], *flat[1], color="0.6", angles="xy", width=0.004, scale=9 * longest)
        for line in (paths(loss)[::3] @ _CORNERS).transpose(0, 1):
            axis.plot(*line.T.tolist(), color=shade, linewidth=2)
            axis.plot(*line[0].tolist(), "o", color=shade, markersize=5)
            axis.plot(*line[-1].tolist(), "s", color=shade, markersize=6)
        axis.plot(*(reference() @ _CORNERS).tolist(), "o", mfc="none", mec="0.45", markersize=12, mew=2)
        beside = ((-0.05, -0.06), (0.05, -0.06), (0.09, 0.0))
        for corner, token, (dx, dy) in zip(_CORNERS.tolist(), TOKENS, beside, strict=True):
            axis.text(corner[0] + dx, corner[1] + dy, token, ha="center", va="center", fontsize=11)
        axis.set_title(title, fontsize=11)
        axis.set_aspect("equal")
        axis.set_axis_off()
