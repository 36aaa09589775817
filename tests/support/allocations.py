"""Memory by counting: the bytes of every tensor made inside a block, while it lives."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary


class Allocations(TorchDispatchMode):
    """Count new storages between entry and exit.

    Views and ``out=`` make nothing new; a storage counts until the last tensor on it is gone, kept by a
    name, by a view or for a backward pass. What an operator takes and gives back inside its own kernel
    is not seen, nor is memory that was there before and is given back.

    Attributes:
        live: Bytes made inside the block that are still alive.
        peak: The most that `live` ever was.
        largest: Bytes of the largest single storage made.
        made: Bytes made altogether.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.largest = self.made = 0
        self._counted: Any = WeakIdKeyDictionary()  # storage -> [bytes before the block, bytes since]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        # torch.tensor(...) makes its storage out of sight and hands it to this operator
        old = _storages(given)
        if func is not torch.ops.aten.lift_fresh.default:
            for storage in old:
                self._enter(storage, before=storage.nbytes())
        out = func(*args, **given[1])
        for storage in {id(x): x for x in (*old, *_storages(out))}.values():
            self._enter(storage, before=0)
            self._measure(storage)
        return out

    def _enter(self, storage: torch.UntypedStorage, *, before: int) -> None:
        if storage not in self._counted:
            self._counted[storage] = entry = [before, 0]
            weakref.finalize(storage, self._gone, entry).atexit = False

    def _measure(self, storage: torch.UntypedStorage) -> None:
        entry = self._counted[storage]
        grown = storage.nbytes() - entry[0] - entry[1]  # an out= may be resized
        entry[1] += grown
        self.live += grown
        self.made += max(grown, 0)
        self.peak, self.largest = max(self.peak, self.live), max(self.largest, entry[1])

    def _gone(self, entry: list[int]) -> None:
        self.live -= entry[1]


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    """Storages of the tensors in tuples, lists and dictionaries: all that an operator takes or gives."""
    if isinstance(tree, torch.Tensor):
        return [tree.untyped_storage()]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, tuple | list):
        return []
    return [storage for x in tree for storage in _storages(x)]
