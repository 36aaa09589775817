"""Every printed patch, applied to its file, passes the audit of the command line and trains in float32."""

import importlib.util
import inspect
import json
import sys
from pathlib import Path

import pytest
import torch

from kl_companion.cli.command import main
from tests.support.patched import patched, written

FOLDER = Path(__file__).parent / "losses"
TEXTS = {path.name: path.read_bytes().decode() for path in FOLDER.glob("*.py")}
SEQ = "sequence_reverse_kl"


def pg(t):
    return -(t.logp * t.rewards[:, None] * t.mask).sum(-1).mean()


def per_answer(kl, t):
    return (kl * t.mask).sum(-1).mean()


def per_token(kl, t):
    return (kl * t.mask).sum() / t.mask.sum()


def clipped(t):
    ratio = (t.logp - t.old_logp).exp()
    gain = torch.min(ratio * t.rewards[:, None], ratio.clamp(0.8, 1.2) * t.rewards[:, None])
    return per_token(-gain + 0.04 * ratio.detach() * t.x**2 / 2, t)


def charged(t):
    shaped = t.rewards - 0.1 * (t.x.detach() * t.mask).sum(-1)
    return -((t.logp * t.mask).sum(-1) * shaped).mean()


def whole(t):
    p, q = t.logits.log_softmax(-1), t.ref_logits.log_softmax(-1)
    return per_token((p.exp() * (p - q)).sum(-1), t)


# what each loss of losses/mistaken.py is once it is mended: (wanted, part of the patch, value)
RIGHT = {
    "in_a_block": (
        "reverse_kl",
        "+     # a comment that stays",
        lambda t: pg(t) + 0.05 * per_answer(t.x**2 / 2, t),
    ),
    "k1_in_a_block": ("reverse_kl", "", lambda t: pg(t) + 0.05 * per_answer(t.x**2 / 2, t)),
    "detached_where_added": ("reverse_kl", "", lambda t: pg(t) + 0.02 * per_answer(t.x**2 / 2, t)),
    "detached_k1": ("reverse_kl", "", lambda t: pg(t) + 0.01 * per_answer(t.x**2 / 2, t)),
    "as_a_number": ("reverse_kl", "", lambda t: pg(t) + 0.02 * per_answer(t.x**2 / 2, t)),
    "copied": ("reverse_kl", "", lambda t: pg(t) + 0.02 * per_answer(t.x**2 / 2, t)),
    "of_data": ("reverse_kl", "", lambda t: pg(t) + 0.1 * per_answer(t.x**2 / 2, t)),
    "two_helpers": (
        "reverse_kl",
        "- @torch.inference_mode()",
        lambda t: pg(t) + 0.1 * per_token(t.x**2 / 2, t),
    ),
    "frozen_k3_of_answers": (
        "reverse_kl",
        "- @torch.no_grad()",
        lambda t: pg(t) + 0.001 * ((t.x**2 / 2 * t.mask).sum(-1) / t.mask.sum(-1)).mean(),
    ),
    "imported": ("reverse_kl", "# in frozen_helpers.py:", lambda t: pg(t) + 0.1 * per_token(t.x**2 / 2, t)),
    "imported_k3": ("reverse_kl", "def imported_k3", lambda t: pg(t) + 0.1 * per_token(t.x**2 / 2, t)),
    "two_decorators": ("reverse_kl", "- @torch.no_grad()", lambda t: pg(t) + 0.3 * per_token(t.x**2 / 2, t)),
    "Trainer.frozen": (
        "reverse_kl",
        "-     @torch.no_grad()",
        lambda t: pg(t) + 0.04 * per_token(t.x**2 / 2, t),
    ),
    "Trainer.compute": ("reverse_kl", "class Trainer:", lambda t: 0.04 * per_token(t.x**2 / 2, t)),
    "Penalty": ("reverse_kl", "autocast", lambda t: pg(t) + 0.1 * per_token(t.x**2 / 2, t)),
    "ppo": ("reverse_kl", "rho = ", clipped),
    "over_padded": (
        "reverse_kl",
        ".shape[-1] * kl_loss_coef",
        lambda t: (t.x**2 / 2 * t.mask).sum() / t.mask.shape[1] * 0.001,
    ),
    "per_answer_k1": (
        "reverse_kl",
        "# your mean over each answer stays",
        lambda t: 0.1 * ((t.x**2 / 2 * t.mask).sum(-1) / t.mask.sum(-1)).mean(),
    ),
    "minus_k2": ("reverse_kl", "sign", lambda t: pg(t) + 0.1 * per_answer(t.x**2 / 2, t)),
    "minus_k3": ("reverse_kl", "sign", lambda t: pg(t) + 0.1 * per_answer(t.x**2 / 2, t)),
    "added_to_the_reward": (SEQ, "sign", charged),
    "k3_in_the_reward": (SEQ, "(logp - ref_logp).detach()", charged),
    "rewards_minimized": ("reverse_kl", "sign", lambda t: pg(t) + 0.1 * per_answer(t.x**2 / 2, t)),
    "forward_kl_by_k2": ("forward_kl", "expm1", lambda t: per_answer((-t.x).exp() - 1 + t.x, t)),
    "kl_div_exchanged": ("reverse_kl", "kl_div", whole),
    "kl_div_of_logs": ("reverse_kl", "kl_div(q, p, ", whole),
    "by_argument": ("reverse_kl", 'kl_estimator="k2"', lambda t: 0.2 * per_answer(t.x**2 / 2, t)),
    "by_default": ("reverse_kl", 'kl_estimator="k2"', lambda t: 0.2 * per_answer(t.x**2 / 2, t)),
    "of_log_ratios": ("reverse_kl", "def k3_of", lambda t: per_answer(t.x**2 / 2, t)),
    "of_a_shared_helper": ("reverse_kl", "def of_a_shared", lambda t: per_answer(t.x**2 / 2, t)),
    "in_micro_batches": ("reverse_kl", "(lp - rp)", lambda t: 0.1 * per_answer(t.x**2 / 2, t)),
    "in_place": ("reverse_kl", "kl.mul_(mask)", lambda t: per_answer(t.x**2 / 2, t)),
    "over_lines": ("reverse_kl", "# the loss itself", lambda t: 0.5 * per_answer(t.x**2 / 2, t)),
    "nested": ("reverse_kl", "", lambda t: per_answer(t.x**2 / 2, t)),
    "made": ("reverse_kl", "", lambda t: 0.25 * per_token(t.x**2 / 2, t)),
    "on_one_line": ("reverse_kl", "", lambda t: per_answer(t.x**2 / 2, t)),
    "with_tabs": ("reverse_kl", "+ \t", lambda t: per_answer(t.x**2 / 2, t)),
}
STAYS = {"per_answer_k1", "frozen_k3_of_answers"}


class Tensors:
    """Three answers of at most seven tokens in float32, the last two of them shorter."""

    def __init__(self, size, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.logp = (-torch.rand(3, 7, generator=g) - 0.5).requires_grad_()
        self.ref_logp = self.logp.detach() + size * torch.randn(3, 7, generator=g)
        self.old_logp = self.logp.detach() + 0.1 * torch.randn(3, 7, generator=g)
        self.rewards = torch.randn(3, generator=g)
        self.mask = self.response_mask = (torch.arange(7) < torch.tensor([[7], [4], [1]])).float()
        self.logits = torch.randn(3, 7, 5, generator=g, requires_grad=True)
        self.ref_logits = self.logits.detach() + size * torch.randn(3, 7, 5, generator=g)

    @property
    def x(self):
        return self.logp - self.ref_logp

    def run(self, loss):
        """Value of a loss of names of ours, and its gradient."""
        names = inspect.signature(getattr(loss, "forward", loss)).parameters
        return self.differentiated(loss(**{n: getattr(self, n) for n in names if hasattr(self, n)}))

    def differentiated(self, found):
        """A scalar and its gradients; it is differentiated once."""
        assert found.shape == ()
        found.backward()
        grads = [x.grad if x.grad is not None else torch.zeros_like(x) for x in (self.logp, self.logits)]
        return found.detach(), *grads


def remedy_of(target, want, capsys):
    assert main(["audit", target, "--want", want, "--json", "--quiet"]) == 1
    return json.loads(capsys.readouterr().out)["remedy"]


def loaded(folder, file, name):
    """A loss of a file, made as a reader would make it."""
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("patched_losses", folder / file)
        module = importlib.util.module_from_spec(spec)
        sys.modules["patched_losses"] = module
        sys.modules.pop("frozen_helpers", None)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    found = module
    for part in name.split("."):
        found = getattr(found() if isinstance(found, type) else found, part)
    return found() if isinstance(found, type) else found


@pytest.fixture(autouse=True)
def fresh_helpers(monkeypatch):
    monkeypatch.delitem(sys.modules, "frozen_helpers", raising=False)
    yield
    sys.modules.pop("frozen_helpers", None)


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("name", RIGHT)
def test_a_printed_patch_applied_to_the_file_passes_and_is_the_right_loss(name, tmp_path, capsys):
    want, part, right = RIGHT[name]
    remedy = remedy_of(f"{FOLDER}/mistaken.py:{name}", want, capsys)
    assert part in remedy
    texts = patched(TEXTS, "mistaken.py", remedy)
    written(tmp_path, texts)
    sys.modules.pop("frozen_helpers", None)
    again = main(["audit", f"{tmp_path}/mistaken.py:{name}", "--want", want, "--quiet"])
    assert again == (name in STAYS)
    for size in (1e-2, 1.0):
        found = Tensors(size).run(loaded(tmp_path, "mistaken.py", name))
        t = Tensors(size)
        for mine, theirs in zip(found, t.differentiated(right(t)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "option"), [("by_option", "kl_type=k2"), ("WithConfig", "config.kl_estimator=k2")]
)
def test_where_the_code_has_the_branch_the_option_is_the_patch(name, option, capsys):
    target = f"{FOLDER}/mistaken.py:{name}"
    remedy = remedy_of(target, "reverse_kl", capsys)
    assert remedy.startswith(f"# --set {option} is enough")
    assert main(["audit", target, "--want", "reverse_kl", "--set", option, "--quiet"]) == 0


def test_windows_line_ends_stay(tmp_path, capsys):
    head, kl, total = (
        "def loss(logp, ref_logp, mask):",
        "kl = logp - ref_logp  # δ",
        "(kl * mask).sum(-1).mean()",
    )
    text = f"{head}\n    {kl}\n    return {total}\n"
    written(tmp_path, {"windows.py": text.replace("\n", "\r\n")})
    remedy = remedy_of(f"{tmp_path}/windows.py:loss", "reverse_kl", capsys)
    assert "\r" not in remedy
    texts = patched({"windows.py": text.replace("\n", "\r\n")}, "windows.py", remedy)
    written(tmp_path, texts)
    assert main(["audit", f"{tmp_path}/windows.py:loss", "--want", "reverse_kl", "--quiet"]) == 0
    assert texts["windows.py"].count("\r\n") == 3
    assert "kl = 0.5 * (logp - ref_logp) ** 2  # δ" in texts["windows.py"]
