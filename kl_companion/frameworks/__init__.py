"""Training frameworks: what their KL terms optimize, and this package's estimators inside their trainers."""
