"""A small PyTorch in plain Python: the operations that losses use, with their gradients.

It runs where PyTorch does not, such as in a page of this book. Every operation agrees with PyTorch's in value
and gradient, or says that it is not here.
"""

from __future__ import annotations

from types import ModuleType


def modules() -> dict[str, ModuleType]:
    """`torch`, `torch.nn`, `torch.nn.functional` and the others, by name."""
    from kl_companion.stand_in.namespace import make

    return make()
