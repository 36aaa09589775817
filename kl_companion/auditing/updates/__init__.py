"""Audits of a whole update: rewards, advantages, policy loss and KL together."""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.auditing.updates.advantages import ADVANTAGES as ADVANTAGES
    from kl_companion.auditing.updates.advantages import normalizer as normalizer
    from kl_companion.auditing.updates.audit import audit_update as audit_update
    from kl_companion.auditing.updates.effective import Share as Share
    from kl_companion.auditing.updates.effective import share as share
    from kl_companion.auditing.updates.expected import expected_update as expected_update
    from kl_companion.auditing.updates.expected import expected_updates as expected_updates
    from kl_companion.auditing.updates.recipe import Recipe as Recipe
    from kl_companion.auditing.updates.record import UpdateAudit as UpdateAudit
    from kl_companion.auditing.updates.worlds import equal_rewards as equal_rewards
    from kl_companion.auditing.updates.worlds import prompt as prompt

__getattr__, __all__, __dir__ = lazy(__name__)
