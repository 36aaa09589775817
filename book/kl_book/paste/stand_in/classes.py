"""`nn.Module`, `nn.Parameter` and `autograd.Function`, as far as losses are written as classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kl_book.paste.stand_in import graph
from kl_book.paste.stand_in.graph import GraphStep, Switched
from kl_book.paste.stand_in.kinds import FLOAT64
from kl_book.paste.stand_in.tensor import NotInPage, Tensor


class Parameter(Tensor):
    """A leaf whose gradient is wanted."""

    __slots__ = ()

    def __init__(self, data: Tensor, requires_grad: bool = True) -> None:
        super().__init__(data.entries, data.size_, data.kind, needs=requires_grad)


class NeuralModule:
    """A class with `forward`; calling it calls that."""

    training = True

    def __init__(self, *_: Any, **__: Any) -> None:
        """Nothing to prepare."""

    def forward(self, *_: Any, **__: Any) -> Any:
        """What the subclass computes."""
        raise NotImplementedError(
            f'Module [{type(self).__name__}] is missing the required "forward" function'
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `forward`."""
        return self.forward(*args, **kwargs)

    def register_buffer(self, name: str, value: Any, persistent: bool = True) -> None:
        """A tensor that is no parameter."""
        setattr(self, name, value)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters, those of modules inside too."""
        for value in vars(self).values():
            if isinstance(value, Parameter):
                yield value
            elif isinstance(value, NeuralModule) and recurse:
                yield from value.parameters()

    def train(self, mode: bool = True) -> NeuralModule:
        """Switch training."""
        self.training = mode
        return self

    def eval(self) -> NeuralModule:
        """The contrary of `train`."""
        return self.train(False)

    def to(self, *_: Any, **__: Any) -> NeuralModule:
        """Itself: there is one device and one floating kind."""
        return self


class _Context:
    """What a function's forward pass keeps for its backward pass."""

    def __init__(self, needs: tuple[bool, ...]) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad = needs

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *_: Tensor) -> None:
        """Said for nothing here."""

    def set_materialize_grads(self, _: bool) -> None:
        """Said for nothing here."""

    def mark_dirty(self, *_: Tensor) -> None:
        """A function that writes over its inputs."""
        raise NotInPage("ctx.mark_dirty, a function that writes over its inputs,")


class Function:
    """A function with a backward pass of its own, of static methods `forward` and `backward`."""

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run the forward pass, and keep the step."""
        tensors = tuple(a for a in args if isinstance(a, Tensor))
        context = _Context(tuple(isinstance(a, Tensor) and a.requires_grad for a in args))
        with Switched(False):
            found = cls.forward(context, *args)  # type: ignore[attr-defined]
        single = isinstance(found, Tensor)
        outputs: Sequence[Any] = [found] if single else list(found)
        if not (graph.is_grad_enabled() and any(context.needs_input_grad)):
            return found
        made = []
        for at, out in enumerate(outputs):
            if not isinstance(out, Tensor) or out.kind is not FLOAT64:
                made.append(out)
                continue
            back = cls._back(context, args, outputs, at)
            made.append(
                Tensor(out.entries, out.size_, out.kind, GraphStep(tensors, back, cls.__name__), True)
            )
        return made[0] if single else tuple(made)

    @classmethod
    def _back(cls, context: _Context, args: tuple[Any, ...], outputs: Sequence[Any], at: int) -> graph.Back:
        def back(g: list[float]) -> list[list[float] | None]:
            given = [
                Tensor(g if i == at else [0.0] * len(out.entries), out.size_, FLOAT64)
                for i, out in enumerate(outputs)
                if isinstance(out, Tensor)
            ]
            with Switched(False):
                found = cls.backward(context, *given)  # type: ignore[attr-defined]
            found = found if isinstance(found, tuple) else (found,)
            parts = zip(args, found, strict=True)
            return [None if g is None else g.entries for a, g in parts if isinstance(a, Tensor)]

        return back
