"""A world with what a check asks of it, by the names of the field; sums are explicit, nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch

from kl_book.ledger.claims.ground import estimates, sequences, sums, worlds
from kl_companion.estimators import get_estimator
from kl_companion.tabular import Problem


class Enumeration(NamedTuple):
    """All answers of one small problem: policy, reference and sampler, enumerated.

    Expectations are over the sampler. ``count`` is the number of answers, ``rows`` that of prefixes.
    """

    problem: Problem

    @property
    def t(self) -> sums.Terms:
        """Log-probs and scores of every token of every answer."""
        return sums.terms(self.problem)

    @property
    def p(self) -> torch.Tensor:
        """Probability of being sampled, [count]."""
        return sums.terms(self.problem).p

    @property
    def pi(self) -> torch.Tensor:
        """Probability of every answer under the policy, [count]."""
        return self.t.logp.sum(-1).exp()

    @property
    def ref(self) -> torch.Tensor:
        """Probability of every answer under the reference, [count]."""
        return self.t.ref_logp.sum(-1).exp()

    @property
    def s(self) -> torch.Tensor:
        """Score of every answer, the gradient of log pi, [count, rows, vocab]."""
        return sums.terms(self.problem).score

    @property
    def l(self) -> torch.Tensor:  # noqa: E743
        """Log-ratio log pi - log pi_ref of every answer, [count]."""
        return sums.log_ratio(self.problem)

    @property
    def R(self) -> torch.Tensor:
        """Reward of every answer, [count]."""
        return self.problem.rewards

    @property
    def rho(self) -> torch.Tensor:
        """Policy over sampler of every answer, [count]."""
        return self.pi / self.p

    @property
    def kl(self) -> float:
        """KL(pi || pi_ref) of answers."""
        return sums.exact(sums.reverse_kl, self.problem)[0]

    @property
    def d_kl(self) -> torch.Tensor:
        """Gradient of `kl`, [rows, vocab]."""
        return sums.exact(sums.reverse_kl, self.problem)[1]

    @property
    def forward(self) -> float:
        """KL(pi_ref || pi) of answers."""
        return sums.exact(sums.forward_kl, self.problem)[0]

    @property
    def d_forward(self) -> torch.Tensor:
        """Gradient of `forward`, [rows, vocab]."""
        return sums.exact(sums.forward_kl, self.problem)[1]

    @property
    def d_square(self) -> torch.Tensor:
        """Gradient of the mean of k2 under the policy, [rows, vocab]."""
        return sums.exact(sums.half_square, self.problem)[1]

    @property
    def d_reward(self) -> torch.Tensor:
        """Gradient of the expected reward, [rows, vocab]."""
        return sums.exact(lambda p, q: (p.exp() * self.R).sum(), self.problem)[1]

    @property
    def log_z(self) -> torch.Tensor:
        """Log of the normalizer of pi_ref e^R."""
        return (self.t.ref_logp.sum(-1) + self.R).logsumexp(0)

    @property
    def log_w(self) -> torch.Tensor:
        """Log of pi* / pi of every answer, where pi* = pi_ref e^R / Z, [count]."""
        return self.R - self.l - self.log_z

    @property
    def d_target(self) -> torch.Tensor:
        """Gradient of KL(pi || pi*), [rows, vocab]."""
        return self.to_target()[1]

    @property
    def d_target_forward(self) -> torch.Tensor:
        """Gradient of KL(pi* || pi), [rows, vocab]."""
        return self.to_target(forward=True)[1]

    def at_target(self, estimate: estimates.Estimate) -> torch.Tensor:
        """The factor of the score in the gradient of an estimate with pi* as its reference, [count]."""
        t = self.t
        return estimates.logp_slope(estimate, t.logp.sum(-1), t.ref_logp.sum(-1) + self.R - self.log_z)

    def to_target(self, *, forward: bool = False) -> tuple[float, torch.Tensor]:
        """KL(pi || pi*), or with its arguments exchanged: value and gradient."""
        z, d = self.log_z, sums.forward_kl if forward else sums.reverse_kl
        return sums.exact(lambda p, q: d(p, q + self.R - z), self.problem)

    def E(self, x: torch.Tensor) -> torch.Tensor:
        """Mean of x [count, ...]."""
        return sums.mean(self.p, x)

    def Es(self, c: torch.Tensor) -> torch.Tensor:
        """Mean of a coefficient [count] times the score, [rows, vocab]."""
        return sums.field(c, self.problem)

    def var(self, x: torch.Tensor) -> float:
        """Variance of x [count, ...], summed over all axes but the first."""
        return sums.variance(self.p, x)

    def value(self, estimator: sums.Formula) -> torch.Tensor:
        """Estimates from whole answers, [count]."""
        return sums.values(estimator, self.problem)

    def bias(self, estimator: sums.Formula) -> float:
        """Mean of an estimate minus `kl`."""
        return float(self.E(self.value(estimator))) - self.kl

    def slope(self, estimator: sums.Formula, *, per_token: bool = False) -> torch.Tensor:
        """Gradient of the estimate of every answer, or of its sum over tokens, [count, rows, vocab]."""
        return sums.differentiated(estimator, self.problem, per_token=per_token)

    def grad(self, estimator: sums.Formula, *, per_token: bool = False) -> torch.Tensor:
        """Mean of `slope`: what differentiating the samples gives, [rows, vocab]."""
        return self.E(self.slope(estimator, per_token=per_token))

    def in_loss(
        self, estimator: sums.Formula, ratio: Literal["attached", "detached"] = "attached"
    ) -> torch.Tensor:
        """Gradient of rho times the estimate of every answer, [count, rows, vocab].

        The sampler is a constant; ``ratio`` says whether the policy in rho carries a gradient.
        """
        fn = get_estimator(estimator).fn if isinstance(estimator, str) else estimator
        leaf = self.t.logp.sum(-1).clone().requires_grad_()
        weight = (leaf - self.p.log()).exp()
        x = (weight if ratio == "attached" else weight.detach()) * fn(leaf, self.t.ref_logp.sum(-1))
        (c,) = torch.autograd.grad(x.sum(), leaf)
        return c[:, None, None] * self.s

    def in_reward(self, estimator: sums.Formula) -> torch.Tensor:
        """Detached estimate times rho and the score of every answer, [count, rows, vocab]."""
        return self.times_score(self.value(estimator))

    def vanilla(self, baseline: float = 0.0) -> torch.Tensor:
        """Log-ratio less a baseline, times the score of every answer, [count, rows, vocab]."""
        return (self.l - baseline)[:, None, None] * self.s

    def times_score(self, c: torch.Tensor) -> torch.Tensor:
        """A coefficient [count] times rho and the score of every answer, [count, rows, vocab]."""
        return (c * self.rho)[:, None, None] * self.s

    def tokens(self, c: torch.Tensor) -> torch.Tensor:
        """Coefficients [count, length] times the scores of tokens, summed, [count, rows, vocab]."""
        return sequences.token_weighted(self.problem, c)

    def cumulative(self) -> torch.Tensor:
        """Scores of tokens times the log-ratios from each token on, summed, [count, rows, vocab]."""
        return self.tokens(sequences.sum_from_here(self.t.log_ratio))

    def partial(self, *, forward: bool = False, visits: torch.Tensor | None = None) -> torch.Tensor:
        """Gradient of the sum of token KLs with the probabilities of prefixes held fixed, [rows, vocab].

        ``visits``: Weights of answers, [count], or of tokens, [count, length]; by default the sampler's.
        """
        theta = self.problem.logits.detach().clone().requires_grad_()
        weight = (self.p if visits is None else visits).reshape(len(self.p), -1)
        along = sequences.token_kls(self.problem, theta, forward=forward)
        return torch.autograd.grad((weight * along).sum(), theta)[0]

    def near(self, bound: float = worlds.BOUND) -> Enumeration:
        """The same world with its policy pulled towards the reference, no log-ratio beyond ``bound``."""
        return Enumeration(worlds.near(self.problem, bound))

    def replace(self, **changes: Any) -> Enumeration:
        """The same world with other logits, reference, sampler or rewards."""
        return self._replace(problem=self.problem._replace(**changes))


def each(*problems: Callable[[], Iterable[Problem]] | Problem) -> Callable[[], Iterator[Enumeration]]:
    """What a check is run over: the worlds of lists of problems, and single ones."""

    def every() -> Iterator[Enumeration]:
        for one in problems:
            yield from (Enumeration(problem) for problem in (one() if callable(one) else (one,)))

    return every


def two(policy: Sequence[float], reference: Sequence[float]) -> Enumeration:
    """A bandit with these probabilities."""
    return Enumeration(worlds.two_policies(policy, reference))


SMALL = two((0.75, 0.25), (0.5, 0.5))  # of worked examples
