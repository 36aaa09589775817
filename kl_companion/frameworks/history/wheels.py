"""Published wheels: which there are, one command that fetches them, and the unpacked sources of one.

Nothing is installed and nothing is run: a wheel is downloaded with pip, its sources are unpacked into
``.audit/releases/PROJECT-VERSION``, and the digest of the wheel is kept beside them. Of all audits only
`published` and `fetch` need a network.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

from kl_companion.frameworks.installed import AUDIT, Distribution, Unavailable

RELEASES = AUDIT / "releases"
_SOURCES = (".py", ".yaml", ".yml", ".toml", ".md")
_DEEPER = re.compile(r"^[^/]+\.data/(purelib|platlib)/")
_RECORD = "wheel.json"
_ANY_PYTHON = "--ignore-requires-python"
_NO_DATES = ((1980, 1, 1), (2020, 2, 2))  # what builds write that are to be the same on every day


class Wheel(NamedTuple):
    """What is known of a fetched wheel.

    Attributes:
        file: Its name.
        sha256: Its digest.
        date: The newest date of a file in it, ``2025-08-05``: when it was built; "" where that was left out.
    """

    file: str
    sha256: str
    date: str


def key(version: str) -> tuple[tuple[int, ...], int, str]:
    """By which versions are sorted: release numbers, then what comes after (``.post1``)."""
    numbers, rest = re.fullmatch(r"([\d.]*\d)(.*)", version, re.S).groups()  # type: ignore[union-attr]
    return tuple(map(int, numbers.split("."))), int(re.sub(r"\D", "", rest) or 0), rest


def command(distribution: str, *versions: str) -> str:
    """What to write to fetch releases."""
    return " ".join(("kl-companion frameworks fetch", distribution, *versions))


def published(distribution: str) -> tuple[str, ...]:
    """The versions that the package index has, the oldest first; ConnectionError where it has none.

    Those that need another Python are among them: their sources are read, and not run as they are.
    """
    done = _pip("index", "versions", distribution, _ANY_PYTHON)
    found = re.search(r"^Available versions: (.*)$", done.stdout, re.M)
    if done.returncode or found is None:
        raise ConnectionError(f"pip finds no versions of {distribution}: {done.stderr.strip()[-300:]}")
    return tuple(sorted(found[1].split(", "), key=key))


def fetched(distribution: str) -> tuple[str, ...]:
    """The versions that are here, the oldest first."""
    here = RELEASES.glob(f"{distribution}-*/{_RECORD}")
    return tuple(sorted((p.parent.name.removeprefix(f"{distribution}-") for p in here), key=key))


def fetch(distribution: str, version: str) -> Distribution:
    """Download a wheel and unpack its sources, unless they are here.

    Raises:
        ConnectionError: pip cannot get it; the message has pip's reason.
        ValueError: it is published, but not as a wheel.
    """
    place = RELEASES / f"{distribution}-{version}"
    if (place / _RECORD).is_file():
        return Distribution(distribution, version, place)
    RELEASES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RELEASES) as folder:
        options = ("--no-deps", "--quiet", _ANY_PYTHON, "--dest", folder)
        done = _pip("download", *options, f"{distribution}=={version}")
        files = list(Path(folder).iterdir())
        if done.returncode:
            raise ConnectionError(f"pip cannot fetch {distribution} {version}: {done.stderr.strip()[-300:]}")
        if [f.suffix for f in files] != [".whl"]:
            names = ", ".join(f.name for f in files)
            raise ValueError(f"{distribution} {version} is published as {names}, expected a wheel")
        unpacked = Path(folder) / "unpacked"
        record = unpack(files[0], unpacked)
        (unpacked / _RECORD).write_text(json.dumps(record._asdict(), indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(place, ignore_errors=True)
        unpacked.rename(place)  # whole, or not at all
    return Distribution(distribution, version, place)


def unpack(wheel: Path, place: Path) -> Wheel:
    """Write the sources of a wheel below a folder; what is known of it."""
    with zipfile.ZipFile(wheel) as archive:
        chosen = [i for i in archive.infolist() if i.filename.endswith(_SOURCES) and _inside(i.filename)]
        for member in chosen:  # a wheel of compiled parts may hold its packages one folder deeper
            member.filename = _DEEPER.sub("", member.filename)
        archive.extractall(place, chosen)
        newest = max((i.date_time for i in archive.infolist()), default=(1980, 1, 1))[:3]
    date = "" if newest in _NO_DATES else "{:04}-{:02}-{:02}".format(*newest)
    return Wheel(wheel.name, hashlib.sha256(wheel.read_bytes()).hexdigest(), date)


def _inside(name: str) -> bool:
    return not name.startswith("/") and ".." not in Path(name).parts


def release(distribution: str, version: str) -> Distribution:
    """The unpacked sources of a release.

    Raises:
        Unavailable: it was not fetched; the message has the command.
    """
    place = RELEASES / f"{distribution}-{version}"
    if not (place / _RECORD).is_file():
        here = fetched(distribution)
        known = f"; here are {', '.join(here)}" if here else ""
        raise Unavailable(
            f"{distribution} {version} was not fetched{known}. Fetch it: {command(distribution, version)}"
        )
    return Distribution(distribution, version, place)


def wheel_of(found: Distribution) -> Wheel:
    """What is known of the wheel of a fetched release."""
    return Wheel(**json.loads((found.root / _RECORD).read_text(encoding="utf-8")))


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(call, capture_output=True, text=True, check=False)
