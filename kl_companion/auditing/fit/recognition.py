"""Is a loss one of the registered estimators, sample by sample, under another name?"""

from __future__ import annotations

import torch

from kl_companion.auditing.fit.least_squares import short
from kl_companion.auditing.worlds.plan import Samples
from kl_companion.estimators.registry import ESTIMATORS

_TOLERANCE = 1e-10


def recognize(found: Samples | None) -> tuple[str, float] | None:
    """(name, coefficient) of the sampled estimator that has the same value *and* gradient on every sample.

    None if there is none. Two estimators may share an expected gradient; only the same function of the
    sample is recognized.
    """
    if found is None:
        return None
    logp, ref_logp, values, weights = found
    mine = torch.cat([values, weights])
    for entry in ESTIMATORS.values():
        if entry.inputs != "sampled" or entry.name.startswith("kf_plus_plus("):
            continue  # nobody writes Kf++ of another f by chance, and to derive all of them takes seconds
        x = logp.clone().requires_grad_()
        out = entry.fn(x, ref_logp)
        (slope,) = torch.autograd.grad(out.sum(), x)
        theirs = torch.cat([out.detach(), slope])
        factor = (mine @ theirs / (theirs @ theirs)).item()
        if factor != 0 and (mine - factor * theirs).norm() < _TOLERANCE * mine.norm():
            return entry.name, short(factor)
    return None
