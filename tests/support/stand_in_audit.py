"""Audits of losses of the corpus where the stand-in takes PyTorch's place: `python -m ... NAME...`.

Prints a line of JSON per loss, [name, verdict as data, card].
"""

import json
import sys

from kl_companion.stand_in.namespace import modules

SETTINGS = {"want": "reverse_kl"}


def verdict(name):
    """A loss by its file and function, its verdict as data, and its card."""
    from kl_companion.auditing import audit
    from kl_companion.auditing.card import card
    from tests.support.corpus import corpus, load

    path, function, hand = next(x for x in corpus() if f"{x[0].stem}.{x[1]}" == name)
    loss = load(path)
    for part in function.split("."):
        loss = getattr(loss, part)
    found = audit(loss, set=hand.options, map=hand.map, **SETTINGS)
    return name, {**found.to_dict(), "versions": None}, card(found)


if __name__ == "__main__":
    sys.modules.update(modules())
    for each in sys.argv[1:]:
        print(json.dumps(verdict(each)), flush=True)
