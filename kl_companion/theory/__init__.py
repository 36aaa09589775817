"""Derivations: what an estimator's value is, what its gradient weighs, which divergence that descends."""
