"""f-divergences: the registry of f in SymPy, and functions of tensors that are compiled from it."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.divergences.compiled import Entries as Entries
    from kl_companion.divergences.compiled import edges_of as edges_of
    from kl_companion.divergences.compiled import entries_of as entries_of
    from kl_companion.divergences.compiled import function_of_log as function_of_log
    from kl_companion.divergences.compiled import generator_of_log as generator_of_log
    from kl_companion.divergences.compiled import stable_generator as stable_generator
    from kl_companion.divergences.compiled import stable_slope as stable_slope
    from kl_companion.divergences.compiled import terms_of_log as terms_of_log
    from kl_companion.divergences.compiled import torch_function as torch_function
    from kl_companion.divergences.forms import T as T
    from kl_companion.divergences.forms import W as W
    from kl_companion.divergences.forms import tidy as tidy
    from kl_companion.divergences.generator import SUPPORT as SUPPORT
    from kl_companion.divergences.generator import Divergence as Divergence
    from kl_companion.divergences.generator import make_divergence as make_divergence
    from kl_companion.divergences.in_torch import printed as printed
    from kl_companion.divergences.registry import DIVERGENCES as DIVERGENCES
    from kl_companion.divergences.registry import FAMILIES as FAMILIES
    from kl_companion.divergences.registry import amari_alpha as amari_alpha
    from kl_companion.divergences.registry import generalized_jensen_shannon as generalized_jensen_shannon
    from kl_companion.divergences.registry import get_divergence as get_divergence
    from kl_companion.divergences.registry import inverse_slope as inverse_slope
    from kl_companion.divergences.registry import power_divergence as power_divergence
    from kl_companion.divergences.registry import register_divergence as register_divergence
    from kl_companion.divergences.registry import skewed_forward_kl as skewed_forward_kl
    from kl_companion.divergences.registry import skewed_reverse_kl as skewed_reverse_kl
    from kl_companion.divergences.registry import swapped as swapped

_NAMES: dict[str, str] = {
    "Entries": "kl_companion.divergences.compiled",
    "edges_of": "kl_companion.divergences.compiled",
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
    "SUPPORT": "kl_companion.divergences.generator",
    "Divergence": "kl_companion.divergences.generator",
    "T": "kl_companion.divergences.forms",
    "W": "kl_companion.divergences.forms",
    "amari_alpha": "kl_companion.divergences.registry",
    "get_divergence": "kl_companion.divergences.registry",
    "inverse_slope": "kl_companion.divergences.registry",
    "make_divergence": "kl_companion.divergences.generator",
    "power_divergence": "kl_companion.divergences.registry",
    "register_divergence": "kl_companion.divergences.registry",
    "generalized_jensen_shannon": "kl_companion.divergences.registry",
    "skewed_forward_kl": "kl_companion.divergences.registry",
    "skewed_reverse_kl": "kl_companion.divergences.registry",
    "swapped": "kl_companion.divergences.registry",
    "tidy": "kl_companion.divergences.forms",
}
__getattr__, __all__, __dir__ = lazy(__name__, _NAMES)
