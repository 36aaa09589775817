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

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.theory.ema.dynamics import LagPath as LagPath
    from kl_companion.theory.ema.dynamics import Regime as Regime
    from kl_companion.theory.ema.dynamics import Window as Window
    from kl_companion.theory.ema.dynamics import lag_matrix as lag_matrix
    from kl_companion.theory.ema.dynamics import regime as regime
    from kl_companion.theory.ema.dynamics import simulate_lag as simulate_lag
    from kl_companion.theory.ema.dynamics import window as window
    from kl_companion.theory.ema.modes import ORDERS as ORDERS
    from kl_companion.theory.ema.modes import Order as Order
    from kl_companion.theory.ema.modes import lag_factor as lag_factor
    from kl_companion.theory.ema.modes import oscillation_threshold as oscillation_threshold
    from kl_companion.theory.ema.modes import stability_threshold as stability_threshold
    from kl_companion.theory.ema.steady import MOMENTS as MOMENTS
    from kl_companion.theory.ema.steady import Moment as Moment
    from kl_companion.theory.ema.steady import lag_bound as lag_bound
    from kl_companion.theory.ema.steady import steady_kl as steady_kl
    from kl_companion.theory.ema.steady import steady_lag as steady_lag

__getattr__, __all__, __dir__ = lazy(__name__)
