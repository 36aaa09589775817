"""Policy-gradient losses that are KL estimators, and what they are made of."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.policy_losses.clip_mask import ppo_mask as ppo_mask
    from kl_companion.policy_losses.corrections import Mismatch as Mismatch
    from kl_companion.policy_losses.corrections import confident_cap as confident_cap
    from kl_companion.policy_losses.corrections import correction_weight as correction_weight
    from kl_companion.policy_losses.corrections import mismatch as mismatch
    from kl_companion.policy_losses.corrections import trust_region_mask as trust_region_mask
    from kl_companion.policy_losses.decomposition import Decomposition as Decomposition
    from kl_companion.policy_losses.decomposition import decompose as decompose
    from kl_companion.policy_losses.partition import PARTITIONS as PARTITIONS
    from kl_companion.policy_losses.partition import Partition as Partition
    from kl_companion.policy_losses.partition import PartitionName as PartitionName
    from kl_companion.policy_losses.partition import log_partition as log_partition
    from kl_companion.policy_losses.target_losses import DIRECTIONS as DIRECTIONS
    from kl_companion.policy_losses.target_losses import Direction as Direction
    from kl_companion.policy_losses.target_losses import SequenceEstimator as SequenceEstimator
    from kl_companion.policy_losses.target_losses import Weight as Weight
    from kl_companion.policy_losses.target_losses import apa_loss as apa_loss
    from kl_companion.policy_losses.target_losses import f_policy_loss as f_policy_loss
    from kl_companion.policy_losses.target_losses import reinforce_loss as reinforce_loss
    from kl_companion.policy_losses.target_losses import rwr_loss as rwr_loss
    from kl_companion.policy_losses.target_losses import target_loss as target_loss

__getattr__, __all__, __dir__ = lazy(__name__)
