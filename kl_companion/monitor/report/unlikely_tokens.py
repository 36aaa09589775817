"""Tokens that the policy cannot have sampled: what an estimator makes of them says nothing against it."""

from __future__ import annotations

import math

import torch

from kl_companion.estimators.registry import ESTIMATORS, get_estimator
from kl_companion.monitor.largest_tokens import LargeToken
from kl_companion.monitor.observation import Observation
from kl_companion.monitor.report.run_folder import MonitoredRun
from kl_companion.monitor.report.verdicts import is_finite

LEVEL = 1e-3  # by chance a token is called no sample of the policy in at most one of so many runs
LARGEST_VOCABULARY = 2**18  # where a run does not say its own
_EXPLAINED = 0.2  # of the logged number, that may differ from what the tokens make of it


def unlikely_tokens(run: MonitoredRun) -> dict[int, LargeToken]:
    """Return the tokens that are no sample of the policy, by step, of each step the least likely one.

    Of N samples one has, by chance, with a probability of at most

    * N V p a token of probability p or less, with V tokens in the vocabulary;
    * N exp(-L) a log-ratio of -L or less: the policy has exp(-L) of what the reference has on such tokens;
    * 1 / z^2 an estimate that is z standard errors away from its expectation (Chebyshev), where the logged
      number is the estimate of the tokens that were kept.
    """
    n = sum(row.tokens for row in run.observations)
    log_vocabulary = math.log(run.settings.get("vocabulary") or LARGEST_VOCABULARY)
    least = math.log(LEVEL / 3) - math.log(max(n, 1))
    by_step = {}
    for row in run.observations:
        tokens = [t for t in run.tokens.get(row.step, ()) if not math.isnan(t.logp)]
        unlikely = [t for t in tokens if min(t.logp + log_vocabulary, t.log_ratio) <= least]
        if not unlikely and _is_their_deviation(run, row):
            unlikely = [t for t in tokens if t.log_ratio < 0]
        if unlikely:
            by_step[row.step] = min(unlikely, key=lambda t: t.logp)
    return by_step


def _is_their_deviation(run: MonitoredRun, row: Observation) -> bool:
    """Whether the logged number is the estimate of these tokens, too far from its expectation for chance."""
    share, logged, expected = share_of_tokens(run, row), row.logged, row.logged_expected
    if share is None or not (is_finite(logged) and is_finite(expected) and is_finite(row.logged_error)):
        return False
    rest = logged - share * logged - expected
    far = math.sqrt(len(run.observations) / (LEVEL / 3)) * (row.logged_error or math.inf)
    return abs(rest) <= _EXPLAINED * abs(logged) and abs(logged - expected) >= far


def share_of_tokens(run: MonitoredRun, row: Observation) -> float | None:
    """Return the share of the logged number that the kept tokens make, by the estimator's own formula."""
    named, tokens = run.settings.get("estimator"), run.tokens.get(row.step, ())
    if named not in ESTIMATORS or not tokens or not row.logged:
        return None
    entry = get_estimator(named)
    if entry.inputs != "sampled":
        return None
    pairs = [(t.logp, t.ref_logp) for t in tokens if math.isfinite(t.logp) and math.isfinite(t.ref_logp)]
    if not pairs:
        return None
    logp, ref_logp = torch.tensor(pairs, dtype=torch.float64).T
    return float(entry.fn(logp, ref_logp).sum()) / (row.tokens * row.logged)
