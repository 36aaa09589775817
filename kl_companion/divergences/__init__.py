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

__getattr__, __all__, __dir__ = lazy(__name__)
