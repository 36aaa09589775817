"""Make a scalar function of a rollout of a signature: every parameter receives what it was read as."""

from __future__ import annotations

import re
import warnings
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from kl_companion.auditing.reading.arguments import (
    ALIGNED,
    NO_OTHERS,
    Given,
    Others,
    UndefinedName,
    Unusable,
    failed,
)
from kl_companion.auditing.reading.axes import LastAxis
from kl_companion.auditing.reading.batches import HelperFunction, Model, UserBatch
from kl_companion.auditing.reading.construction import Surroundings, is_of_training
from kl_companion.auditing.reading.functions import Signature
from kl_companion.auditing.reading.heads import HEADS, MOST
from kl_companion.auditing.reading.helpers import usual_imports
from kl_companion.auditing.reading.layouts import Layout
from kl_companion.auditing.reading.names import owner_of_model, read_name, result_of
from kl_companion.auditing.reading.precision import as_formulas
from kl_companion.auditing.reading.results import loss_of
from kl_companion.auditing.reading.roles import Read
from kl_companion.auditing.reading.signatures import UnclearNames
from kl_companion.auditing.reading.stand_ins import MissingOption
from kl_companion.losses import policy_gradient_loss
from kl_companion.rollout import Rollout, aggregate, masked


@dataclass(eq=False)
class BoundLoss:
    """A signature as a function of a rollout, under one layout.

    Attributes:
        signature: What its parameters are.
        layout: What their names left open.
        keys: Names that were taken of the batch, as they were read.
        head_sizes: Tokens of the heads that the loss finds itself.
        cut: Tokens of a head that it asks for and that a small world has not; 0 of none.
        result: How the loss was found in what the function returned.
        names: Of its file, which its text does not define, and what stands for them.
    """

    signature: Signature
    layout: Layout = ALIGNED
    keys: dict[str, Read] = field(default_factory=dict)
    head_sizes: set[int] = field(default_factory=set)
    cut: int = 0
    result: str = ""
    names: dict[str, Any] = field(default_factory=dict)

    @property
    def function(self) -> Any:
        """The function that is called."""
        return self.signature.text.call

    @property
    def named(self) -> list[Read]:
        """The readings of the parameters, then of the keys of the batch."""
        return [*self.signature.reads, *self.keys.values()]

    def roles(self) -> set[str]:
        """Return the roles of all that is read."""
        return {r.role for r in self.named}

    @property
    def head(self) -> int:
        """See `kl_companion.auditing.reading.subject.Subject`."""
        if any(role in HEADS for role in self.roles()):
            return self.signature.likeliest
        sizes = [k for k in self.head_sizes if 1 <= k <= MOST]
        return max(sizes) if sizes and self.roles() else 0

    def call(
        self,
        rollout: Rollout,
        layout: Layout,
        others: Others = NO_OTHERS,
        watch: LastAxis | None = None,
    ) -> tuple[torch.Tensor, Given]:
        """Return the loss on a rollout, [batch, seq] or a scalar, in float64 throughout, and what was passed.

        Args:
            rollout: The batch.
            layout: How its tensors are laid out.
            others: Rollouts from which single inputs are given.
            watch: Notes what is done with tensors of its names.

        Raises:
            Unusable: the function fails, or returns no loss.
        """
        while True:
            try:
                return self._called(rollout, layout, others, watch)
            except UndefinedName as error:
                if error.name in self.names or not self._stand_in(error):
                    raise
                self.keys.clear()  # names of a batch mean others where a model is asked for the policy's

    def _stand_in(self, error: UndefinedName) -> bool:
        """Note what stands for a name that the text does not define; whether anything can."""
        name, text, settings = error.name, self.signature.text, self.signature.settings
        whole = text.whole
        named = name in settings.given or owner_of_model(name, called=True) or is_of_training(name)
        returned = text.returned(name)
        if returned and not all(map(result_of, returned)):
            return False
        read = read_name(name)
        if isinstance(read, Read) and not (named or returned):  # a tensor of the script
            self.names[name] = read
            return True
        imported = name in usual_imports()
        if not (named or returned or imported) and re.search(rf"(?<![\w.]){name}(\.\w+)*\(", whole):
            return False  # a function of a module that is not there
        try:
            self.names[name] = Surroundings(settings, whole).value(name)
        except MissingOption as missing:
            raise MissingOption(missing.path, "its text does not define") from error
        return True

    def _called(
        self, rollout: Rollout, layout: Layout, others: Others, watch: LastAxis | None
    ) -> tuple[torch.Tensor, Given]:
        signature = self.signature
        given = Given(rollout, layout, signature.likeliest, others=others)
        given.text, given.pads = signature.text, signature.settings.reads_padding
        passed = {r.name: given.of(r.role, r.name) for r in signature.reads} | dict(signature.fixed)
        self.keys.update({n: x for n, x in self.names.items() if isinstance(x, Read)})
        names = {n: given.of(x.role, n) if isinstance(x, Read) else x for n, x in self.names.items()}
        passed |= {r.name: Model(r, lambda: given) for r in signature.reads if r.name in signature.models}
        signature.settings.values = given
        signature.settings.models.clear()
        if signature.batch:
            batch = UserBatch.around(given, signature.keys_mapped, self.keys)
            computed = any(isinstance(x, Model | HelperFunction) for x in self.names.values())
            asked = {"outputs"} if signature.asks_policy or computed else set[str]()
            vars(batch)["_beside"] = {r.role for r in signature.reads} | asked
            passed[signature.batch] = batch
        if watch is not None:
            watch.given = [passed[n] for n in watch.names if n in passed]
        named, parameters = dict(passed), signature.text.parameters
        first = [named.pop(p.name) for p in parameters if p.kind is p.POSITIONAL_ONLY and p.name in named]
        try:
            with (
                as_formulas() as precision,
                watch or nullcontext(),
                warnings.catch_warnings(),
                signature.text.lending(names),
            ):
                warnings.simplefilter("ignore")  # of batches that are smaller than the reader's
                out = self.function(*first, **named)
            self.head_sizes.update(precision.likeliest)
            self.cut = max(self.cut, precision.cut)
        except (Unusable, UnclearNames):
            raise
        except (Exception, SystemExit) as error:  # the reader's own code: whatever it raises is the answer
            raise failed(signature.label, self.function, error, passed) from error
        x, self.result = loss_of(out, rollout, signature.label, layout)
        return x, given

    def scalar(
        self, rollout: Rollout, others: Others = NO_OTHERS, layout: Layout | None = None
    ) -> torch.Tensor:
        """Return the loss as one number; ``others`` has the rollouts from which single inputs are given."""
        x, _ = self.call(rollout, layout or self.layout, others)
        return x if x.ndim == 0 else aggregate(x, rollout.completion_mask)

    def in_reward(self, rollout: Rollout, others: Others = NO_OTHERS, /) -> torch.Tensor:
        """Return the REINFORCE loss of minus the values, which are charged as they are."""
        x, _ = self.call(rollout, self.layout, others)
        if x.ndim < 2:
            raise ValueError("placement='reward' got a scalar, expected one value per token [batch, seq]")
        return policy_gradient_loss(rollout, -masked(x.detach(), rollout.completion_mask).sum(-1))
