"""What checks share: worlds and sums over them, estimators and divergences written out, printed tables.

No check is registered here; each module says what it holds.
"""
