"""What somebody pastes is read as he means it: functions, or lines of a trainer."""

import ast
import inspect
import io
import sys

import pytest

from kl_companion.auditing import audit
from kl_companion.auditing.reading.sources import SeveralLosses, loss_in, pasted_loss
from kl_companion.cli import main
from tests.support.data import data

GRPO = """
            # the ratio, and its clipped twin
            coef_1 = torch.exp(per_token_logps - old_per_token_logps)
            coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)
            per_token_loss = -torch.min(coef_1 * advantages.unsqueeze(1), coef_2 * advantages.unsqueeze(1))

            if self.args.beta != 0.0:
                log_ratio = ref_per_token_logps - per_token_logps
                per_token_loss += self.args.beta * (log_ratio.exp() - log_ratio - 1)
            loss = (per_token_loss * completion_mask).sum() / completion_mask.sum()
"""
GRPO_READS = (
    "per_token_logps old_per_token_logps epsilon_low epsilon_high advantages beta ref_per_token_logps "
    "completion_mask"
)
TWO = """
def helper(logp, ref_logp):
    return logp - ref_logp

def kl_loss(logp, ref_logp, mask):
    return (helper(logp, ref_logp) ** 2 / 2 * mask).sum(-1).mean()
"""


def parameters(text):
    return list(inspect.signature(pasted_loss(text)).parameters)


def test_lines_of_a_trainer_have_the_verdict_of_their_function():
    def by_hand(logp, ref_logp, old_logp, advantages, mask, beta=1.0, clip=0.2):
        ratio = (logp - old_logp).exp()
        a = advantages.unsqueeze(-1)
        each = -(ratio * a).minimum(ratio.clamp(1 - clip, 1 + clip) * a)
        k3 = (ref_logp - logp).exp() - (ref_logp - logp) - 1
        return ((each + beta * k3) * mask).sum() / mask.sum()

    found, wanted = audit(pasted_loss(GRPO), scale=1.0), audit(by_hand, scale=1.0)
    assert [c.matches for c in found.findings] == [c.matches for c in wanted.findings]
    assert found.findings[0].matches


@pytest.mark.parametrize(("text", "wanted"), [(GRPO, GRPO_READS), *data(__file__)["lines"]])
def test_what_lines_read_are_the_parameters(text, wanted):
    assert parameters(text) == wanted.split()


def test_what_a_trainer_logs_is_left_out():
    text = """
        kl = (logp - ref_logp) ** 2 / 2
        if self.log:
            self._metrics[mode]["kl"].append(
                self.accelerator.gather(kl).mean().item()
            )
        loss = self.beta * kl.mean()
        self.log({"kl": kl})
        loss = loss + 0
    """
    assert parameters(text) == ["logp", "ref_logp", "log", "beta"]
    assert parameters("loss = (input - target).mean()") == ["input", "target"]


def test_what_a_trainer_calls_stays_a_call():
    assert parameters("loss = self.scale(ids) * self.beta") == ["self", "ids", "beta"]
    assert parameters("loss = self.ref_model(ids) * self.beta") == ["ref_model", "ids", "beta"]


def test_a_function_needs_no_imports_and_is_found_by_itself():
    found = audit(pasted_loss(TWO), scale=1.0, off_policy=False)
    assert "reverse_kl" in str(found.findings[0].matches)
    assert pasted_loss(TWO, "helper").__name__ == "helper"
    assert "def kl_loss" in inspect.getsource(pasted_loss(TWO))


def test_methods_and_indented_text():
    text = """
        @dataclass
        class Loss(nn.Module):
            beta: float = 0.1

            def forward(self, logp: Optional[torch.Tensor], ref_logp) -> torch.Tensor:
                return self.beta * (logp - ref_logp).mean()
    """
    assert pasted_loss(text).__name__ == "Loss"
    assert pasted_loss(text, "Loss.forward").__qualname__ == "Loss.forward"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = = 1", "line 1 is no Python: invalid syntax: x = = 1"),
        ("def f(x:\n  pass", "line 1 is no Python"),
        ("def f(x): pass\ndef g(x): pass", "several functions, expected the name of one: f, g"),
    ],
)
def test_what_cannot_be_read_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        pasted_loss(text)


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("def a(x): return b(x)\ndef b(x): return x", "a"),
        ("def kl_loss(x): pass\ndef unused(x): pass", "kl_loss"),
        ("def _private(x): pass\nclass Loss: pass", "Loss"),
        ("def again(x): return again(x - 1)", "again"),
        ("class A:\n def forward(self, x): pass\n def loss(self, x): pass", "A"),
        (
            "class A:\n def __init__(self): pass\n def kd_loss(self, x): pass\n def step(self): pass",
            "A.kd_loss",
        ),
        ("class A:\n def loss(self, x): return self.part_loss(x)\n def part_loss(self, x): pass", "A.loss"),
        ("class A(Base):\n beta = 1.0", "A"),
    ],
)
def test_the_loss_of_a_file_is_what_nothing_else_uses(code, wanted):
    assert loss_in(ast.parse(code), "loss.py") == wanted


def test_the_command_line_reads_what_is_pasted(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("loss = ((logp - ref_logp) ** 2 / 2).sum(-1).mean()"))
    assert main(["audit", "-", "--scale", "1", "--quiet", "--want", "reverse_kl"]) == 0
    assert "pasted minimizes reverse KL, next token" in capsys.readouterr().out


def test_the_command_line_takes_the_only_function_of_a_file(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(TWO)
    assert main(["audit", str(file), "--scale", "1", "--quiet"]) == 0
    assert "kl_loss minimizes" in capsys.readouterr().out
    file.write_text("def f(x): pass\ndef g(x): pass")
    assert main(["audit", str(file)]) == 2
    assert "several functions, expected the name of one: f, g" in capsys.readouterr().err
    file.write_text("class A:\n def f(self, x): pass\n def g(self, x): pass")
    assert main(["audit", str(file)]) == 2
    assert "the class A has several functions, expected the name of one: A.f, A.g" in capsys.readouterr().err
    file.write_text("loss = ((logp - ref_logp) ** 2 / 2).sum(-1).mean()")
    assert main(["audit", str(file), "--scale", "1", "--quiet", "--want", "reverse_kl"]) == 0
    assert "pasted minimizes reverse KL, next token" in capsys.readouterr().out
    file.write_text("def f(x:")
    assert main(["audit", str(file)]) == 2
    assert "is no Python" in capsys.readouterr().err
    assert main(["audit", str(tmp_path / "none.py")]) == 2


def test_of_many_functions_the_one_of_log_probs_is_the_loss():
    helpers = "".join(f"def helper_{i}(x): return x\n" for i in range(30))
    assert pasted_loss(f"{helpers}def f(logp, ref_logp): return logp\n").__name__ == "f"
    with pytest.raises(SeveralLosses, match=r"helper_11 and 18 others$"):
        pasted_loss(helpers)
    with pytest.raises(SeveralLosses, match=r"one: f, g$"):
        pasted_loss("def f(logp): return logp\ndef g(log_prob): return log_prob\n")
