"""The claims of Wang and Zhang, "Choosing KL Estimators in RL"."""

from kl_book.ledger.claims.wang2025choosing import (  # noqa: F401 - importing a section registers its checks
    centering,
    directions,
    gradients,
    rewards,
    values,
    variances,
)
