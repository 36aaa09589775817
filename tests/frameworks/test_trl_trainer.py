"""TRL's trainer with this package's KL term: stock numbers with the stock estimator, others by hand."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the libraries when they are imported

from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from accelerate import Accelerator

from kl_companion.kl_term import KLTerm, penalties
from kl_companion.llm.models import LanguageModel, save_model
from kl_companion.llm.tokenizers import character_tokenizer
from kl_companion.rollout import Rollout
from kl_companion.token_terms import token_costs
from tests.support.data import data
from tests.support.frameworks.trl_tiny import apart, make, save_start, step, weights

DATA = data(__file__)

LOSS_TYPES = ("dapo", "grpo", "dr_grpo", "bnpo", "luspo", "cispo", "sapo", "vespo")
STOCK = {True: KLTerm("k3", importance="token", ratio="attached"), False: KLTerm("k3", importance=None)}
B, T = 4, 5


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_start(tmp_path_factory.mktemp("trl") / "start")


@pytest.fixture(scope="module")
def shared(start: Path) -> Any:
    """One trainer whose reference is not its policy; it accumulates over two parts."""
    made = make(start, kl="k2")
    made.current_gradient_accumulation_steps = 2
    made.model.train()
    with torch.no_grad():
        noise = torch.Generator().manual_seed(1)
        for p in made.ref_model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=noise))
    return made


@pytest.fixture
def trainer(shared: Any) -> Any:
    """The same trainer, whose settings a test changes; new trainers reset what accelerate shares."""
    Accelerator(cpu=True)
    return shared


@pytest.fixture
def inputs(trainer: Any) -> dict[str, Any]:
    """A batch whose completions end early, hold a tool's tokens, or are masked as a whole."""
    draw = torch.Generator().manual_seed(2)
    mask = torch.ones(B, T, dtype=torch.long)
    mask[0, 3:] = 0
    mask[2] = 0
    tools = torch.ones(B, T, dtype=torch.long)
    tools[1, 1:3] = 0
    made: dict[str, Any] = {
        "prompt_ids": torch.randint(3, 14, (B, 3), generator=draw),
        "prompt_mask": torch.tensor([[0, 1, 1], [1, 1, 1], [1, 1, 1], [0, 0, 1]]),
        "completion_ids": torch.randint(3, 14, (B, T), generator=draw),
        "completion_mask": mask,
        "tool_mask": tools,
        "advantages": torch.tensor([1.0, -0.5, 0.3, -0.8]),
        "num_items_in_batch": torch.tensor(21.0),
    }
    ids = torch.cat([made["prompt_ids"], made["completion_ids"]], 1)
    attention = torch.cat([made["prompt_mask"], mask], 1)
    with torch.no_grad():
        made["ref_per_token_logps"] = log_probs(trainer.ref_model, ids, attention)
    return made


def log_probs(model: Any, ids: torch.Tensor, attention: torch.Tensor) -> torch.Tensor:
    """Of the completion, written out, [batch, seq]."""
    logp = model(input_ids=ids, attention_mask=attention).logits[:, -T - 1 : -1].log_softmax(-1)
    return logp.gather(-1, ids[:, -T:].unsqueeze(-1)).squeeze(-1)


def whole(model: Any, inputs: dict[str, Any], temperature: float = 1.0) -> torch.Tensor:
    """Log-probs over the vocabulary at every position of the completion, [batch, seq, vocab]."""
    ids, attention = (
        torch.cat([inputs[f"prompt_{x}"], inputs[f"completion_{x}"]], 1) for x in ("ids", "mask")
    )
    logits = model(input_ids=ids, attention_mask=attention).logits[:, -T - 1 : -1] / temperature
    return logits.log_softmax(-1)


# -- the stock trainer ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_the_stock_estimator_gives_the_stock_loss_and_gradient(
    trainer: Any, inputs: dict[str, Any], loss_type: str, off_policy: bool
) -> None:
    if off_policy:
        shift = torch.randn(B, T, generator=torch.Generator().manual_seed(3))
        inputs["old_per_token_logps"] = inputs["ref_per_token_logps"].clamp(max=-0.5) - 0.3 * shift.abs()
    for corrected, term in STOCK.items():
        trainer.args.use_bias_correction_kl = corrected
        trainer._metrics["train"].clear()
        wanted = step(trainer, inputs, None, loss_type=loss_type, beta=0.7)
        bare = step(trainer, inputs, None, loss_type=loss_type, beta=0.0)
        got = step(trainer, inputs, term, loss_type=loss_type, beta=0.7)
        assert apart(got, wanted) < 1e-6 * max(1, wanted.abs().max())
        assert apart(bare, wanted) > 1e-3  # the KL term is there
        stock, ours = trainer._metrics["train"]["kl"]
        assert ours == pytest.approx(stock, rel=1e-5)
    trainer.args.use_bias_correction_kl = True


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_k2_has_the_gradient_of_the_bias_corrected_default(
    trainer: Any, inputs: dict[str, Any], loss_type: str
) -> None:
    """Sample by sample, on-policy and then off-policy; K3++ has the value too."""
    for old in (None, inputs["ref_per_token_logps"] - 0.3):
        stale = {} if old is None else {"old_per_token_logps": old}
        stock = step(trainer, {**inputs, **stale}, None, loss_type=loss_type, beta=0.7)
        for name in ("k2", "k3_plus_plus", "k4"):
            ours = step(trainer, {**inputs, **stale}, KLTerm(name), loss_type=loss_type, beta=0.7)
            assert apart(ours[1:], stock[1:]) < 1e-6 * max(1, stock.abs().max())
            if name != "k3_plus_plus":
                assert apart(ours[:1], stock[:1]) > 1e-3


def test_in_eval_nothing_is_accumulated(trainer: Any, inputs: dict[str, Any]) -> None:
    trainer.model.eval()
    try:
        for loss_type in LOSS_TYPES:
            with torch.no_grad():
                trainer.loss_type, trainer.kl = loss_type, None
                wanted = trainer._compute_loss(trainer.model, inputs)
                trainer.kl = STOCK[True]
                assert trainer._compute_loss(trainer.model, inputs).item() == pytest.approx(
                    wanted.item(), abs=1e-6
                )
    finally:
        trainer.model.train()
        trainer.loss_type, trainer.kl = "dapo", KLTerm("k2")


def test_a_run_of_the_stock_trainer_is_reproduced(start: Path) -> None:
    """Three steps that accumulate two parts each: the same completions, losses and weights."""
    changes = {"gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 4}
    stock = make(start, stock=True, **changes)  # draws its seed when it is made
    stock.train()
    ours = make(start, kl=STOCK[True], **changes)
    ours.train()
    for name, p in weights(stock).items():
        assert apart(p, weights(ours)[name]) < 1e-6
    for one, other in zip(stock.state.log_history, ours.state.log_history, strict=True):
        assert one.keys() == other.keys()
        for name in ("loss", "grad_norm", "kl", "reward", "entropy"):
            if name in one:
                assert other[name] == pytest.approx(one[name], abs=1e-6)
    assert stock.state.log_history[1]["kl"] > 1e-4


# -- estimators of every kind, by hand -----------------------------------------------------------------------


def added(trainer: Any, inputs: dict[str, Any], kl: KLTerm) -> torch.Tensor:
    """Loss and gradient of the KL term alone under `dr_grpo`, with what TRL divides by undone."""
    with_kl, without = (step(trainer, inputs, kl, loss_type="dr_grpo", beta=b) for b in (1.0, 0.0))
    return (with_kl - without) * 2 * trainer.max_completion_length * B


def by_hand(trainer: Any, inputs: dict[str, Any], per_token: Any) -> torch.Tensor:
    """Loss and gradient of a sum over the policy's own tokens."""
    mask = inputs["completion_mask"] * inputs["tool_mask"]
    trainer.model.zero_grad()
    logp_all = whole(trainer.model, inputs)
    ref_logp_all = whole(trainer.ref_model, inputs).detach()
    total = (per_token(logp_all, ref_logp_all) * mask).sum()
    total.backward()
    return torch.cat(
        [
            total.detach().view(1),
            *(p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None),
        ]
    )


def taken(x: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
    return x.gather(-1, inputs["completion_ids"].unsqueeze(-1)).squeeze(-1)


def test_the_exact_estimator_is_the_sum_over_the_vocabulary(trainer: Any, inputs: dict[str, Any]) -> None:
    wanted = by_hand(trainer, inputs, lambda p, q: (p.exp() * (p - q)).sum(-1))
    assert apart(added(trainer, inputs, KLTerm("exact_kl")), wanted) < 1e-4
    assert apart(added(trainer, inputs, KLTerm("f_divergence(reverse_kl)")), wanted) < 1e-4
    inputs["old_per_token_logps"] = inputs["ref_per_token_logps"] - 0.2  # nothing was sampled: no ratio
    assert apart(added(trainer, inputs, KLTerm("exact_kl")), wanted) < 1e-4


def test_a_top_k_estimator_is_a_head_and_a_weighted_tail(trainer: Any, inputs: dict[str, Any]) -> None:
    inputs["old_per_token_logps"] = inputs["ref_per_token_logps"] - 0.4

    def head_and_tail(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        head = p.detach().topk(4).indices
        a, b = p.gather(-1, head), q.gather(-1, head)
        exact = (a.exp() * (a - b) - a.exp() + b.exp()).sum(-1)
        lp, lq = taken(p, inputs), taken(q, inputs)
        rho = (lp - inputs["old_per_token_logps"]).exp().detach()
        value, slope = ((lq - lp).exp() - 1 - (lq - lp)).detach(), (lp - lq).detach()
        outside = (head != inputs["completion_ids"].unsqueeze(-1)).all(-1)
        assert outside.any()
        assert not outside.all()
        return exact + outside * rho * (value + slope * (lp - lp.detach()))

    wanted = by_hand(trainer, inputs, head_and_tail)
    assert apart(added(trainer, inputs, KLTerm("top_k_reverse_kl(4)")), wanted) < 1e-4
    inputs["ref_per_token_logps"] = inputs["ref_per_token_logps"] - 1  # of an anchor that has moved since
    assert apart(added(trainer, inputs, KLTerm("top_k_reverse_kl(4)")), wanted) < 1e-4
    with pytest.raises(ValueError, match="k is 99, expected at most 14"):
        step(trainer, inputs, KLTerm("top_k_reverse_kl(99)"))


def test_the_ratio_is_that_of_the_policy_that_sampled(trainer: Any, inputs: dict[str, Any]) -> None:
    old = inputs["ref_per_token_logps"] - 0.3
    inputs["old_per_token_logps"] = old
    mask = inputs["completion_mask"] * inputs["tool_mask"]

    def weighted(scope: str, clip: float = float("inf")) -> torch.Tensor:
        def per_token(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
            lp, lq = taken(p, inputs), taken(q, inputs)
            log_ratio = ((lp - old) * mask).detach()
            if scope == "sequence":  # K2 of whole sequences, which is not the sum of those of tokens
                rho = log_ratio.sum(-1, keepdim=True).exp()
                x = ((lp - lq) * mask).sum(-1, keepdim=True) ** 2 / 2
                return x * rho / mask.sum(-1, keepdim=True).clamp(min=1)
            return log_ratio.exp().clamp(max=clip) * (lp - lq) ** 2 / 2

        return by_hand(trainer, inputs, per_token)

    def close(term: KLTerm, wanted: torch.Tensor) -> bool:
        return apart(added(trainer, inputs, term), wanted) < 1e-4 * max(1.0, wanted.abs().max().item())

    assert close(KLTerm("k2"), weighted("token"))
    assert close(KLTerm("k2", clip=(0.0, 1.2)), weighted("token", 1.2))
    assert close(KLTerm("k2", level="sequence"), weighted("sequence"))
    assert not close(KLTerm("k2", importance=None), weighted("token"))


@pytest.fixture
def experts(tmp_path: Path) -> Path:
    """A folder with a tiny mixture of experts, whose loss has a term of its own."""
    import transformers

    tokenizer = character_tokenizer("0123456789=")
    config = transformers.Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        moe_intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        router_aux_loss_coef=0.1,
        pad_token_id=0,
        eos_token_id=2,
    )
    save_model(LanguageModel(transformers.Qwen3MoeForCausalLM(config), tokenizer), tmp_path / "start")
    return tmp_path / "start"


@pytest.mark.parametrize("kind", ["start", "experts"])
def test_a_forward_with_logits_scores_as_the_fused_one(
    kind: str, inputs: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """Log-probs, entropy and the experts' loss, at another temperature: without the KL the stock numbers."""
    made = make(request.getfixturevalue(kind), kl="exact_kl", temperature=0.7, entropy_coef=0.1)
    made.model.train()
    made.current_gradient_accumulation_steps = 1
    assert made.aux_loss_enabled == (kind == "experts")
    wanted = step(made, inputs, None, beta=0.0)
    assert apart(step(made, inputs, KLTerm("exact_kl"), beta=0.0), wanted) < 1e-6
    with torch.no_grad():
        for weight in made.ref_model.parameters():
            weight.mul_(0.5)
        p, q = (whole(m, inputs, 0.7) for m in (made.model, made.ref_model))
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        kl = ((p.exp() * (p - q)).sum(-1) * mask).sum() / mask.sum()
    step(made, inputs, KLTerm("exact_kl"))
    assert made._metrics["train"]["kl"][-1] == pytest.approx(kl.item(), rel=1e-5)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_costs_in_the_advantages_have_the_gradient_of_the_sequence_kl(trainer: Any, level: Any) -> None:
    """Over all completions of two tokens, each as often as the policy draws it, through TRL's own loss."""
    pairs = torch.cartesian_prod(torch.arange(14), torch.arange(14))
    count, prompt = len(pairs), torch.tensor([[5, 9]]).expand(len(pairs), -1)
    ids = torch.cat([prompt, pairs], 1)

    def scores(model: Any) -> torch.Tensor:
        logp = model(input_ids=ids).logits[:, 1:3].log_softmax(-1)
        return logp.gather(-1, pairs.unsqueeze(-1)).squeeze(-1)

    ones, parameters = torch.ones_like(pairs), list(trainer.model.parameters())
    logp, ref_logp = scores(trainer.model), scores(trainer.ref_model).detach()
    kl = (logp.sum(-1).exp() * (logp - ref_logp).sum(-1)).sum()
    wanted = torch.cat([g.flatten() for g in torch.autograd.grad(kl, parameters, retain_graph=True)])
    term = KLTerm("k1", "reward", level)
    costs = token_costs(term, Rollout(pairs, ones, logp, ref_logp))
    weight = logp.detach().sum(-1).exp() * count
    penalty = penalties(term, costs, ones)
    batch = {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": pairs,
        "completion_mask": ones,
        "advantages": -penalty * (weight if level == "sequence" else weight.unsqueeze(-1)),
    }
    ours = step(trainer, batch, term, loss_type="dr_grpo")[1:] * 2 * trainer.max_completion_length
    assert apart(ours, wanted) < 1e-5
    assert wanted.abs().max() > 0.1


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kl", "changes", "message"),
    DATA["refused"],
)
def test_settings_that_cannot_work(start: Path, kl: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(start, kl=KLTerm(*kl) if isinstance(kl, list) else kl, **changes)


def test_where_the_reference_is_the_policy_without_its_adapter(
    start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock = trl.GRPOTrainer.__init__

    def with_adapter(self: Any, *args: Any, **options: Any) -> None:
        stock(self, *args, **options)
        self.ref_model = None  # as TRL leaves it with PEFT

    monkeypatch.setattr(trl.GRPOTrainer, "__init__", with_adapter)
    for name in ("exact_kl", "top_k_reverse_kl(4)"):
        with pytest.raises(ValueError, match=r"needs logits of the reference.*without its PEFT adapter"):
            make(start, kl=name)
    assert make(start, kl="k2").ref_model is None


def test_a_model_without_logits_is_refused(
    trainer: Any, inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="computed from text alone, and got token_type_ids"):
        step(trainer, {**inputs, "token_type_ids": torch.zeros(B, 3 + T)}, KLTerm("exact_kl"))
    forward = trainer.model.forward

    def headless(*args: Any, **options: Any) -> Any:
        output = forward(*args, **options)
        if "logits" in output:
            output.logits = None
        return output

    monkeypatch.setattr(trainer.model, "forward", headless)
    with pytest.raises(ValueError, match="exact_kl needs logits, and Qwen2ForCausalLM returned none"):
        step(trainer, inputs, KLTerm("exact_kl"))
    step(trainer, inputs, KLTerm("k2"))
    trainer.kl = KLTerm("k2")
