'''Audits as tests: what a loss minimizes is checked whenever the tests run.

Installing the package registers a plugin of pytest. A loss that is decorated is a test of every test file in
which its name stands, imported or defined:

    # losses.py
    from kl_companion.testing import minimizes

    @minimizes("token_reverse_kl")
    def kl_penalty(logp, ref_logp, mask):
        """K2: one half of the squared log-ratio."""
        return (0.5 * (logp - ref_logp) ** 2 * mask).sum() / mask.sum()

    # tests/test_losses.py
    from losses import kl_penalty

A file of losses that stays as it is: the line ``minimizes("token_reverse_kl")(kl_penalty)`` in the test file.
A test that builds its loss calls the fixture ``kl_audit`` instead; it returns the `Audit`:

    def test_the_penalty_of_the_trainer(kl_audit):
        trainer = Trainer(beta=0.1)
        found = kl_audit(trainer.kl_penalty, want="token_reverse_kl", roles={"x_logps": "ref_logp"})
        assert found.matches == pytest.approx({"token_reverse_kl": 0.1})

``maximizes`` and the fixture ``kl_audit_update`` do the same for a whole update, with rewards:

    @maximizes("E[R] - 0.04 * sequence_reverse_kl", group_size=8)
    def grpo_loss(logps, old_logps, ref_logps, rewards, mask): ...

Where a loss does not minimize what is wanted, the test fails with the verdict and nothing else; ``pytest -v``
adds every condition. ``pytest -m kl_audit`` runs these tests alone, ``-m "not kl_audit"`` all others, and
``-p no:kl_companion`` leaves the plugin out.
'''

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.testing.expecting import Expected as Expected
    from kl_companion.testing.expecting import maximizes as maximizes
    from kl_companion.testing.expecting import minimizes as minimizes

__getattr__, __all__, __dir__ = lazy(__name__)
