"""The estimators' numbers and gradients at the size of a real vocabulary, from logits or hidden states."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.kernels.fused import fused_f_divergence as fused_f_divergence
    from kl_companion.kernels.fused import fused_forward_kl as fused_forward_kl
    from kl_companion.kernels.fused import fused_kl as fused_kl
    from kl_companion.kernels.fused import fused_logp as fused_logp
    from kl_companion.kernels.fused import fused_logp_and_entropy as fused_logp_and_entropy
    from kl_companion.kernels.fused import fused_top_k_f_divergence as fused_top_k_f_divergence
    from kl_companion.kernels.linear import linear_f_divergence as linear_f_divergence
    from kl_companion.kernels.linear import linear_forward_kl as linear_forward_kl
    from kl_companion.kernels.linear import linear_kl as linear_kl
    from kl_companion.kernels.linear import linear_logp as linear_logp
    from kl_companion.kernels.linear import linear_logp_and_entropy as linear_logp_and_entropy
    from kl_companion.kernels.linear import linear_top_k_f_divergence as linear_top_k_f_divergence

__getattr__, __all__, __dir__ = lazy(__name__)
