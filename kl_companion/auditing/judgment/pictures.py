"""The verdict in a notebook: the card, and the loss's arrows on the simplex of three tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kl_companion.auditing.judgment import card
from kl_companion.auditing.worlds.objectives import OBJECTIVES, field
from kl_companion.tabular.populations import Population, large_batches
from kl_companion.tabular.worlds import Problem

if TYPE_CHECKING:
    from kl_companion.auditing.judgment.verdict import Audit
    from kl_companion.plotting import ThemedFigure

PARTS = 12  # policies of the grid have probabilities in multiples of a twelfth
REFERENCE = (0.5, 0.3, 0.2)
_CORNERS = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.5, 3**0.5 / 2]], dtype=torch.float64)


def html(audit: Audit) -> str:
    """The card and, where it can be drawn, the picture, as HTML for a notebook."""
    text = card.html(audit)
    try:
        return text + figure(audit)._repr_mimebundle_()["text/html"]
    except (ImportError, ValueError):
        return text


def figure(audit: Audit) -> ThemedFigure:
    """Where one step on the expected gradient takes a policy of three tokens, beside what was meant.

    Arrows are changes of probabilities on fresh samples without rewards; all of one color have one scale.

    Raises:
        ValueError: the loss does not run on answers of one token, or has no gradient without rewards there;
            it is of likeliest tokens, beside which three tokens leave no rest.
        ImportError: Matplotlib or seaborn is missing (extra ``plots``).
    """
    from kl_companion.plotting import color
    from kl_companion.plotting import figure as drawn

    if audit.head:
        raise ValueError(
            f"{audit.name} is of the {audit.head} likeliest tokens, expected a loss of all: it has "
            "no picture on three tokens"
        )
    meant = audit.compared
    points, mine, theirs = arrows(audit.loss_fn, meant)
    what = OBJECTIVES[meant].short
    headline = audit.headline

    def draw(axes: Any) -> None:
        corners = torch.cat([_CORNERS, _CORNERS[:1]])
        axes.plot(*corners.T.tolist(), color="0.6", linewidth=1)
        axes.plot(*reference_point().tolist(), "o", color=color("reference"), label="reference")
        for steps, name, said in (
            (theirs, meant.partition("_")[2], what),
            (mine, "policy", f"{audit.name} ({headline})"),
        ):
            longest = steps.norm(dim=-1).max().clamp_min(1e-12)
            axes.quiver(
                *points.T.tolist(),
                *(steps / longest / 9).T.tolist(),
                color=color(name),
                angles="xy",
                scale_units="xy",
                scale=1,
                width=0.006,
                label=said,
            )
        for (cx, cy), token in zip(_CORNERS.tolist(), "abc", strict=True):
            axes.annotate(
                token, (cx, cy), xytext=(0, 6 if cy else -16), textcoords="offset points", ha="center"
            )
        axes.set_aspect("equal")
        axes.axis("off")
        axes.legend(loc="upper left", fontsize=10)

    alt = f"Triangle of policies over three tokens: arrows of {audit.name} beside those of {what}."
    return drawn(draw, alt=alt, size=(5.6, 4.6))


def reference_point() -> torch.Tensor:
    """Where the reference lies in the plane, [2]."""
    return torch.tensor(REFERENCE, dtype=torch.float64) @ _CORNERS


def arrows(loss_fn: Any, meant: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return points of the simplex in the plane, with steps of a loss and of an objective; [points, 2] each.

    Raises:
        ValueError: the loss does not run on one token.
    """
    triples = []
    for a in range(1, PARTS - 1):
        for b in range(1, PARTS - a):
            place = bandit_of(torch.tensor([a, b, PARTS - a - b]))
            p = place.problem.logits.exp()[0]
            fields = large_batches(loss_fn, place).gradient[0], field(OBJECTIVES[meant], place.problem)[0]
            steps = [-p * (f - (p * f).sum()) for f in fields]  # of the probabilities, by softmax
            triples.append(torch.stack([p, *steps]) @ _CORNERS)
    points, mine, theirs = torch.stack(triples).unbind(1)
    return points, mine, theirs


def bandit_of(counts: torch.Tensor) -> Population:
    """Answers of one token, drawn as often as ``counts`` says, without rewards."""
    tokens, zeros = torch.arange(len(counts)), torch.zeros(len(counts), dtype=torch.float64)
    problem = Problem(
        logits=(counts.double() / counts.sum()).log().unsqueeze(0),
        ref_logits=torch.tensor([REFERENCE], dtype=torch.float64).log(),
        behavior_logits=None,
        sequences=tokens.unsqueeze(-1),
        completion_mask=1 + zeros.unsqueeze(-1),
        rows=torch.zeros_like(tokens).unsqueeze(-1),
        rewards=zeros,
    )
    return Population(problem, tokens.repeat_interleave(counts))
