"""Several processes train as one would, against averages by hand; and the recipe that they run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from kl_companion.llm import distributed, recipe
from kl_companion.llm.generation import generate
from kl_companion.llm.models import LanguageModel, frozen_copy, load_model, save_model
from kl_companion.llm.settings import Settings
from tests.support.data import data
from tests.support.launching import run_two
from tests.support.llm.distributed_worker import ADAM, FIXED, MEAN, SGD, UNEVEN

DATA = data(__file__)

WORKER = Path(__file__).resolve().parents[1] / "support/llm/distributed_worker.py"
SHORT = ["--options", '{"digits": 1}', "--device", "cpu", "--prompts", "8", "--group", "4", "--evaluate", "4"]


@pytest.fixture(scope="module")
def launched(tiny: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes under `accelerate` left what they trained."""
    folder = tmp_path_factory.mktemp("launched")
    save_model(tiny, folder / "start")
    run_two(WORKER, folder, folder=folder)
    return folder


def apart(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest difference of two sets of parameters."""
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


def said(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"said-{rank}.json").read_text())
    return found


def log_probs(lm: LanguageModel, prompt: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probs of the tokens after the prompt, written out, [batch, seq]."""
    logits = lm.model(torch.cat([prompt, tokens], 1)).logits[:, prompt.shape[1] - 1 : -1]
    return logits.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def by_hand(start: Path) -> dict[str, torch.Tensor]:
    """Three steps of SGD in one process, on the mean of the gradients that two processes would have.

    REINFORCE on the reward minus that of the group's other completion, plus beta times half the squared
    log-ratio to the start (K2), summed over tokens.
    """
    policy = load_model(start)
    reference = frozen_copy(policy)
    parameters = list(policy.model.parameters())
    draws = [torch.Generator().manual_seed(SGD.seed + distributed.SEED_STRIDE * rank) for rank in (0, 1)]
    for _ in range(SGD.steps):
        total = [torch.zeros_like(p) for p in parameters]
        for generator in draws:
            examples = FIXED.draw(2, generator)
            samples = generate(policy, FIXED, examples, n=2, generator=generator)
            r = [float(text.count("1")) for text in samples.texts]
            advantages = torch.tensor([r[0] - r[1], r[1] - r[0], r[2] - r[3], r[3] - r[2]])
            logp = log_probs(policy, samples.prompt_tokens, samples.tokens)
            with torch.no_grad():
                ref_logp = log_probs(reference, samples.prompt_tokens, samples.tokens)
            k2 = 0.5 * (logp - ref_logp) ** 2
            loss = (-advantages.unsqueeze(-1) * logp + SGD.beta * k2).sum(-1).mean()
            for sum_, gradient in zip(total, torch.autograd.grad(loss, parameters), strict=True):
                sum_ += gradient / 2
        with torch.no_grad():
            for p, g in zip(parameters, total, strict=True):
                p -= SGD.lr * g
    return {name: p.detach() for name, p in policy.model.named_parameters()}


def test_two_processes_take_the_steps_of_the_averaged_gradient(launched: Path) -> None:
    first, second = (load_file(launched / f"sort-{rank}.safetensors") for rank in (0, 1))
    assert apart(first, second) == 0
    assert apart(first, by_hand(launched / "start")) < 1e-6
    start = {name: p.detach() for name, p in load_model(launched / "start").model.named_parameters()}
    assert apart(first, start) > 0.01  # something was learned


def on_the_union(start: Path) -> dict[str, torch.Tensor]:
    """The steps of `MEAN` in one process, on the union of the batches that two processes would have.

    REINFORCE with the mean over all tokens, plus beta times the mean over sequences of K2 of the sequence.
    """
    policy = load_model(start)
    reference = frozen_copy(policy)
    draws = [torch.Generator().manual_seed(MEAN.seed + distributed.SEED_STRIDE * rank) for rank in (0, 1)]
    for _ in range(MEAN.steps):
        gains, terms, tokens = torch.zeros(()), [], []
        for generator in draws:
            samples = generate(policy, UNEVEN, UNEVEN.draw(2, generator), n=2, generator=generator)
            r = [float(text.count("1")) for text in samples.texts]
            advantages = torch.tensor([r[0] - r[1], r[1] - r[0], r[2] - r[3], r[3] - r[2]])
            inside = samples.completion_mask
            logp = log_probs(policy, samples.prompt_tokens, samples.tokens) * inside
            with torch.no_grad():
                ref_logp = log_probs(reference, samples.prompt_tokens, samples.tokens) * inside
            gains = gains + (advantages.unsqueeze(-1) * logp).sum()
            terms.append(0.5 * (logp - ref_logp).sum(-1) ** 2)
            tokens.append(int(inside.sum()))
        assert tokens[0] != tokens[1]
        loss = -gains / sum(tokens) + MEAN.beta * torch.cat(terms).mean()
        parameters = list(policy.model.parameters())
        with torch.no_grad():
            for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p -= MEAN.lr * g
    return {name: p.detach() for name, p in policy.model.named_parameters()}


def test_a_mean_over_tokens_is_one_over_the_tokens_of_all_processes(launched: Path) -> None:
    expected = on_the_union(launched / "start")
    assert apart(load_file(launched / "uneven-0.safetensors"), expected) < 1e-5
    start = {name: p.detach() for name, p in load_model(launched / "start").model.named_parameters()}
    assert apart(expected, start) > 0.01


def test_the_processes_draw_samples_of_their_own(launched: Path) -> None:
    """Of other lengths; the gradient is the same for both, with Adam on accumulated parts too."""
    assert said(launched, 0)["world"] == 2
    batch, longest = ADAM.prompts * ADAM.group, []
    for rank in (0, 1):
        lengths = said(launched, rank)["lengths"]
        longest.append([max(lengths[i : i + batch]) for i in range(0, ADAM.steps * batch, batch)])
    assert all(one != other for one, other in zip(*longest, strict=True))
    norms = [[record["grad_norm"] for record in said(launched, rank)["ending"]] for rank in (0, 1)]
    assert norms[0] == norms[1]
    assert min(norms[0]) > 0
    assert ADAM.accumulate > 1


def test_records_are_averaged(launched: Path) -> None:
    assert said(launched, 0)["mean"] == said(launched, 1)["mean"] == [{"rank": 0.5, "two": 2.0}]


def test_the_recipe_leaves_a_model_and_a_history(launched: Path) -> None:
    policy, start = load_model(launched / "recipe" / "model"), load_model(launched / "start")
    assert policy.tokenizer.get_vocab() == start.tokenizer.get_vocab()
    history = pd.read_csv(launched / "recipe" / "history.csv")
    assert history.step.tolist() == [0, 1, 2]
    assert history.held_out_kl.notna().tolist() == [True, False, True]
    told = json.loads((launched / "recipe" / "recipe.json").read_text())
    assert told["processes"] == 2


# -- one process ---------------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that no launcher started, as accelerate sees it."""
    from accelerate import PartialState

    for name in ("ACCELERATE_USE_CPU", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    PartialState._reset_state()


def test_without_a_group_nothing_is_averaged() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.tensor([1.0, 2.0])
    distributed.average_gradients([parameter])
    assert parameter.grad.tolist() == [1.0, 2.0]
    assert distributed.average_records([{"a": 1.0}], torch.device("cpu")) == [{"a": 1.0}]
    assert distributed.own_seed(SGD) == SGD


def test_a_launcher_that_starts_one_process_only_is_noticed(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(RuntimeError, match="started one"):
        distributed.join("cpu")


def test_the_recipe_trains_an_embedded_model_and_goes_on_from_a_checkpoint(
    alone: None, model_cache: Path, tmp_path: Path
) -> None:
    embedded = ["--model", "embedded", "--pretraining-steps", "2", "--pretraining-until", "none"]
    histories = {}
    for name, parts in {"whole": [4], "parts": [2, 4]}.items():
        (tmp_path / name / ".model-left").mkdir(parents=True)  # by a run that was killed
        (tmp_path / name / ".history.csv.1.part").touch()
        for steps in parts:
            more = ["--steps", str(steps), "--every", "2", "--output", str(tmp_path / name)]
            more += ["--checkpoint", str(tmp_path / f"kept-{name}")]
            assert recipe.main([*SHORT, *embedded, *more, "--beta", ".2"]) == 0
        histories[name] = (tmp_path / name / "history.csv").read_bytes()
    assert histories["whole"] == histories["parts"]
    history = pd.read_csv(tmp_path / "whole" / "history.csv")
    assert history.columns[0] == "step"
    assert history.reward.max() > 0
    assert history.held_out_kl.iloc[-1] > 0
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in histories]
    assert apart(*weights) == 0
    told = json.loads((tmp_path / "whole" / "recipe.json").read_text())
    assert told["beta"] == 0.2
    assert told["processes"] == 1
    assert not list((tmp_path / "whole").glob(".*"))


def test_the_recipe_says_why_nothing_could_be_written(
    alone: None, model_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    options = ["--pretraining-steps", "1", "--pretraining-until", "none", "--steps", "1"]
    assert recipe.main([*SHORT, *options, "--output", str(tmp_path / "file" / "below")]) == 1
    assert capsys.readouterr().err.startswith("python -m kl_companion.llm.recipe: NotADirectoryError: ")


def parsed(arguments: str) -> Settings:
    return recipe.settings_of(recipe.make_parser().parse_args(["--output", "folder", *arguments.split()]))


def test_every_setting_is_an_option() -> None:
    assert parsed("") == Settings()
    some = parsed("--estimator top_k_reverse_kl --k 4 --form published --clip .2 .28 --lag 2")
    assert some == Settings(estimator="top_k_reverse_kl", k=4, form="published", clip=(0.2, 0.28), lag=2)
    none = parsed("--advantages none --importance token --importance-clip .5 2 --max-grad-norm none")
    assert none == Settings(
        advantages="none", importance="token", importance_clip=(0.5, 2.0), max_grad_norm=None
    )
    assert parsed("--importance none").importance is None
    costs = parsed("--placement reward --credit .9 --center-costs")
    assert costs == Settings(placement="reward", credit=0.9, center_costs=True)
    assert parsed("--k none").k is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    DATA["refused"],
)
def test_what_the_recipe_refuses(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        recipe.main(["--output", str(tmp_path / "none"), *arguments.split()])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
