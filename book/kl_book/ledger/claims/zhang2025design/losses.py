"""Sections 3 and 4, tables 1 to 4, appendices D to F, K and L: objectives and losses (zhang2025design)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, observed, printed, same
from kl_book.ledger.claims.ground import rpg_losses as rpg
from kl_book.ledger.claims.ground import unnormalized as measures
from kl_book.ledger.claims.ground.errors import apart, relative, turned
from kl_book.ledger.claims.ground.rpg_losses import DIFFERENTIABLE, WEIGHTS, stopped_loss
from kl_book.ledger.claims.ground.sums import exact
from kl_book.ledger.claims.ground.unnormalized import BETA, DIVERGENCES, OldMeasure
from kl_book.ledger.claims.ground.updates import utility_gradient
from kl_book.ledger.claims.standard import TOLERANCE

VALUES: dict[str, Callable[[OldMeasure], torch.Tensor]] = {
    "UFKL": lambda x: x.w * x.R + BETA * x.log_w - BETA * x.w + BETA,
    "URKL": lambda x: x.w * x.R - BETA * x.w * x.log_w - BETA + BETA * x.w,
    "FKL": lambda x: x.w * x.R + BETA * x.log_w,
    "RKL": lambda x: x.w * x.R - BETA * x.w * x.log_w,
}


def value(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """An objective is Z E of its printed integrand over the normalized old measure."""
    yield same(x.mass * x.E(VALUES[divergence](x)), x.objective(divergence)(x.logp))


def value_of_the_reverse_objective(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """KL(policy, old) = E_old[w log w], and J = E_old[wR - beta w log w]."""
    yield same(x.E(x.w * x.log_w), x.divergence("RKL"))
    yield from value(divergence, x)


def divergence_in_the_loss(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """Without rewards Z E[loss] is beta times the divergence; the printed URKL lacks beta Z."""
    for logp, there in (
        (x.logp, x.divergence(divergence)),
        (x.free, DIVERGENCES[divergence](x.free, x.log_old)),
    ):
        loss = DIFFERENTIABLE[divergence](logp, (logp - x.log_old).exp(), torch.zeros_like(x.R))
        missing = x.mass * BETA if divergence == "URKL" else 0.0
        yield same(x.mass * x.E(loss) + missing, BETA * there)


def gradient(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """A printed gradient is that of J, of softmax policies and of a density without a norm."""
    weight = WEIGHTS[divergence]
    yield same(x.Es(x.mass * weight(x.w, x.R)), x.d_objective(divergence))
    by_item = x.log_old.exp() * weight((x.free - x.log_old).exp(), x.R)
    yield same(by_item, measures.slopes(x.objective(divergence), x.free))


def with_a_baseline(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """Z w A is the weight, and a constant baseline in A changes no expected gradient."""
    for b in (0.0, rpg.BASELINE):
        yield same(x.Es(x.mass * x.w * rpg.ADVANTAGES[divergence](x.w, x.R - b)), x.d_objective(divergence))


def loss(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """The gradient of Z_old E[loss], differentiated as printed, is minus that of J, of both as well."""
    yield printed(x.loss_error(DIFFERENTIABLE[divergence], divergence))
    by_item = measures.slopes(lambda logp: x.mass * x.mean_loss(DIFFERENTIABLE[divergence], logp), x.free)
    yield same(by_item, -measures.slopes(x.objective(divergence), x.free))


def stopped(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """-Z_old E[SG(weight) log pi] has minus the gradient of J."""
    yield printed(x.loss_error(stopped_loss(divergence), divergence))


def sample_by_sample(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """Both losses of every objective have minus the weight times the score as their gradients, that of -J."""
    detached = x.slope(stopped_loss(divergence))
    yield same(detached, x.scored(-WEIGHTS[divergence](x.w, x.R)))
    yield same(x.mass * x.slope(DIFFERENTIABLE[divergence]), x.mass * detached)
    yield from stopped(divergence, x)


def without_the_mass(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """Without the factor Z the gradient is that of the objective divided by Z."""
    yield same(x.grad(stopped_loss(divergence)), -x.d_objective(divergence) / x.mass)


for names, checks in {
    ("UFKL",): {
        "RPG-rem3.3-value": divergence_in_the_loss,
        "RPG-D-forward": divergence_in_the_loss,
        "RPG-K2-J": value,
        "RPG-eq3.1": gradient,
        "RPG-prop3.2-loss": loss,
        "RPG-tab1-UFKL": loss,
        "RPG-tab2-UFKL": stopped,
    },
    ("URKL",): {
        "RPG-rem3.7-value": divergence_in_the_loss,
        "RPG-K4-J": value,
        "RPG-eq3.3": gradient,
        "RPG-3.3-A-URKL": with_a_baseline,
        "RPG-prop3.6-loss": loss,
        "RPG-tab1-URKL": loss,
        "RPG-tab2-URKL": stopped,
    },
    ("FKL",): {
        "RPG-eqE.1": value,
        "RPG-propE.1-grad": gradient,
        "RPG-propE.1-loss": loss,
        "RPG-propF.1": stopped,
    },
    ("RKL",): {
        "RPG-eqE.2": value_of_the_reverse_objective,
        "RPG-propE.3-grad": gradient,
        "RPG-3.3-A-RKL": with_a_baseline,
        "RPG-propE.3-loss": loss,
        "RPG-propF.4": stopped,
    },
    ("UFKL", "URKL"): {"RPG-prop4.1": stopped, "RPG-L-Z": without_the_mass},
    tuple(DIVERGENCES): {"RPG-abs-equivalence": sample_by_sample, "RPG-eqF.1": sample_by_sample},
}.items():
    for id, check in checks.items():
        claim(id, over=partial(measures.each_divergence, *names))(check)


@claim("RPG-def3.1", over=measures.measured)
def divergences_of_measures(x: OldMeasure) -> Iterator[Found]:
    """Both are positive, 0 for equal measures alone, and the KL where both measures have mass 1."""
    z, mass, old = x.mass, x.logp.exp().sum(), x.log_old
    yield same(-z * x.E(x.log_w) + mass - z, x.divergence("UFKL"))
    yield same(x.logp.exp() @ x.log_w + z - mass, x.divergence("URKL"))
    for name, normal in (("UFKL", "FKL"), ("URKL", "RKL")):
        yield less(0.0, x.divergence(name))
        yield same(DIVERGENCES[name](old, old), 0.0)
        yield less(0.0, float(DIVERGENCES[name](old + 0.1, old)))
        if z == 1:
            yield same(x.divergence(name), x.divergence(normal))


@claim("RPG-rem3.3-mass", over=measures.measured)
def a_policy_cannot_match_the_total_mass(x: OldMeasure) -> Iterator[Found]:
    """The least divergence has a policy of mass 1; the mass of the old measure is a factor of beta alone."""
    there = x._replace(problem=x.problem._replace(logits=x.problem.sampled_from))  # of the old shape
    mass, old = float(there.logp.exp().sum()), x.log_old
    if apart(there.d_divergence("UFKL"), 0.0) <= TOLERANCE:  # the least divergence of a policy
        missed = abs(mass - x.mass) / x.mass
        yield observed(missed=missed)
        yield printed(missed)
    yield same(measures.slopes(lambda logp: DIVERGENCES["UFKL"](logp, old), old), 0.0, "inside")
    yield same(x.Es(-x.mass * BETA * (x.w - 1)), -BETA * x.mass * x.d_divergence("FKL"), "corrected")
    if x.mass == 1:
        yield observed(noise=x.var(x.scored(x.w - 1)) / x.var(x.s))
    yield observed(mass=x.mass)
    yield numbers(mass=mass)


@claim("RPG-def3.4-mass", over=measures.measured)
def mass_correction_of_the_reverse_divergence(x: OldMeasure) -> Iterator[Found]:
    """Sum of pi_old - pi over all sequences = Z_old minus the mass of pi, with pi_old = Z_old times p."""
    for logp in (x.logp, x.free):
        yield same(x.mass * x.mean_loss(lambda _, w, r: 1 - w, logp), x.mass - logp.exp().sum())


@claim("RPG-rem3.5", "RPG-D-reverse", over=measures.measured)
def mean_of_k3_at_the_old_measure(x: OldMeasure) -> Iterator[Found]:
    """E[k3(pi_old / pi)] over samples of pi is UKL(pi || pi_old), as a function of the policy."""
    old = x.log_old

    def mean_k3(logp: torch.Tensor) -> torch.Tensor:
        y = (old - logp).exp()
        return logp.exp() @ (y - 1 - y.log())

    yield same(mean_k3(x.logp), x.divergence("URKL"))
    yield same(exact(lambda logp, _: mean_k3(logp), x.problem)[1], x.d_divergence("URKL"))
    yield same(mean_k3(x.free), DIVERGENCES["URKL"](x.free, old))


@claim("RPG-rem3.7-scaling", over=measures.normalized)
def the_unnormalized_reverse_scaling_is_shorter(x: OldMeasure) -> Iterator[Found]:
    """R - beta log w has one operation less than R - beta (log w + 1), and the same mean gradient."""
    r, beta, log_w = sympy.symbols("R beta log_w")
    short, long = (sympy.count_ops(x) for x in (r - beta * log_w, r - beta * (log_w + 1)))
    yield less(float(short), float(long), by=1.0)
    one, other = (WEIGHTS[name](x.w, x.R) for name in ("URKL", "RKL"))
    yield same(x.Es(one), x.d_objective("RKL"))
    yield same(x.Es(other), x.d_objective("RKL"))
    yield same(one - other, BETA * x.w)
    yield observed(x.var(x.scored(one)) / x.var(x.scored(other)))
    yield numbers(beta=BETA)


@claim("RPG-K-gradw", over=measures.normalized)
def derivative_of_the_ratio(x: OldMeasure) -> Iterator[Found]:
    """grad w = w score, grad log w = score, of every sequence."""
    old = x.log_old

    def ratio(logits: torch.Tensor) -> torch.Tensor:
        return (x.problem.token_logp(logits).sum(-1) - old).exp()

    slope = torch.autograd.functional.jacobian(ratio, x.problem.logits.detach(), vectorize=True)
    yield same(slope, x.scored(x.w))
    yield same(slope / x.w[:, None, None], x.s)
    yield same(x.E(x.R[:, None, None] * slope), utility_gradient(x.problem))


@claim("RPG-4-minusJ", over=measures.each_divergence)
def losses_are_minus_the_objective_up_to_constants(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """L + J is one number at two policies, for all four divergences."""
    loss, objective = DIFFERENTIABLE[divergence], x.objective(divergence)
    other = x.problem.token_logp(x.problem.ref_logits).sum(-1)
    here, there = (x.mass * x.mean_loss(loss, logp) + objective(logp) for logp in (x.logp, other))
    yield same(here, there)
    if divergence in ("UFKL", "RKL"):
        yield same(here, 0.0)
    yield printed(x.loss_error(loss, divergence))


@claim("RPG-prop3.6-Z", over=measures.measured)
def the_total_mass_in_front_only_scales(x: OldMeasure) -> Iterator[Found]:
    """With w unchanged, leaving Z_old out of the front gives the same gradient over Z_old."""
    loss, target = DIFFERENTIABLE["URKL"], x.d_objective("URKL")
    yield same(x.grad(loss), -target / x.mass)
    yield printed(turned(-x.grad(loss), target))
    there = -x.mass * x.mean_loss(loss, x.logp) - BETA * x.mass
    yield same(there, x.objective("URKL")(x.logp))


@claim("RPG-K2-constant", over=measures.measured)
def the_minus_one_of_the_loss(x: OldMeasure) -> Iterator[Found]:
    """Without it L is beta Z away from -J, and its gradient is the same for every sample."""

    def without(logp: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        return -w * r + BETA * (w - w.log())

    gap = x.mass * x.mean_loss(without, x.logp) + x.objective("UFKL")(x.logp)
    yield same(gap, BETA * x.mass)
    yield differs(gap, 0.0)
    yield same(x.coefficients(without), x.coefficients(DIFFERENTIABLE["UFKL"]))


@claim("RPG-remE.2", over=measures.normalized)
def without_a_reward_it_is_maximum_likelihood(x: OldMeasure) -> Iterator[Found]:
    """With R = 0 the gradient of J is beta times that of the mean log-likelihood of the old samples."""
    silent = OldMeasure(x.problem._replace(rewards=torch.zeros_like(x.R)))
    yield same(silent.d_objective("FKL"), BETA * silent.Es(torch.ones_like(x.R)))


@claim("RPG-4-sg", over=measures.each_divergence)
def what_leaks_without_the_stop_gradient(divergence: str, x: OldMeasure) -> Iterator[Found]:
    """The derivative of the weight times log pi is added, and is zero in no world."""
    target = -x.d_objective(divergence)
    leaking = x.mass * x.grad(lambda logp, w, r: -WEIGHTS[divergence](w, r) * logp)
    yield differs(leaking, target)
    yield from stopped(divergence, x)
    yield observed(relative(leaking, target))
