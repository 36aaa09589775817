"""verl's own `kl_penalty`, from the installed file, with this package's estimators among its options."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kl_companion.estimators.registry import ESTIMATORS
from kl_companion.frameworks import verl_register
from kl_companion.llm.models import frozen_copy, tiny_model
from kl_companion.llm.tokenizers import character_tokenizer
from tests.support.data import data

DATA = data(__file__)

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / ".audit" / "verl" / "trainer" / "ppo" / "core_algos.py"
NAME = "kl_companion.frameworks.verl_register"
INSTALL = ".venv/bin/python -m pip install --no-deps --target .audit -r requirements-audit.lock"


def source_of(file: Path, *names: str) -> str:
    """The functions of these names as they stand in the file."""
    assert file.is_file(), f"{file.name} of verl is missing; install it with: {INSTALL}"
    text = file.read_text()
    found = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    return "\n\n".join(ast.get_source_segment(text, found[name]) or "" for name in names)


def core_algos() -> ModuleType:
    """A module with verl's two functions, as they are without the registration."""
    module = ModuleType("core_algos")
    exec("import torch\n" + source_of(FILE, "kl_penalty", "kl_penalty_forward"), module.__dict__)
    return module


@pytest.fixture
def registered() -> ModuleType:
    module = core_algos()
    verl_register.register(module)
    return module


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of policy and reference, [batch, seq]: ratios of 1e-3 to 1e9, beyond verl's clamps."""
    policy = torch.tensor([[-0.01, -1.0, -2.0], [-6.0, -25.0, -0.5]])
    apart = torch.tensor([[-7.0, 0.0, -0.3], [5.0, 21.0, -1e-3]])
    return policy, policy + apart


def value_and_gradient(
    module: ModuleType, name: str, pair: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    logp = pair[0].clone().requires_grad_()
    x = module.kl_penalty(logp, pair[1], name)
    (gradient,) = torch.autograd.grad(x.sum(), logp)
    return x.detach(), gradient


@pytest.mark.parametrize("name", [n + end for n in verl_register.VERL_NAMES[:-1] for end in ("", "+")])
def test_stock_names_give_stock_numbers(registered: ModuleType, pair: Any, name: str) -> None:
    for ours, stock in zip(
        *(value_and_gradient(module, name, pair) for module in (registered, core_algos())), strict=True
    ):
        assert torch.equal(ours, stock)


def test_what_verl_does_not_implement_stays_so(registered: ModuleType, pair: Any) -> None:
    with pytest.raises(NotImplementedError):
        registered.kl_penalty(*pair, "full")


@pytest.mark.parametrize(("ours", "stock"), [("k1", "kl"), ("k2", "mse")])
def test_the_same_estimator_is_the_same_number(
    registered: ModuleType, pair: Any, ours: str, stock: str
) -> None:
    for a, b in zip(
        value_and_gradient(registered, f"kl_companion:{ours}", pair),
        value_and_gradient(core_algos(), stock, pair),
        strict=True,
    ):
        assert (a - b).abs().max() < 1e-6


def test_k3_of_this_package_has_no_clamp(registered: ModuleType, pair: Any) -> None:
    """At a log-ratio of 5 verl's K3 has no gradient; in between they agree."""
    _, ours = value_and_gradient(registered, "kl_companion:k3", pair)
    _, stock = value_and_gradient(registered, "k3", pair)
    assert stock[1, 0] == 0
    assert ours[1, 0].item() == pytest.approx(1 - torch.tensor(5.0).exp().item(), rel=1e-5)
    assert (ours[0] - stock[0]).abs().max() < 1e-6


@pytest.mark.parametrize("name", [n for n, e in ESTIMATORS.items() if e.inputs == "sampled"])
def test_every_sampled_estimator_is_an_option(registered: ModuleType, pair: Any, name: str) -> None:
    logp = pair[0].clone().requires_grad_()
    x = ESTIMATORS[name].fn(logp, pair[1])
    (wanted,) = torch.autograd.grad(x.sum(), logp)
    value, gradient = value_and_gradient(registered, f"kl_companion:{name}", pair)
    assert torch.equal(value, x)
    assert torch.equal(gradient, wanted)
    if name not in verl_register.VERL_NAMES:
        assert torch.equal(registered.kl_penalty(*pair, name), x)


def test_a_plus_keeps_the_value_and_takes_the_gradient_of_k2(registered: ModuleType, pair: Any) -> None:
    value, gradient = value_and_gradient(registered, "kl_companion:k3+", pair)
    assert torch.equal(value, ESTIMATORS["k3"].fn(*pair))
    assert (gradient - (pair[0] - pair[1])).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["k3_plus_plus", "kf_plus_plus(pearson)", "kl_companion:k2"])
def test_verls_kl_penalty_drives_an_optimizer_step(registered: ModuleType, name: str) -> None:
    """A tiny model one step nearer to its reference, by the gradient written out."""
    lm = tiny_model(character_tokenizer("0123456789="), hidden=16, layers=1, heads=2)
    reference = frozen_copy(tiny_model(lm.tokenizer, hidden=16, layers=1, heads=2, seed=1))
    tokens = torch.randint(3, 14, (4, 7), generator=torch.Generator().manual_seed(0))

    def log_probs(model: Any) -> torch.Tensor:
        logp = model(tokens).logits[:, :-1].log_softmax(-1)
        return logp.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)

    parameters = list(lm.model.parameters())
    logp, ref_logp = log_probs(lm.model), log_probs(reference.model).detach()
    log_t = (logp - ref_logp).detach()
    slope = 2 * (log_t.exp() - 1) if "pearson" in name else log_t  # f'(t) of (t - 1)^2, and log t
    by_hand = torch.autograd.grad((slope * logp).mean(), parameters, retain_graph=True)
    before = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    registered.kl_penalty(logp, ref_logp, name).mean().backward()
    optimizer.step()
    for p, old, gradient in zip(parameters, before, by_hand, strict=True):
        assert (p - (old - 0.1 * gradient)).abs().max() < 1e-6
    assert max(g.abs().max() for g in by_hand) > 1e-2


@pytest.mark.parametrize(
    ("name", "message"),
    DATA["refused"],
)
def test_options_that_cannot_be(registered: ModuleType, pair: Any, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        registered.kl_penalty(*pair, name)


def test_registering_twice_is_registering_once(registered: ModuleType) -> None:
    once = registered.kl_penalty_forward
    verl_register.register(registered)
    assert registered.kl_penalty_forward is once


def test_another_version_is_named() -> None:
    with pytest.raises(ImportError, match=r"has no kl_penalty_forward.*verl==0\.9\.1"):
        verl_register.register(ModuleType("verl.trainer.ppo.core_algos"))


@pytest.fixture
def afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As in a process that has imported neither verl nor the module that registers."""
    before = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "verl"}
    for name in [*before, NAME]:
        monkeypatch.delitem(sys.modules, name)
    yield monkeypatch
    for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
        del sys.modules[name]


def like_verl(folder: Path, functions: str) -> None:
    """A package laid out as verl's, whose start imports what the variable names, as verl's does."""
    package = folder / "verl"
    (package / "trainer" / "ppo").mkdir(parents=True)
    library = ROOT / ".audit" / "verl" / "utils" / "import_utils.py"
    start = ["import importlib, os", source_of(library, "import_external_libs")]
    start += ['import_external_libs(os.environ["VERL_USE_EXTERNAL_MODULES"].split(","))']
    (package / "__init__.py").write_text("\n\n".join(start))
    for inner in (package / "trainer", package / "trainer" / "ppo"):
        (inner / "__init__.py").write_text("")
    (package / "trainer" / "ppo" / "core_algos.py").write_text("import torch\n\n" + functions)


def test_verl_loads_the_module_by_its_environment_variable(
    afresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    like_verl(tmp_path, source_of(FILE, "kl_penalty", "kl_penalty_forward"))
    afresh.syspath_prepend(tmp_path)
    afresh.setenv("VERL_USE_EXTERNAL_MODULES", NAME)
    module = import_module("verl.trainer.ppo.core_algos")
    assert module.kl_penalty(torch.tensor([-1.0]), torch.tensor([-3.0]), "k4").item() == 2


def test_a_verl_that_cannot_be_extended_does_not_start(afresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    like_verl(tmp_path, "")
    afresh.syspath_prepend(tmp_path)
    afresh.setenv("VERL_USE_EXTERNAL_MODULES", NAME)
    with pytest.raises(ImportError, match="core_algos has no kl_penalty_forward"):
        import_module("verl")


def test_without_verl_it_is_imported_and_says_so_when_used(
    afresh: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").write_text("import a_package_that_is_missing")
    wanted = r", which is not installed: pip install 'verl==0\.9\.1' \(the version known to work\)"
    with afresh.context() as broken:
        broken.syspath_prepend(tmp_path)
        module = import_module(NAME)
        with pytest.raises(ImportError, match="in verl needs a_package_that_is_missing" + wanted):
            module.register()
    with pytest.raises(ImportError, match="in verl needs verl" + wanted):
        module.register()
