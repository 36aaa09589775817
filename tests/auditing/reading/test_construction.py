"""A class, a method or a module from its defaults, from what is set, and from the usual numbers."""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from kl_companion.auditing.reading.arguments import Unusable
from kl_companion.auditing.reading.construction import Chosen, callable_of
from kl_companion.auditing.reading.subject import as_subject
from kl_companion.tabular.populations import population_rollout, population_tree
from tests.support.data import data

ROLLOUT = population_rollout(population_tree(3, 2, parts=4, eos=True))
UNIT = as_subject(lambda logp, ref_logp: (logp - ref_logp) ** 2).loss(ROLLOUT).item()


@dataclass
class Options:
    scale: float = 2.0
    kind: str = "square"
    more: dict[str, float] = field(default_factory=dict)


@dataclass
class Needs:
    kl_coef: float
    path: str


class Plain:
    """A class with a forward of its own name."""

    def __init__(self, scale: float = 3.0, *args: float, **kwargs: float) -> None:
        self.scale = scale

    def __call__(self, logp, ref_logp):
        return self.scale * (logp - ref_logp) ** 2

    def penalty(self, logp, ref_logp):
        return 2 * self.scale * (logp - ref_logp) ** 2


class Module(torch.nn.Module):
    def __init__(self, beta, temperature, entropy_coef, clip_eps):
        super().__init__()
        self.numbers = beta, temperature, entropy_coef, clip_eps

    def forward(self, logp, ref_logp):
        assert self.numbers[1:] == (1.0, 0.0, 0.2)
        return self.numbers[0] * (logp - ref_logp) ** 2


class Configured:
    def __init__(self, config: Options):
        self.config = config

    def forward(self, logp, ref_logp):
        assert self.config.more == {}
        power = {"square": 2, "fourth": 4}[self.config.kind]
        return self.config.scale * (logp - ref_logp) ** power

    __call__ = forward


class Untyped:
    def __init__(self, config):
        self.config = config

    def loss(self, logp, ref_logp):
        return self.config.loss.scale * (logp - ref_logp) ** 2


class Numbered:
    def __init__(self, config: Needs):
        self.config = config

    def loss(self, logp, ref_logp):
        return self.config.kl_coef * (logp - ref_logp) ** 2


class Needy(Plain):
    def __init__(self, path):
        self.scale = Path(path).read_text()


class Idle(Plain):
    def __init__(self, path):
        super().__init__()
        self.path = path


class Reads(Idle):
    def __call__(self, logp, ref_logp):
        return self.path * (logp - ref_logp) ** 2


class Abstract(abc.ABC):
    @abc.abstractmethod
    def forward(self, logp):
        """Of each kind."""


class Kind(enum.Enum):
    SQUARE = "k2"
    FOURTH = "k4"


class Kinds:
    def __init__(self, *, kind: Kind = Kind.FOURTH, kl_coef: float):
        self.kind, self.kl_coef = kind, kl_coef

    def __call__(self, logp, ref_logp, /):
        return self.kl_coef * (logp - ref_logp) ** (2 if self.kind is Kind.SQUARE else 4)


class Trainer(Abstract):
    """It wants a model that nobody has here."""

    def __init__(self, model, args):
        self.beta = args.load(model).beta

    def compute_loss(self, logp, ref_logp):
        self.accelerator.log({"kl": logp.detach().sum().item()})
        self._metrics["kl"].append(self.accelerator.gather(logp).mean().item())
        scale = self.beta * self.args.kl_coef * getattr(self.args, "scale", 2.0)
        return scale * (logp - ref_logp) ** 2


class Mute:
    pass


def written(logp, ref_logp, kl_coef, scale=1.0):
    return kl_coef * scale * (logp - ref_logp) ** 2


@pytest.mark.parametrize(
    ("loss", "settings", "wanted"),
    [
        (Plain, {}, 3.0),
        (Plain, {"scale": 0.5}, 0.5),
        (Plain(4.0), {}, 4.0),
        (Plain.penalty, {}, 6.0),
        (Plain(4.0).penalty, {}, 8.0),
        (Module, {}, 1.0),
        (Module, {"beta": 0.25}, 0.25),
        (Configured, {}, 2.0),
        (Configured, {"scale": 5.0}, 5.0),
        (Configured, {"config.scale": 6.0}, 6.0),
        (Configured.forward, {"config.scale": 6.0, "kind": "square"}, 6.0),
        (Untyped.loss, {"config.loss.scale": 7.0, "config.other": 0}, 7.0),
        (Numbered.loss, {"config.path": "here"}, 1.0),
        (Numbered.loss, {}, 1.0),
        (Idle, {}, 3.0),
        (Kinds, {"kind": "k2"}, 1.0),
        (Kinds, {"kind": "square", "kl_coef": 0.5}, 0.5),
        (Trainer.compute_loss, {}, 2.0),
        (Trainer.compute_loss, {"beta": 0.5, "args.kl_coef": 3.0}, 3.0),
        (Numbered.loss, {"config.path": "here", "kl_coef": 0.5}, 0.5),
        (written, {}, 1.0),
        (written, {"kl_coef": 0.1, "scale": 2}, 0.2),
    ],
)
def test_what_is_constructed_runs_with_these_numbers(loss, settings, wanted):
    assert as_subject(loss, options=settings).loss(ROLLOUT).item() == pytest.approx(wanted * UNIT)


def test_numbers_that_were_set_or_assumed_are_told_apart():
    assert as_subject(Module).reading.constants == (
        ("beta", 1.0, "KL coefficient"),
        ("temperature", 1.0, "temperature"),
        ("entropy_coef", 0.0, "entropy coefficient"),
        ("clip_eps", 0.2, "clip range"),
    )
    assert as_subject(written, options={"scale": 2.0}).reading.constants == (
        ("scale", 2.0, "set"),
        ("kl_coef", 1.0, "KL coefficient"),
    )


def local():
    class Inner:
        def loss(self, logp):
            return logp

    return Inner.loss


@pytest.mark.parametrize(
    ("loss", "settings", "why"),
    [
        (written, {"kl_coeff": 1.0}, r"unknown setting of written: 'kl_coeff'. Did you mean 'kl_coef'\?"),
        (Plain, {"scal": 1.0}, r"unknown setting of Plain: 'scal'. Did you mean 'scale'\?"),
        (Configured, {"config.scal": 1.0}, r"unknown setting of Configured: 'config.scal'. Did you mean"),
        (Needy, {}, r"Needy cannot be constructed .*: path has no default, expected --set path=VALUE"),
        (Untyped.loss, {}, r"reads config.loss, which has no value here: write --set config.loss=VALUE"),
        (
            Untyped.loss,
            {"config.loss.x": 1},
            r"reads config.loss.scale, which has no value here: write --set",
        ),
        (Reads, {}, r"the loss reads path, which has no value here: write --set path=VALUE"),
        (Abstract, {}, "Abstract is abstract, expected a class that defines its methods"),
        (Kinds, {"kind": "k7"}, r"unknown member of Kind: 'k7'"),
        (Mute, {}, "Mute has no forward and no __call__"),
        (local(), {}, "wants a self, and its class is not at the top of its file"),
    ],
)
def test_what_cannot_be_constructed_says_what_to_write(loss, settings, why):
    with pytest.raises(ValueError, match=why):
        as_subject(loss, options=settings)


@pytest.mark.parametrize(("name", "value"), data(__file__)["usual"].items())
def test_the_usual_number(name, value):
    settings = Chosen({})
    assert settings.assume(name) == value
    assert settings.assumed[name][0] == value


@pytest.mark.parametrize("name", ["alphabet", "kl_type", "betas", "recipe", "top_p"])
def test_no_usual_number(name):
    settings = Chosen({})
    settings.assume(name)
    assert settings.assumed == {}


def test_a_function_is_left_as_it_is():
    assert callable_of(written, Chosen({})) is written
    with pytest.raises(Unusable, match="has no forward"):
        callable_of(Mute, Chosen({}))
