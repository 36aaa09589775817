"""The monitor in TRL's trainers: the numbers arrive, they are right, and the run is the same without it."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the libraries when they are imported

import csv
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import trl
from transformers import TrainerCallback

from kl_companion.frameworks.trl_trainer import GRPOTrainer
from kl_companion.monitor import KLMonitor
from tests.support.frameworks.trl_tiny import save_start, settings, with_sgd

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*GKD.*", "ignore:.*pin_memory.*")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_start(tmp_path_factory.mktemp("trl") / "start")


def make(start: Path, out: Path, kind: Any = trl.GRPOTrainer, options: Any = None, **changes: Any) -> Any:
    """A trainer of the tiny model that writes into ``out`` and prints nothing."""
    made = with_sgd(kind, start, settings(out, **{"max_steps": 3, **changes}), **(options or {}))
    made.callback_handler.callbacks = [
        c for c in made.callback_handler.callbacks if type(c).__name__ != "PrinterCallback"
    ]
    return made


def watched(made: Any, reference: Any = None, **options: Any) -> KLMonitor:
    """The monitor of a whole run, which looks at every step."""
    monitor = KLMonitor(every=1, **options)
    monitor.attach(made, reference=reference)
    made.train()
    return monitor


class Reporter(TrainerCallback):  # type: ignore[misc]
    """Stands for TensorBoard and its like: what a callback is told to log."""

    def __init__(self) -> None:
        self.told: dict[int, dict[str, float]] = {}

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        self.told.setdefault(state.global_step, dict(logs))


class Recording(trl.GRPOTrainer):  # type: ignore[misc]
    """Records the exact KL of the first two answers of every batch, and K3 of their tokens, by hand."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        ids, attention = (
            torch.cat([inputs[f"prompt_{x}"], inputs[f"completion_{x}"]], 1)[:2] for x in ("ids", "mask")
        )
        mask, tokens = inputs["completion_mask"][:2].bool(), inputs["completion_ids"][:2]
        with torch.no_grad():
            p, q = (
                (m(input_ids=ids, attention_mask=attention).logits / self.temperature)
                .double()
                .log_softmax(-1)
                for m in (model, self.ref_model)
            )
        p, q = (x[:, -mask.shape[1] - 1 : -1] for x in (p, q))
        kl = (p.exp() * (p - q)).sum(-1)[mask].mean().item()
        u = (p - q).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)[mask]
        self.seen = [*getattr(self, "seen", []), (kl, ((-u).exp() - 1 + u).mean().item(), int(mask.sum()))]
        return super()._compute_loss(model, inputs)


def test_the_numbers_of_a_run_arrive_and_are_those_computed_by_hand(start: Path, tmp_path: Path) -> None:
    reporter = Reporter()
    made = make(start, tmp_path, Recording, {"callbacks": [reporter]}, max_steps=20, temperature=0.8)
    callback = KLMonitor().attach(made)  # of four answers half
    made.train()
    history = {row["step"]: row for row in made.state.log_history if "kl" in row}
    observed = [step for step, row in history.items() if "kl_monitor/kl" in row]
    assert (
        observed == [step for step in reporter.told if "kl_monitor/kl" in reporter.told[step]] == [1, 10, 20]
    )
    for step in observed:
        row = history[step]
        kl, k3, tokens = made.seen[step - 1]
        assert row["kl_monitor/kl"] == pytest.approx(kl, abs=1e-6)
        assert row["kl_monitor/logged"] == pytest.approx(k3, abs=1e-6)
        assert (row["kl_monitor/tokens"], row["kl_monitor/answers"]) == (tokens, 2)
        assert row["kl_monitor/reward"] == pytest.approx(row["reward"])
        assert row["kl_monitor/equal_groups"] == row["frac_reward_zero_std"]
        assert row["kl_monitor/effective_beta"] == pytest.approx(0.1 * (row["reward_std"] + 1e-4), rel=1e-5)
        assert row["kl_monitor/loss"] == pytest.approx(row["loss"], abs=1e-6)
        assert reporter.told[step]["kl_monitor/kl"] == row["kl_monitor/kl"]
    assert history[20]["kl_monitor/kl"] > 1e-3
    with (tmp_path / "kl_monitor.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["step"] for row in rows] == ["1", "10", "20"]
    assert float(rows[-1]["kl"]) == pytest.approx(history[20]["kl_monitor/kl"], rel=1e-9)
    assert rows[-1]["mismatch"] == ""
    about = json.loads((tmp_path / "kl_monitor.json").read_text())
    assert (about["trainer"], about["estimator"], about["beta"]) == ("trl.GRPOTrainer", "k3", 0.1)
    assert (about["temperature"], about["rewards_divided"], about["vocabulary"]) == (0.8, "group_std", 14)
    tokens = json.loads((tmp_path / "kl_monitor_tokens.jsonl").read_text().splitlines()[-1])["tokens"]
    assert set("".join(x["token"] for x in tokens)) <= set("0123456789=<pad>bos")
    assert len(callback.observations) == 3


def test_of_a_whole_batch_the_trainers_own_number_is_taken(start: Path, tmp_path: Path) -> None:
    made = make(start, tmp_path, max_steps=4, learning_rate=0.5)
    watched(made, rows=None)
    rows = [row for row in made.state.log_history if "kl" in row]
    assert [row["kl_monitor/logged"] for row in rows] == [row["kl"] for row in rows]
    assert rows[-1]["kl"] > 1e-3


# -- nothing changes -----------------------------------------------------------------------------------------


def finished(start: Path, out: Path, monitored: bool, **changes: Any) -> tuple[Any, list[Any]]:
    """A trainer after its run, and what a run leaves: parameters, states of generators, logs."""
    made = make(start, out, max_steps=3, **changes)
    for module in made.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = 0.3  # takes random numbers in training
    if monitored:
        KLMonitor(every=1).attach(made)
    made.train()
    logs = [
        {k: v for k, v in row.items() if "time" not in k and "per_second" not in k and "kl_monitor" not in k}
        for row in made.state.log_history
    ]
    gradients = [p.grad for p in made.model.parameters() if p.grad is not None]
    left = [*made.model.parameters(), *made.ref_model.parameters(), *gradients, torch.get_rng_state()]
    # not Python's own generator: the tests' checker of types draws from it
    numbers = numpy.random.get_state()[1].tolist()
    return made, [*(x.detach().clone() for x in left), numbers, made.model.training, logs]


@pytest.mark.parametrize(
    "changes",
    [
        {"gradient_accumulation_steps": 2},
        {"num_iterations": 2, "steps_per_generation": 2, "per_device_train_batch_size": 2},
        {"sync_ref_model": True, "ref_model_sync_steps": 1, "scale_rewards": "batch"},
    ],
    ids=str,
)
def test_the_run_is_the_same_bit_for_bit(start: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    _, plain = finished(start, tmp_path / "a", False, **changes)
    made, watched = finished(start, tmp_path / "b", True, **changes)
    assert len(plain) == len(watched)
    for x, y in zip(plain, watched, strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    observed = [row["step"] for row in made.state.log_history if "kl_monitor/kl" in row]
    assert observed == [1, 2, 3]


@pytest.mark.parametrize(("rows", "taken"), [(3, 3), (1, 1), (8, 4), (None, 4)])
def test_how_many_are_taken_of_two_parts_of_four(
    start: Path, tmp_path: Path, rows: int | None, taken: int
) -> None:
    made = make(start, tmp_path, max_steps=1, gradient_accumulation_steps=2)
    monitor = watched(made, rows=rows)
    assert [x.answers for x in monitor.observations] == [taken]


def test_detached_the_trainer_is_as_it_was(start: Path, tmp_path: Path) -> None:
    made = make(start, tmp_path, max_steps=1)
    before, callbacks = set(vars(made)), list(made.callback_handler.callbacks)
    callback = KLMonitor().attach(made)
    assert made.callback_handler.callbacks[-1] is callback
    with pytest.raises(ValueError, match="a monitor is attached to this trainer already"):
        KLMonitor().attach(made)
    callback.detach()
    assert set(vars(made)) == before
    assert made.callback_handler.callbacks == callbacks
    made.train()
    assert callback.observations == []
    assert not (tmp_path / "kl_monitor.csv").exists()
    made.log = made.log  # an instance's own method comes back too
    KLMonitor().attach(made).detach()
    assert "log" in vars(made)


def test_what_fails_is_said_and_training_goes_on(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make(start, tmp_path)
    monitor = KLMonitor(every=1, eos_token_id=99)
    monitor.attach(made)
    with pytest.warns(UserWarning, match="could not observe step 1: ValueError: eos_token_id is 99") as said:
        made.train()
    assert len([w for w in said if "KL monitor" in str(w.message)]) == 1
    assert made.state.global_step == 3
    assert monitor.observations == []


def test_evaluation_is_not_observed(start: Path, tmp_path: Path) -> None:
    from datasets import Dataset

    data = Dataset.from_dict({"prompt": ["12", "3"] * 2})
    made = make(start, tmp_path, options={"eval_dataset": data}, eval_strategy="steps", eval_steps=1)
    made.args.per_device_eval_batch_size = 4
    monitor = watched(made)
    assert [x.step for x in monitor.observations] == [1, 2, 3]
    assert not any("kl_monitor/kl" in row for row in made.state.log_history if "eval_loss" in row)


# -- other trainers ------------------------------------------------------------------------------------------


def test_rloo_logs_k1(start: Path, tmp_path: Path) -> None:
    arguments = settings(tmp_path, max_steps=3, learning_rate=0.5)
    shared = "output_dir use_cpu bf16 report_to save_strategy disable_tqdm logging_steps max_steps seed beta"
    shared += " per_device_train_batch_size num_generations max_completion_length learning_rate"
    args = trl.RLOOConfig(**{name: getattr(arguments, name) for name in shared.split()})
    made = with_sgd(trl.RLOOTrainer, start, args)
    monitor = watched(made, rows=None)
    rows = [row for row in made.state.log_history if "kl" in row]
    assert [row["kl_monitor/logged"] for row in rows] == pytest.approx([row["kl"] for row in rows], abs=1e-6)
    last = monitor.observations[-1]
    assert last.logged_error == last.k1_error > 1e-3
    assert last.effective_beta == 0.1
    assert abs(last.length_pull_kl) > 0


TEACHING: dict[str, Any] = {
    **dict.fromkeys(("bf16", "gradient_checkpointing"), False),
    **dict.fromkeys(("use_cpu", "disable_tqdm"), True),
    **{"report_to": "none", "save_strategy": "no", "beta": 1.0, "logging_steps": 1, "max_steps": 2},
    **{"per_device_train_batch_size": 4, "seed": 3},
}


@contextmanager
def other_parameters(model: Any) -> Iterator[None]:
    """The model away from where it began."""
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=draw))
    yield


def test_distillation_towards_a_teacher(start: Path, tmp_path: Path) -> None:
    """With beta=1 the loss is the exact KL that the monitor finds."""
    from datasets import Dataset

    more = {"max_completion_length": 6, "temperature": 0.8, "gradient_accumulation_steps": 2}
    args = trl.DistillationConfig(output_dir=str(tmp_path), **TEACHING, **more)
    made = trl.DistillationTrainer(
        model=str(start),
        teacher_model=str(start),
        args=args,
        train_dataset=Dataset.from_dict({"prompt": ["12", "345=", "6", "7890"] * 4}),
    )
    with other_parameters(made.teacher_model):
        monitor = watched(made, rows=None)
    assert monitor.trainer == "trl.DistillationTrainer"
    assert len(monitor.observations) == 2
    for x in monitor.observations:  # of one of two parts of a step, which differ in length
        assert x.kl == pytest.approx(x.loss * 0.5 * made_tokens(made, x) / x.tokens, rel=1e-4)
        assert x.kl > 0.01
        assert x.logged is None


def made_tokens(made: Any, observation: Any) -> float:
    """Completion tokens of both parts of a step, which TRL divides by."""
    row = next(r for r in made.state.log_history if r["step"] == observation.step)
    return 8 * float(row["completions/mean_length"])


def test_gkd_compares_at_temperature_one(start: Path, tmp_path: Path) -> None:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    more = {"lmbda": 0.0, "max_new_tokens": 6, "temperature": 0.5, "max_length": 16}
    args = GKDConfig(output_dir=str(tmp_path), **TEACHING, **more)
    texts = [{"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]}
             for a, b in (("12", "345"), ("6", "78"), ("9=", "1"), ("4", "55"))]  # fmt: skip
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(start)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    teacher = AutoModelForCausalLM.from_pretrained(start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = GKDTrainer(
            model=str(start), teacher_model=teacher, args=args, processing_class=tokenizer,
            train_dataset=Dataset.from_list(texts * 2),
        )  # fmt: skip
        with other_parameters(made.teacher_model):
            monitor = watched(made, rows=None)
    assert [x.step for x in monitor.observations] == [1, 2]
    for x in monitor.observations:
        assert x.kl == pytest.approx(x.loss, rel=1e-4)
        assert x.kl > 0.01


def test_the_packages_own_trainer_says_which_term_it_has(start: Path, tmp_path: Path) -> None:
    made = make(start, tmp_path, GRPOTrainer, {"kl": "k2"}, learning_rate=0.5)
    monitor = watched(made, rows=None)
    last = monitor.observations[-1]
    assert monitor.about()["estimator"] == "k2"
    assert last.logged == made.state.log_history[-2]["kl"]
    assert last.logged_bias == pytest.approx(last.k2_bias)


class Engine(trl.GRPOTrainer):  # type: ignore[misc]
    """As if an engine had sampled at half the temperature, and said so."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        ids, attention = (
            torch.cat([output[f"prompt_{x}"], output[f"completion_{x}"]], 1) for x in ("ids", "mask")
        )
        with torch.no_grad():
            logits = self.model(input_ids=ids, attention_mask=attention).logits
        logp = (logits[:, -output["completion_ids"].shape[1] - 1 : -1] / 0.5).log_softmax(-1)
        said = logp.gather(-1, output["completion_ids"].unsqueeze(-1)).squeeze(-1)
        said[0, 0] = torch.nan
        return {**output, "sampling_per_token_logps": said}


def test_the_engines_log_probs_are_compared(start: Path, tmp_path: Path) -> None:
    made = make(start, tmp_path, Engine)
    monitor = watched(made)
    first = monitor.observations[0]
    assert first.engine_temperature == pytest.approx(0.5, abs=1e-3)
    assert first.mismatch_temperature == pytest.approx(first.mismatch, rel=1e-3)
    assert first.mismatch_rounding < 1e-4


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_without_a_reference(start: Path, tmp_path: Path, beta: float) -> None:
    made = make(start, tmp_path, beta=0.0)
    with pytest.raises(ValueError, match=r"trl\.GRPOTrainer has no reference .*expected reference="):
        KLMonitor().attach(made)
    from transformers import AutoModelForCausalLM

    monitor = watched(made, AutoModelForCausalLM.from_pretrained(start), beta=beta or None)
    assert monitor.observations[-1].kl > 0
    assert monitor.beta == beta
