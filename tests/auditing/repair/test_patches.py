"""The reader's own function, changed: it passes the audit in its own names and its own reduction."""

import subprocess
import types
from pathlib import Path
from typing import Optional

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.reading.subject import as_loss
from kl_companion.auditing.repair.strengths import CLOSE, near, ratio
from tests.support.patched import patched
from tests.support.warm import command

LATE = 0.3


def per_token(log_probs, ref_log_probs):
    """K3."""
    log_w = ref_log_probs - log_probs
    return log_w.exp() - 1 - log_w


def typed(log_probs: Optional[torch.Tensor], ref_log_probs, beta: float = LATE):  # noqa: UP045
    log_w = ref_log_probs - log_probs
    return beta * (log_w.exp() - 1 - log_w)


def per_answer(logps, ref_logps, completion_mask):
    log_w = ref_logps - logps
    return ((log_w.exp() - 1 - log_w) * completion_mask).sum(-1)


def token_mean(logp, ref_logp, response_mask):
    log_w = ref_logp - logp
    kl = log_w.exp() - 1 - log_w
    return 0.04 * (kl * response_mask).sum() / response_mask.sum()


def answer_mean(logp, ref_logp, mask):
    log_w = ref_logp - logp
    return (((log_w.exp() - 1 - log_w) * mask).sum(-1) / mask.sum(-1)).mean()


def answers(logp, teacher_logp, mask):
    log_w = teacher_logp - logp
    return ((log_w.exp() - 1 - log_w) * mask).sum(-1).mean()


def summed(logp, ref_logp, mask):
    log_w = ref_logp - logp
    return ((log_w.exp() - 1 - log_w) * mask).sum()


def padded(logp, ref_logp, mask):
    log_w = ref_logp - logp
    return ((log_w.exp() - 1 - log_w) * mask).mean()


def of_stale(logp, ref_logp, old_logp, mask):
    log_w = ref_logp - logp
    return ((log_w.exp() - 1 - log_w) * mask).sum() / mask.sum()


def whole(logp, ref_logp, mask):
    log_w = ((ref_logp - logp) * mask).sum(-1)
    return 0.5 * (log_w.exp() - 1 - log_w).mean()


def whole_each(logp, ref_logp, mask):
    log_w = ((ref_logp - logp) * mask).sum(-1)
    return log_w.exp() - 1 - log_w


def nothing(logp, ref_logp, mask):
    kl = logp - ref_logp
    return 0.1 * (kl * mask).sum() / mask.sum()


CASES = (
    per_token, typed, per_answer, token_mean, answer_mean, answers, summed, padded, of_stale, whole,
    whole_each, nothing,
)  # fmt: skip


def applied(loss, remedy):
    """The loss of this file with a patch applied."""
    module = types.ModuleType("patched")
    exec(patched({"": Path(__file__).read_text(encoding="utf-8")}, "", remedy)[""], vars(module))
    return getattr(module, loss.__name__)


def batch(size, seed):
    """Arguments of any loss here: lengths 1 to 5 of 7, log-probs that differ by about ``size``."""
    g = torch.Generator().manual_seed(seed)
    logp = -torch.rand(4, 7, generator=g, dtype=torch.float64) - 0.5
    ref = logp + size * torch.randn(4, 7, generator=g, dtype=torch.float64)
    mask = (torch.arange(7) < torch.tensor([[1], [5], [2], [4]])).double()
    return logp, ref, mask


def called(loss, size=1e-3, seed=0, **options):
    logp, ref, mask = batch(size, seed)
    logp.requires_grad_()
    names = list(loss.__code__.co_varnames[: loss.__code__.co_argcount])
    roles = {"ref": ref, "teacher": ref, "mask": mask, "beta": None, "old": logp.detach(), "log": logp}
    passed = {}
    for name in names:
        value = next(v for n, v in roles.items() if n in name)
        if value is not None:
            passed[name] = value
    return loss(**passed, **options), logp, ref, mask


REDUCED = {
    per_token: lambda kl, mask: kl,
    typed: lambda kl, mask: LATE * kl,
    per_answer: lambda kl, mask: (kl * mask).sum(-1),
    token_mean: lambda kl, mask: 0.04 * (kl * mask).sum() / mask.sum(),
    answer_mean: lambda kl, mask: ((kl * mask).sum(-1) / mask.sum(-1)).mean(),
    answers: lambda kl, mask: (kl * mask).sum(-1).mean(),
    summed: lambda kl, mask: (kl * mask).sum(),
    padded: lambda kl, mask: (kl * mask).sum() / mask.numel(),
    of_stale: lambda kl, mask: (kl * mask).sum() / mask.sum(),
    nothing: lambda kl, mask: 0.1 * (kl * mask).sum() / mask.sum(),
}


@pytest.mark.parametrize("divergence", ["reverse_kl", "pearson"])
@pytest.mark.parametrize("loss", CASES)
def test_a_change_passes_the_audit_and_keeps_reduction_and_coefficient(loss, divergence):
    found = audit(loss, scale=1.0, off_policy=False, want=divergence)
    assert found.met is False
    changed = applied(loss, found.remedy)
    again = audit(changed, scale=1.0, off_policy=False, want=divergence)
    assert again.met is (loss is not answer_mean)
    assert ("mean over each answer stays" in found.remedy) is (loss is answer_mean)
    assert again.reading.result == found.reading.result
    assert again.main.sums == found.main.sums
    out, logp, ref, mask = called(changed)
    x = logp - ref
    if loss in REDUCED:
        wanted = REDUCED[loss](x**2 / 2, mask)
    else:
        total = (x * mask).sum(-1) ** 2 / 2
        wanted = 0.5 * total.mean() if loss is whole else total
    assert out.shape == wanted.shape
    torch.testing.assert_close(out, wanted, rtol=1e-2, atol=0)
    if divergence == "reverse_kl":
        torch.testing.assert_close(out, wanted, rtol=1e-9, atol=0)
        gradients = (torch.autograd.grad(y.sum(), logp, retain_graph=True)[0] for y in (out, wanted))
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=0)


def over_padded(logp, ref_logp, response_mask, beta=0.001):
    kl = ref_logp - logp
    return ((torch.exp(kl) - kl - 1) * response_mask).sum() / response_mask.shape[-1] * beta


def per_answer_k1(logp, ref_logp, mask, beta=0.1):
    return beta * (((logp - ref_logp) * mask).sum(-1) / mask.sum(-1)).mean()


def scaled_twice(logp, ref_logp, mask, beta=0.02):
    diff = 3.0 * beta * (torch.exp(ref_logp - logp) - 1 - (ref_logp - logp))
    return (diff * mask).sum(1).mean(0)


def over_batch(logp, ref_logp, mask, beta=0.5):
    log_w = (ref_logp - logp).clamp(-20, 20)
    per_token_kl = torch.exp(log_w) - log_w - 1
    return beta * torch.sum(per_token_kl * mask) / (mask.shape[0] * 64)


def with_entropy_of_answers(logp, ref_logp, advantages, mask, beta=0.3):
    gain = logp * advantages.unsqueeze(-1)
    kl = logp - ref_logp
    return ((beta * kl - gain) * mask).sum(-1).mean()


KEPT = {
    over_padded: lambda x, mask, beta: (x**2 / 2 * mask).sum() / mask.shape[-1] * beta,
    per_answer_k1: lambda x, mask, beta: beta * ((x**2 / 2 * mask).sum(-1) / mask.sum(-1)).mean(),
    scaled_twice: lambda x, mask, beta: 3 * beta * (x**2 / 2 * mask).sum(-1).mean(),
    over_batch: lambda x, mask, beta: beta * (x**2 / 2 * mask).sum() / (mask.shape[0] * 64),
}


@pytest.mark.parametrize("loss", KEPT)
def test_beta_and_every_divisor_stay(loss):
    found = audit(loss, scale=1.0, off_policy=False, want="reverse_kl")
    changed = applied(loss, found.remedy)
    for beta in (0.1, 7.0):
        for size in (1e-3, 2.0):
            out, logp, ref, mask = called(changed, size, beta=beta)
            torch.testing.assert_close(out, KEPT[loss](logp - ref, mask, beta), rtol=1e-9, atol=0)
    out.backward()


def absolute(logp, ref_logp, mask, beta=0.2):
    return beta * ((logp - ref_logp).abs() * mask).sum(-1).mean()


def test_of_a_term_that_is_no_divergence_near_the_reference_no_multiple_is_said():
    remedy = audit(absolute, scale=1.0, off_policy=False, want="reverse_kl").remedy
    assert remedy.startswith("# near the reference your term does not shrink as a KL does")
    assert " times as strong" not in remedy


@pytest.mark.parametrize("factor", [0.01, 1.0, 3.0, 500.0])
def test_a_change_of_strength_is_said(factor):
    scope = {}
    exec(  # the factor stands inside of what is replaced, so that it is lost
        f"def loss(logp, ref_logp, mask):\n"
        f"    kl = {factor} * (ref_logp - logp).expm1() - {factor} * (ref_logp - logp)\n"
        "    return (kl * mask).sum(-1).mean()\n",
        scope,
    )
    mine, k1, k2, k3 = (near(as_loss(x), CLOSE) for x in (scope["loss"], "k1", "k2", "k3"))
    assert ratio(mine, k3) == pytest.approx(factor, rel=1e-6)
    assert ratio(k2, mine) == pytest.approx(1 / factor, rel=0.02)
    assert ratio(mine, k1) == pytest.approx(factor, rel=0.02)


def test_beside_rewards_one_line_is_changed_and_beta_stays():
    found = audit(with_entropy_of_answers, scale=1.0, off_policy=False, want="reverse_kl")
    for beta in (0.3, 2.0):
        changed = applied(with_entropy_of_answers, found.remedy)
        again = audit(changed, scale=1.0, off_policy=False, want="reverse_kl", options={"beta": beta})
        assert again.met
        assert again.matches == pytest.approx({"expected_reward": -1.0, "token_reverse_kl": beta})


def test_where_the_mean_over_each_answer_is_the_difference_no_patch_is_printed():
    def each(logp, ref_logp, mask):
        return ((0.5 * (logp - ref_logp) ** 2 * mask).sum(-1) / mask.sum(-1)).mean()

    found = audit(each, scale=1.0, off_policy=False)
    assert found.remedy.startswith("# no patch: on answers of one length it is what was meant.")
    assert all(x.startswith("# ") for x in found.remedy.splitlines())


@torch.no_grad()
def estimate(log_probs, ref_log_probs, kind="k3"):
    log_w = ref_log_probs - log_probs
    return {"k2": 0.5 * log_w**2, "k3": log_w.exp() - log_w - 1}[kind]


def through_k2(logp, ref_logp, advantages, mask, beta=0.01):
    kl = estimate(logp, ref_logp, "k2")
    return ((beta * kl - logp * advantages[:, None]) * mask).sum(-1).mean()


def through_k3(logp, ref_logp, advantages, mask, beta=0.01):
    kl = estimate(logp, ref_logp)
    kl = (kl * mask).sum(-1) / mask.sum(-1)
    return beta * kl.mean() - ((logp * advantages[:, None]) * mask).sum(-1).mean()


def test_a_decorator_that_takes_the_gradient_away_is_the_cause_and_comes_off():
    found = audit(through_k2, scale=1.0, off_policy=False, want="reverse_kl")
    cause, gone, definition, *_ = found.remedy.splitlines()
    assert cause == "# @torch.no_grad() on estimate takes its gradient away."
    assert gone == "- @torch.no_grad()"
    assert definition.startswith("def estimate(")
    assert not [x for x in found.remedy.splitlines() if x.startswith("+ ")]


def test_where_taking_it_off_is_not_enough_both_are_changed_and_the_cause_is_said():
    found = audit(through_k3, scale=1.0, off_policy=False, want="reverse_kl")
    assert found.remedy.startswith("# @torch.no_grad() on estimate takes its gradient away.")
    changed = applied(through_k3, found.remedy)
    logp, ref, mask = batch(0.5, 1)
    logp.requires_grad_()
    for beta in (0.01, 3.0):
        out = changed(logp, ref, torch.zeros(4, dtype=torch.float64), mask, beta)
        wanted = beta * ((((logp - ref) ** 2 / 2) * mask).sum(-1) / mask.sum(-1)).mean()
        torch.testing.assert_close(out, wanted)
        gradients = (torch.autograd.grad(y, logp, retain_graph=True)[0] for y in (out, wanted))
        torch.testing.assert_close(*gradients)


def test_with_stale_samples_the_ratio_stays():
    found = audit(of_stale, scale=1.0, off_policy=True, want="reverse_kl")
    assert "rho = (logp - old_logp).exp().detach()" in found.remedy
    assert audit(applied(of_stale, found.remedy), scale=1.0, off_policy=True, want="reverse_kl").met


class Trainer:
    def compute(self, logp, ref_logp):
        d = ref_logp - logp
        return d.exp() - 1 - d


def test_a_method_is_changed_in_its_own_name():
    found = audit(Trainer.compute, scale=1.0, off_policy=False, want="reverse_kl")
    assert found.remedy.startswith("class Trainer:\n    def compute(self, logp, ref_logp):\n")


def with_reward(logp, ref_logp, advantages, mask):
    log_w = ref_logp - logp
    kl = log_w.exp() - 1 - log_w
    return ((0.1 * kl - advantages[:, None] * logp) * mask).sum(-1).mean()


def of_logits(logits, ref_logits, mask):
    p, q = logits.log_softmax(-1), ref_logits.log_softmax(-1)
    return ((q.exp() * (q - p)).sum(-1) * mask).sum(-1).mean()


def on_one_line(logp, ref_logp): return (ref_logp - logp).exp() - 1 - (ref_logp - logp)  # fmt: skip


def test_a_function_of_one_line_is_changed_in_it():
    found = audit(on_one_line, scale=1.0, off_policy=False)
    *_, line = found.remedy.splitlines()
    assert line == "+ def on_one_line(logp, ref_logp): return 0.5 * (logp - ref_logp) ** 2  # fmt: skip"


HANDED = {"made": lambda logp, ref_logp: (ref_logp - logp).exp() - 1 - (ref_logp - logp)}


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (of_logits, "# your own lines are not changed here: "),
        (HANDED["made"], "# a lambda has no lines of its own"),
    ],
)
def test_what_is_no_single_term_with_a_source_gets_a_function_instead(loss, why):
    found = audit(loss, scale=1.0, off_policy=False, want="reverse_kl")
    assert found.met is False
    assert found.remedy.startswith(why)
    assert "def remedy(logp, ref_logp, behavior_logp)" in found.remedy


def late(logits, ref_logits, input_ids, rewards, mask):
    new, old = (
        x[:, :-1].log_softmax(-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1) for x in (logits, ref_logits)
    )
    log_w = old - new
    cost = rewards[:, None] * new
    penalty = log_w.exp() - 1 - log_w
    return ((0.1 * penalty - cost) * mask[:, 1:]).sum(-1).mean()


@pytest.mark.parametrize(
    ("loss", "diff"),
    [
        (with_reward, "- kl = log_w.exp() - 1 - log_w\n+ kl = 0.5 * (logp - ref_logp) ** 2"),
        (late, "- penalty = log_w.exp() - 1 - log_w\n+ penalty = 0.5 * (new - old) ** 2"),
    ],
)
def test_in_a_whole_update_one_line_is_changed_and_the_reward_is_left(loss, diff):
    found = audit(loss, scale=1.0, off_policy=False, want="reverse_kl")
    changes = [x for x in found.remedy.splitlines() if x.startswith(("- ", "+ "))]
    assert "\n".join(f"{x[:2]}{x[2:].strip()}" for x in changes) == diff


def test_the_command_line_prints_a_patch_that_runs(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def masked_mean(x, mask): return (x * mask).sum(-1) / mask.sum(-1)\n"
        "def kl_loss(logp, ref_logp, mask, kl_coef=0.005):\n"
        "    kl = torch.exp(ref_logp - logp) - (ref_logp - logp) - 1\n"
        "    kl = masked_mean(kl, mask).mean()\n"
        "    return kl_coef * kl\n"
    )
    audited = ["-m", "kl_companion.cli", "audit", "mine.py:kl_loss", "--want", "reverse_kl"]
    done = subprocess.run(
        [*command(), *audited], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    changes = [x[4:].strip() for x in done.stdout.splitlines() if x.startswith(("  - ", "  + "))]
    assert changes == [
        "kl = torch.exp(ref_logp - logp) - (ref_logp - logp) - 1",
        "kl = 0.5 * (logp - ref_logp) ** 2",
    ]
