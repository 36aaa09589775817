"""How far a policy runs ahead of an anchor that is its moving average: the lag, in small linear algebra.

Near the anchor the gradient of KL(policy || anchor) is F lag, with F the Fisher matrix and lag = policy
weights - anchor weights. A gradient step then takes the lag to (I - lr beta F) lag + lr g, and the
anchor moves once in T = period * inner_steps steps, in one of two orders:

- ``"new"``: after the last step of a cycle, towards the weights that this step has made
  (emapg2026, Algorithm 3);
- ``"old"``: together with the last step of a cycle, towards the weights before it (emapg2026, eq (2)
  and Lemmas 4.1, 4.2, where T = 1).

In an eigenvector of F everything is a number: a = lr * beta * eigenvalue.
"""

from kl_companion.theory.ema.dynamics import (
    LagPath,
    Regime,
    Window,
    lag_matrix,
    regime,
    simulate_lag,
    window,
)
from kl_companion.theory.ema.modes import (
    ORDERS,
    Order,
    lag_factor,
    oscillation_threshold,
    stability_threshold,
)
from kl_companion.theory.ema.steady import MOMENTS, Moment, lag_bound, steady_kl, steady_lag

__all__ = [
    "MOMENTS",
    "ORDERS",
    "LagPath",
    "Moment",
    "Order",
    "Regime",
    "Window",
    "lag_bound",
    "lag_factor",
    "lag_matrix",
    "oscillation_threshold",
    "regime",
    "simulate_lag",
    "stability_threshold",
    "steady_kl",
    "steady_lag",
    "window",
]
