"""Losses of distillation as textbooks and trainers write them, in plain PyTorch, are named by the audit."""

import math

import pytest
import torch
import torch.nn.functional as F

from kl_companion import audit, prefix_tree
from kl_companion.auditing.reading.text import FunctionText
from kl_companion.auditing.worlds.objective import field, value
from kl_companion.auditing.worlds.truncations import NextToken

HOT = 2.5
NAMED = {"off_policy": False, "scale": 1.0}


def textbook_kd(student_logits, teacher_logits, mask, T=2.0):
    teacher = F.softmax(teacher_logits / T, -1)
    kl = F.kl_div(F.log_softmax(student_logits / T, -1), teacher, reduction="none").sum(-1)
    return (kl * mask).sum(-1).mean() * T**2


def soft_cross_entropy(student_logits, teacher_logits, mask, tau=4.0):
    soft = -(F.softmax(teacher_logits / tau, -1) * F.log_softmax(student_logits / tau, -1)).sum(-1)
    return (soft * mask).sum() / mask.sum()


def reverse_at_a_global_temperature(student_logits, teacher_logits, mask):
    student, teacher = (F.log_softmax(x / HOT, -1) for x in (student_logits, teacher_logits))
    return ((student.exp() * (student - teacher)).sum(-1) * mask).sum(-1).mean()


def temperature_that_is_nowhere(student_logits, teacher_logits, mask):
    scale = sum([0.2, 0.2]) + 0.17  # 1 / 0.57
    student, teacher = (F.log_softmax(x * scale, -1) for x in (student_logits, teacher_logits))
    return ((teacher.exp() * (teacher - student)).sum(-1) * mask).sum(-1).mean()


def mixed(student_logits, teacher_logits, beta):
    student, teacher = (F.log_softmax(x, -1) for x in (student_logits, teacher_logits))
    stacked = torch.stack([student + math.log(1 - beta), teacher + math.log(beta)])
    middle = torch.logsumexp(stacked, dim=0)
    of_teacher = F.kl_div(middle, teacher, reduction="none", log_target=True).sum(-1)
    of_student = F.kl_div(middle, student, reduction="none", log_target=True).sum(-1)
    return beta * of_teacher + (1 - beta) * of_student


def generalized_jsd(student_logits, teacher_logits, mask, beta=0.9):
    return (mixed(student_logits, teacher_logits, beta) * mask).sum(-1).mean()


def generalized_jsd_hot(student_logits, teacher_logits, mask, beta=0.7, temperature=3.0):
    each = mixed(student_logits / temperature, teacher_logits / temperature, beta)
    return (each * mask).sum(-1).mean()


def jsd(student_logits, teacher_logits, mask, temperature=1.5):
    each = mixed(student_logits / temperature, teacher_logits / temperature, 0.5)
    return (each * mask).sum(-1).mean() * temperature**2


def share_that_is_nowhere(student_logits, teacher_logits, mask):
    return (mixed(student_logits, teacher_logits, 2 / 7) * mask).sum(-1).mean()


def skewed_forward(student_logits, teacher_logits, mask, lam=0.1):
    student, teacher = F.softmax(student_logits, -1), F.softmax(teacher_logits, -1)
    return -((teacher * (lam * teacher + (1 - lam) * student).log()).sum(-1) * mask).sum(-1).mean()


def skewed_reverse(student_logits, teacher_logits, mask, lam=0.2):
    student, teacher = F.softmax(student_logits, -1), F.softmax(teacher_logits, -1)
    middle = (1 - lam) * teacher + lam * student
    return ((student * (student.log() - middle.log())).sum(-1) * mask).sum(-1).mean()


@pytest.mark.parametrize(
    ("loss", "objective", "coefficient"),
    [
        (textbook_kd, "token_forward_kl_at_temperature_2", 4.0),
        (soft_cross_entropy, "token_forward_kl_at_temperature_4", 1.0),
        (reverse_at_a_global_temperature, "token_reverse_kl_at_temperature_2.5", 1.0),
        (temperature_that_is_nowhere, "token_forward_kl_at_temperature_100/57", 1.0),
        (generalized_jsd, "token_generalized_jensen_shannon(0.9)", 1.0),
        (generalized_jsd_hot, "token_generalized_jensen_shannon(0.7)_at_temperature_3", 1.0),
        (jsd, "token_jensen_shannon_at_temperature_1.5", 2.25),
        (share_that_is_nowhere, "token_generalized_jensen_shannon(2/7)", 1.0),
        (skewed_forward, "token_skewed_forward_kl(0.1)", 1.0),
        (skewed_reverse, "token_skewed_reverse_kl(0.2)", 1.0),
    ],
)
def test_losses_of_distillation(loss, objective, coefficient):
    found = audit(loss, scale=1.0)
    assert len(found.findings) == 4
    for finding in found.findings:
        assert [list(m) for m in finding.matches] == [[objective]]
        assert finding.matches[0][objective] == pytest.approx(coefficient, rel=1e-6)


def test_the_card_says_the_temperature():
    text = str(audit(textbook_kd, **NAMED))
    assert "textbook_kd minimizes 4 x forward KL at temperature 2, next token." in text
    assert "generalized Jensen-Shannon divergence (0.9), next token" in str(audit(generalized_jsd, **NAMED))


def test_a_name_says_the_direction_and_not_the_temperature():
    found = audit(jsd, **NAMED)
    assert found.meant[1] == "jensen_shannon"
    assert found.as_meant is True


def test_what_was_wanted_may_be_a_member_of_a_family():
    assert audit(generalized_jsd, want="generalized_jensen_shannon(0.9)", **NAMED).met is True
    assert audit(generalized_jsd, want="generalized_jensen_shannon(0.8)", **NAMED).met is False
    assert audit(skewed_forward, want="skewed_kl(0.1)", **NAMED).met is True


def test_beside_the_likelihood_of_old_samples():
    def loss(student_logits, teacher_logits, labels, mask, T=4.0, alpha=0.3):
        teacher = F.softmax(teacher_logits / T, -1)
        kl = F.kl_div(F.log_softmax(student_logits / T, -1), teacher, reduction="none").sum(-1) * T**2
        hard = -F.log_softmax(student_logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
        return ((alpha * kl + (1 - alpha) * hard) * mask).sum(-1).mean()

    for finding in audit(loss, off_policy=True, scale=1.0).findings:
        wanted = {"token_forward_kl_at_temperature_4": 4.8, "behavior_log_likelihood": -0.7}
        assert finding.matches[0] == pytest.approx(wanted, rel=1e-6)


def test_a_mean_over_each_answer():
    def loss(student_logits, teacher_logits, mask, T=2.0):
        student, teacher = (F.log_softmax(x / T, -1) for x in (student_logits, teacher_logits))
        kl = (student.exp() * (student - teacher)).sum(-1)
        return ((kl * mask).sum(-1) / mask.sum(-1)).mean()

    found = audit(loss, **NAMED)
    assert found.main.matches == ({"sampled_mean_reverse_kl_at_temperature_2": pytest.approx(1.0)},)


@pytest.mark.parametrize(
    "weight",
    [lambda p, q: (p - q) ** 4, lambda p, q: q.exp().detach() * (p - q) ** 2, lambda p, q: p.exp() ** 3 * q],
)
def test_other_losses_stay_without_a_name(weight):
    def loss(student_logits, teacher_logits, mask, T=2.0):
        student, teacher = (F.log_softmax(x / T, -1) for x in (student_logits, teacher_logits))
        return (weight(student, teacher).sum(-1) * mask).sum(-1).mean()

    assert audit(loss, **NAMED).headline == "unnamed"


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("kind", ["forward_kl", "generalized_jensen_shannon", "skewed_reverse_kl"])
def test_values_and_fields_of_objectives(kind, temperature):
    problem = prefix_tree(3, 2, seed=3, eos=True)
    theta = problem.logits.clone().requires_grad_()
    share = 0.0 if kind == "forward_kl" else 0.2
    member = NextToken(kind, share, temperature, mean=True)
    total = torch.zeros((), dtype=torch.float64)
    for i, sequence in enumerate(problem.sequences):
        length, probability, inside = int(problem.completion_mask[i].sum()), 1.0, 0.0
        for t in range(length):
            row = problem.rows[i, t]
            p, q = ((x[row] / temperature).softmax(-1) for x in (theta, problem.ref_logits))
            if kind == "forward_kl":
                each = (q * (q / p).log()).sum()
            elif kind == "skewed_reverse_kl":
                each = (p * (p / (share * p + (1 - share) * q)).log()).sum()
            else:
                m = share * q + (1 - share) * p
                each = share * (q * (q / m).log()).sum() + (1 - share) * (p * (p / m).log()).sum()
            inside = inside + each / length
            probability = probability * theta[row].detach().softmax(-1)[sequence[t]].item()
        total = total + probability * inside
    (gradient,) = torch.autograd.grad(total, theta)
    assert value(member.objective(), problem) == pytest.approx(total.item(), rel=1e-12)
    torch.testing.assert_close(field(member.objective(), problem), gradient, rtol=1e-10, atol=1e-13)


def test_numbers_of_a_loss():
    inner = 7.5

    class Loss:
        def __init__(self):
            self.tau = 3.5

        def __call__(self, logits):
            return logits

        def forward(self, logits, beta=0.35):
            return logits * inner * HOT * 0.125 * self.tau * beta

    numbers = FunctionText(Loss().forward).numbers([0.35, True, "text", None, -1.0])
    assert set(numbers) >= {7.5, 2.5, 0.125, 3.5, 0.35}
    assert all(x > 0 for x in numbers)
    assert FunctionText(len).numbers() == ()
