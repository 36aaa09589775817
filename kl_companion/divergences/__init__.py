"""f-divergences: the registry of f in SymPy, and functions of tensors that are compiled from it."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.divergences.compiled import Entries as Entries
    from kl_companion.divergences.compiled import entries_of as entries_of
    from kl_companion.divergences.compiled import function_of_log as function_of_log
    from kl_companion.divergences.compiled import generator_of_log as generator_of_log
    from kl_companion.divergences.compiled import stable_generator as stable_generator
    from kl_companion.divergences.compiled import stable_slope as stable_slope
    from kl_companion.divergences.compiled import terms_of_log as terms_of_log
    from kl_companion.divergences.compiled import torch_function as torch_function
    from kl_companion.divergences.in_torch import printed as printed
    from kl_companion.divergences.registry import DIVERGENCES as DIVERGENCES
    from kl_companion.divergences.registry import FAMILIES as FAMILIES
    from kl_companion.divergences.registry import SUPPORT as SUPPORT
    from kl_companion.divergences.registry import Divergence as Divergence
    from kl_companion.divergences.registry import T as T
    from kl_companion.divergences.registry import W as W
    from kl_companion.divergences.registry import amari_alpha as amari_alpha
    from kl_companion.divergences.registry import get_divergence as get_divergence
    from kl_companion.divergences.registry import inverse_slope as inverse_slope
    from kl_companion.divergences.registry import make_divergence as make_divergence
    from kl_companion.divergences.registry import power_divergence as power_divergence
    from kl_companion.divergences.registry import register_divergence as register_divergence
    from kl_companion.divergences.registry import swapped as swapped
    from kl_companion.divergences.registry import tidy as tidy

_NAMES: dict[str, str] = {
    "Entries": "kl_companion.divergences.compiled",
    "entries_of": "kl_companion.divergences.compiled",
    "function_of_log": "kl_companion.divergences.compiled",
    "generator_of_log": "kl_companion.divergences.compiled",
    "stable_generator": "kl_companion.divergences.compiled",
    "stable_slope": "kl_companion.divergences.compiled",
    "terms_of_log": "kl_companion.divergences.compiled",
    "torch_function": "kl_companion.divergences.compiled",
    "printed": "kl_companion.divergences.in_torch",
    "DIVERGENCES": "kl_companion.divergences.registry",
    "FAMILIES": "kl_companion.divergences.registry",
    "SUPPORT": "kl_companion.divergences.registry",
    "Divergence": "kl_companion.divergences.registry",
    "T": "kl_companion.divergences.registry",
    "W": "kl_companion.divergences.registry",
    "amari_alpha": "kl_companion.divergences.registry",
    "get_divergence": "kl_companion.divergences.registry",
    "inverse_slope": "kl_companion.divergences.registry",
    "make_divergence": "kl_companion.divergences.registry",
    "power_divergence": "kl_companion.divergences.registry",
    "register_divergence": "kl_companion.divergences.registry",
    "swapped": "kl_companion.divergences.registry",
    "tidy": "kl_companion.divergences.registry",
}
__getattr__, __all__, __dir__ = lazy(__name__, _NAMES)
