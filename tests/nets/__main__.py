"""Compare what the project says with what was frozen: `make nets`, or some of the nets by name.

    python -m tests.nets [NET ...] [--freeze]

Without names, the nets of minutes. `survivors` and `mutants` take a quarter of an hour each and more. A net
prints the difference to its frozen files line by line. ``--freeze`` writes them anew, which belongs into a
commit that says for every line why it changed.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from pathlib import Path

from tests.nets import nets

FROZEN = Path(__file__).parent / "frozen"
SHOWN = 40  # lines of a difference


def frozen(net: str) -> dict[str, str]:
    """Texts of a net's frozen files, by name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted((FROZEN / net).glob("*.txt"))}


def freeze(net: str, texts: dict[str, str]) -> None:
    """Write the texts of a net, and remove files of texts that are gone."""
    folder = FROZEN / net
    folder.mkdir(parents=True, exist_ok=True)
    for name in frozen(net).keys() - texts.keys():
        (folder / name).unlink()
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Lines of a unified diff without context, of all texts that are not the same."""
    lines: list[str] = []
    for name in sorted(before.keys() | now.keys()):
        texts = (before.get(name, "").splitlines(), now.get(name, "").splitlines())
        lines += difflib.unified_diff(*texts, f"frozen/{name}", f"now/{name}", n=0, lineterm="")
    return lines


def main(arguments: list[str]) -> int:
    """Compare or freeze; 0 when nothing differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.nets", description=__doc__.splitlines()[0])
    parser.add_argument("nets", nargs="*", metavar="NET", help=f"some of: {', '.join(nets.NETS)}")
    parser.add_argument("--freeze", action="store_true", help="write the frozen files anew")
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.nets if name not in nets.NETS]:
        parser.error(f"unknown net {unknown[0]!r}, expected one of: {', '.join(nets.NETS)}")
    torn = 0
    for name in asked.nets or nets.QUICK:
        begin = time.monotonic()
        texts = nets.NETS[name]()
        lines = differences(frozen(name), texts)
        if asked.freeze:
            freeze(name, texts)
        torn += bool(lines)
        print(f"{name}: {len(texts)} files, {len(lines)} lines differ ({time.monotonic() - begin:.0f} s)")
        print("\n".join(f"    {line[:200]}" for line in lines[:SHOWN]))
        sys.stdout.flush()
    return int(torn > 0 and not asked.freeze)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
