"""Liger's releases: defaults of the newest, older layouts as small planted releases."""

import re

import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.auditing.exact import exactly
from kl_companion.frameworks import setting
from kl_companion.frameworks.installed import Distribution, Unavailable, find, known
from kl_companion.frameworks.liger import grpo, jsd

NEWEST = find(*known("liger"))
FOLDER = "liger_kernel/chunked_loss"

_MOST_LIKELY = """
import torch

class LigerFusedLinearGRPOFunction:
    def rlhf_loss_fn(): ...

class LigerFusedLinearGRPOLoss(torch.nn.Module):
    def __init__(self, beta: float = 0.25, compiled: bool = True, num_generations: int = 1):
        super().__init__()
        self.beta, self.compiled, self.num_generations = beta, compiled, num_generations

    def forward(self, _input, lin_weight, attention_mask, rewards, ref_input=None, ref_weight=None):
        if self.compiled or self.num_generations != len(rewards):
            raise RuntimeError
        p, q = ((x @ w.t()).log_softmax(-1) for x, w in ((_input, lin_weight), (ref_input, ref_weight)))
        best = p.argmax(-1, keepdim=True)
        gap = (q - p).gather(-1, best).squeeze(-1)
        advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        each = self.beta * (gap.exp() - gap - 1) - advantages.unsqueeze(1)
        return (each * attention_mask).sum() / attention_mask.sum(), ()
"""

_TOKEN_BY_TOKEN = """
import torch
from liger_kernel.chunked_loss.base import Base

class LigerFusedLinearJSDFunction(Base):
    @staticmethod
    def distillation_loss_fn(student_logits, teacher_logits, beta=0.5):
        p, q = student_logits.softmax(-1), teacher_logits.softmax(-1)
        return beta * ((p - q) ** 2).sum()

class LigerFusedLinearJSDLoss(torch.nn.Module):
    def __init__(self, weight_hard_loss=0.5, weight_soft_loss=0.5, beta=0.5, compiled=True):
        raise RuntimeError

    def forward(self, student_input, student_weight, teacher_input, teacher_weight, true_labels):
        raise RuntimeError
"""

_BASE = """
class Base:
    @staticmethod
    def _compute_loss(
        student_input_chunk, student_weight, teacher_input_chunk, teacher_weight, target_chunk,
        student_bias=None, teacher_bias=None, distillation_loss_fn=None, full_target=None,
        weight_hard_loss=0.5, weight_soft_loss=0.5, **loss_kwargs,
    ):
        student, teacher = student_input_chunk @ student_weight.t(), teacher_input_chunk @ teacher_weight.t()
        soft = distillation_loss_fn(student, teacher) / full_target.shape[0]
        return weight_soft_loss * soft + weight_hard_loss, ()
"""


def _batch(seed=0):
    problem = prefix_tree(3, 3, seed=seed, eos=True, off_policy=True)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 5, 9]))


def _planted(root, **files):
    (root / FOLDER).mkdir(parents=True)
    for name, text in files.items():
        (root / FOLDER / f"{name}.py").write_text(text, encoding="utf-8")
    return Distribution("liger-kernel", "0.0.7", root)


def test_defaults_are_those_of_the_adapter():
    shipped = grpo(NEWEST, {})
    assert (shipped.beta, shipped.sampled) == (setting("liger.grpo").beta, True)
    for word in ("beta=0.04", "use_bias_correction_kl=False", "importance_sampling_level='token'"):
        assert word in shipped.option
    soft = jsd(NEWEST, {"temperature": 2.0})
    assert (soft.beta, soft.sampled) == (None, False)
    assert soft.option.endswith("(weight_hard_loss=0.5, weight_soft_loss=0.5, beta=0.5, temperature=2.0)")


@pytest.mark.parametrize("ship", [grpo, jsd])
def test_an_option_that_the_release_does_not_have_is_refused(ship):
    with pytest.raises(ValueError, match=r"of liger-kernel 0\.8\.5"):
        ship(NEWEST, {"kl_loss_coef": 1.0})


def test_a_loss_that_is_divided_by_a_length_that_nobody_gave_is_divided_by_the_longest():
    loss = exactly(grpo(NEWEST, {"loss_type": "dr_grpo"}).loss)(_batch())
    whole = exactly(setting("liger.grpo").loss)(_batch())
    assert loss.item() == pytest.approx(whole.item() / _batch().tokens.shape[1], rel=1e-12)


def test_before_sampled_tokens_were_handed_in_the_most_likely_ones_are_taken(tmp_path):
    """Half of each is the same sequence again, so that the standard deviation of rewards exists."""
    shipped = grpo(_planted(tmp_path, grpo_loss=_MOST_LIKELY), {})
    assert (shipped.beta, shipped.sampled) == (0.25, False)
    assert shipped.place.function == "LigerFusedLinearGRPOFunction.rlhf_loss_fn"
    r = _batch()
    p, q = r.logits.log_softmax(-1), r.ref_logits.log_softmax(-1)
    best = p.max(-1)
    ratio = q.gather(-1, best.indices.unsqueeze(-1)).squeeze(-1) - best.values
    kept = [
        (ratio[i, t].exp() - ratio[i, t] - 1).item() for i, t in r.completion_mask.bool().nonzero().tolist()
    ]
    assert shipped.loss(r).item() == pytest.approx(sum(kept) / len(kept), rel=1e-12)
    one = prefix_tree(3, 3, eos=True).rollout(prefix_tree(3, 3, eos=True).logits, torch.tensor([1]))
    assert torch.isfinite(shipped.loss(one))


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_token_by_token_the_loss_is_called_once_and_its_beta_is_what_the_release_does_with_it(tmp_path, beta):
    release = _planted(tmp_path, jsd_loss=_TOKEN_BY_TOKEN, base=_BASE)
    r = _batch()
    squares = (r.logits.softmax(-1) - r.ref_logits.softmax(-1)).square().sum(-1)
    total = sum(squares[i, t].item() for i, t in r.completion_mask.bool().nonzero().tolist())
    loss = jsd(release, {"beta": beta}).loss(r)
    assert loss.item() == pytest.approx(0.5 * total / len(r.tokens), rel=1e-12)


@pytest.mark.parametrize(("ship", "file"), [(grpo, "grpo_loss.py"), (jsd, "jsd_loss.py")])
def test_a_release_without_the_loss_says_so(tmp_path, ship, file):
    with pytest.raises(Unavailable, match=re.escape(f"liger-kernel 0.0.7 has no {file}")) as caught:
        ship(_planted(tmp_path), {})
    assert str(tmp_path) not in str(caught.value)
