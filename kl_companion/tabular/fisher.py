"""The Fisher matrix of an enumerated policy: exact, for the table of logits or for any parameters of it."""

from __future__ import annotations

import torch

from kl_companion.checks import check_floating
from kl_companion.tabular.scores import world
from kl_companion.tabular.worlds import Problem


def _own(problem: Problem, logits: torch.Tensor | None) -> tuple[Problem, torch.Tensor]:
    """The world sampled by its policy, whose scores the Fisher matrix averages, and that policy."""
    if problem.logits.ndim != 2:
        raise ValueError(f"got a stack of {len(problem.logits)} worlds, expected one world")
    theta = (problem.logits if logits is None else logits).detach().double()
    if theta.shape != problem.logits.shape:
        raise ValueError(
            f"logits has shape {list(theta.shape)}, expected {list(problem.logits.shape)} like the problem's"
        )
    return problem._replace(behavior_logits=None), theta


def visits(problem: Problem, logits: torch.Tensor | None = None) -> torch.Tensor:
    """Probability that the policy comes to each prefix, [rows].

    Raises:
        ValueError: a stack of worlds, or logits of another shape.
    """
    own, theta = _own(problem, logits)
    weight = own.probabilities(theta).unsqueeze(-1) * own.completion_mask
    return weight.new_zeros(len(theta)).index_add(0, own.rows.flatten(), weight.flatten())


def fisher_matrix(problem: Problem, logits: torch.Tensor | None = None) -> torch.Tensor:
    """E[s s^T] over whole sequences of the policy, s = gradient of log pi by the logits.

    Prefixes do not share parameters and the scores of different tokens are uncorrelated, so the matrix is
    block diagonal: for each prefix its probability times (diag p - p p^T). A behavior policy is ignored.

    Args:
        problem: One world.
        logits: The policy, [rows, vocab]; the problem's own by default.

    Returns:
        [rows * vocab, rows * vocab] float64.

    Raises:
        ValueError: a stack of worlds, or logits of another shape.

    Source: emapg2026, section 3.
    """
    _, theta = _own(problem, logits)
    p = theta.softmax(-1)
    blocks = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    return torch.block_diag(*(visits(problem, theta)[:, None, None] * blocks))


def fisher_bound(problem: Problem, logits: torch.Tensor | None = None) -> float:
    """E|s|^2 over whole sequences of the policy: the trace of `fisher_matrix`, at least its eigenvalues.

    Arguments and errors as `fisher_matrix`.

    Source: emapg2026, eq (28).
    """
    at = world(*_own(problem, logits))
    return at.mean(at.norm.sum(-1)).item()


def pulled_back(fisher: torch.Tensor, jacobian: torch.Tensor) -> torch.Tensor:
    """The Fisher matrix in other parameters: J^T F J, [d, d] float64.

    Args:
        fisher: In the logits, [m, m].
        jacobian: Of the flattened logits by the parameters, [m, d].

    Raises:
        ValueError: shapes that do not go together.
    """
    f, j = _pair(fisher, jacobian)
    return j.mT @ f @ j


def pulled_back_spectrum(fisher: torch.Tensor, jacobian: torch.Tensor) -> torch.Tensor:
    """Eigenvalues of `pulled_back` from the largest down, [m]; with d > m the others are 0.

    It costs an eigenvalue problem of the size of the logits, however many parameters there are.

    Raises:
        ValueError: as `pulled_back`.
    """
    half = _half(fisher, jacobian)
    return torch.linalg.eigvalsh(half @ half.mT).flip(0).clamp(min=0.0)


def stiffest(fisher: torch.Tensor, jacobian: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The largest eigenvalue of `pulled_back` and its unit eigenvector, [d].

    Raises:
        ValueError: as `pulled_back`, or a matrix without a positive eigenvalue.
    """
    half = _half(fisher, jacobian)
    sizes, modes = torch.linalg.eigh(half @ half.mT)
    if not sizes[-1] > 0:
        raise ValueError("fisher has no positive eigenvalue in these parameters, expected one")
    direction = half.mT @ modes[:, -1]
    return sizes[-1].item(), direction / direction.norm()


def _half(fisher: torch.Tensor, jacobian: torch.Tensor) -> torch.Tensor:
    """H with J^T F J = H^T H, [m, d]."""
    f, j = _pair(fisher, jacobian)
    sizes, modes = torch.linalg.eigh(f)
    return (modes * sizes.clamp(min=0.0).sqrt()).mT @ j


def _pair(fisher: torch.Tensor, jacobian: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    check_floating("fisher", fisher)
    check_floating("jacobian", jacobian)
    if fisher.ndim != 2 or fisher.shape[0] != fisher.shape[1]:
        raise ValueError(f"fisher has shape {list(fisher.shape)}, expected [m, m]")
    if jacobian.ndim != 2 or jacobian.shape[0] != fisher.shape[0]:
        raise ValueError(
            f"jacobian has shape {list(jacobian.shape)}, expected [{fisher.shape[0]}, d] like fisher"
        )
    return fisher.detach().double(), jacobian.detach().double()
