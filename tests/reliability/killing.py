"""Start work, disturb it, repeat it, and say what was lost: what the subjects of `interruptions` share."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import BinaryIO, NamedTuple

import psutil

from tests.reliability.trying import Trial
from tests.support.layout import PATH

ROOT = Path(__file__).resolve().parents[2]
DISTURBING = Path(__file__).with_name("disturbing")
GRACE, PATIENCE = 20.0, 240.0  # seconds: to end after a kill, and to end at all
IT, GROUP, BELOW = "the process", "its process group", "a process below it"


class Running:
    """A process that was started, and what it prints."""

    def __init__(self, process: subprocess.Popen[bytes] | BaseProcess, stream: BinaryIO) -> None:
        self.process, self.pieces = process, list[bytes]()
        self.reader = threading.Thread(target=self._read, args=[stream], daemon=True)
        self.reader.start()

    def _read(self, stream: BinaryIO) -> None:
        with stream:
            self.pieces.extend(iter(lambda: stream.read(1 << 16), b""))

    def wait(self, seconds: float) -> int | None:
        """Its exit status, None if it is still running then."""
        if isinstance(self.process, subprocess.Popen):
            try:
                return self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                return None
        self.process.join(seconds)
        return self.process.exitcode

    def said(self) -> str:
        """What it printed, once it and all below it have ended."""
        self.reader.join(GRACE)
        return b"".join(self.pieces).decode(errors="replace")


class Work:
    """Something that takes a while, in the folder `project` of a folder; its temporary files are in `tmp`.

    Subclasses say how it is prepared and started, and what must hold after it was disturbed.
    """

    what = "work"
    in_place = False  # are its files written where they stay, and mended by the next run?

    def prepare(self, folder: Path) -> None:
        """Make a copy of which nothing is done."""
        raise NotImplementedError

    def command(self, folder: Path) -> list[str]:
        """The command that does the work."""
        raise NotImplementedError

    def variables(self, folder: Path) -> dict[str, str]:
        """Further variables of its processes."""
        return {}

    def start(self, folder: Path, variables: dict[str, str], limit: int | None = None) -> Running:
        """Start the work; a file that grows beyond the limit cannot be written."""
        environment = {**os.environ, **environment_of(folder), **self.variables(folder), **variables}

        def limited() -> None:
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        process = subprocess.Popen(
            self.command(folder),
            cwd=folder / "project",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=limited,
        )
        assert process.stdout is not None
        return Running(process, process.stdout)

    def result(self, folder: Path) -> dict[str, bytes]:
        """The files that count and are there, by name."""
        raise NotImplementedError

    def finished(self, folder: Path) -> set[str]:
        """The pieces of work that are done and kept."""
        return set()

    def begun(self, folder: Path, said: str) -> list[str]:
        """The pieces that were begun since the log was removed, by it or by what was printed meanwhile."""
        log = folder / "project" / "log"
        return [line.split()[0] for line in log.read_text().splitlines()] if log.is_file() else []

    def files(self, folder: Path) -> set[str]:
        """Every file and folder by its path, but those by which Python tries a folder for temporary files."""
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        return {name for name in found if not re.fullmatch(r"tmp/[a-z0-9_]{8}", name)}

    def rest(self, folder: Path) -> None:
        """What happens to a folder before the work is repeated."""


class Ended(NamedTuple):
    status: int | None
    said: str
    seconds: float


class Whole(NamedTuple):
    """What undisturbed work takes and leaves."""

    seconds: float
    writes: int
    result: dict[str, bytes]
    files: set[str]
    largest: int


# disturbs work that was prepared in a folder and waits until it has ended
Disturbance = Callable[[Work, Path, Whole, random.Random], tuple[Ended, list[str]]]


def environment_of(folder: Path) -> dict[str, str]:
    """The variables of work in a folder. No bytecode is kept: a full disk would leave half of a file."""
    path = os.pathsep.join([str(DISTURBING), PATH])
    fixed = {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return {"PYTHONPATH": path, "TMPDIR": str(folder / "tmp"), **fixed}


def ended(running: Running, since: float) -> Ended:
    """Wait for the end of work, for minutes if it must be; the status of what hangs is None."""
    status = running.wait(PATIENCE)
    seconds = time.monotonic() - since
    if status is None:
        for process in alive(running.process.pid or 0):
            process.kill()
    return Ended(status, running.said(), seconds)


def repeat(work: Work, folder: Path, **variables: str) -> Ended:
    """Do the work, undisturbed."""
    (folder / "project" / "log").unlink(missing_ok=True)
    since = time.monotonic()
    return ended(work.start(folder, variables), since)


def alive(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def still_running(family: list[psutil.Process], folder: Path) -> list[str]:
    """What has not ended long after a kill: of these processes, and of all with this temporary folder."""
    end, own = time.monotonic() + GRACE, str(folder / "tmp")

    def left() -> list[psutil.Process]:
        found = [p for p in family if p.is_running()]
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR") == own and process not in found:
                    found.append(process)
            except psutil.Error:
                continue
        return [p for p in found if not _zombie(p)]

    while left():
        if time.monotonic() > end:
            found = [" ".join(p.cmdline()[:5]) for p in left()]
            for process in left():
                process.kill()
            return [f"still running {GRACE:.0f} s after the kill: {line}" for line in found]
        time.sleep(0.05)
    return []


def _zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# -- disturbances --------------------------------------------------------------------------------------------


def killed(whom: str = IT) -> Disturbance:
    """Kill at a moment drawn over the time that undisturbed work takes."""

    def disturb(work: Work, folder: Path, whole: Whole, draw: random.Random) -> tuple[Ended, list[str]]:
        moment, since = draw.uniform(0, whole.seconds), time.monotonic()
        running = work.start(folder, {})
        if running.wait(moment) is not None:
            return ended(running, since), []
        family = alive(running.process.pid or 0)
        victims = {IT: family[:1], GROUP: family, BELOW: family[1:] and [draw.choice(family[1:])]}[whom]
        if whom == GROUP:
            victims = [p for p in family if p.is_running() and _group(p) == running.process.pid]
        for process in victims:
            process.send_signal(signal.SIGKILL)
        found = ended(running, since)
        return found, still_running(family, folder)

    return disturb


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def killed_at_a_write(work: Work, folder: Path, whole: Whole, draw: random.Random) -> tuple[Ended, list[str]]:
    """Kill the process that does the n-th write of all, when half of it is written."""
    number, since = draw.randint(1, whole.writes), time.monotonic()
    found = ended(work.start(folder, {"KL_DISTURB": f"kill:{number}:{folder / 'tally'}"}), since)
    return found, still_running([], folder)


def full(work: Work, folder: Path, whole: Whole, draw: random.Random) -> tuple[Ended, list[str]]:
    """No space left on the device from the n-th write on."""
    number, since = draw.randint(1, whole.writes), time.monotonic()
    found = ended(work.start(folder, {"KL_DISTURB": f"full:{number}:{folder / 'tally'}"}), since)
    return found, [*_explained(found), *still_running([], folder)]


def limited(work: Work, folder: Path, whole: Whole, draw: random.Random) -> tuple[Ended, list[str]]:
    """No file may be longer than a number of bytes, drawn evenly by its logarithm."""
    limit, since = int(2 ** draw.uniform(4, whole.largest.bit_length())), time.monotonic()
    found = ended(work.start(folder, {}, limit), since)
    return found, [*_explained(found), *still_running([], folder)]


def _explained(found: Ended) -> list[str]:
    """A full disk is said in a message, not by a traceback of the command."""
    if found.status == 0 or (not found.said.startswith("Traceback") and "\nTraceback" not in found.said):
        return []
    return [f"a traceback instead of a message: {found.said[-1500:]}"]


# -- counting ------------------------------------------------------------------------------------------------


@contextmanager
def fresh(work: Work, base: Path) -> Iterator[Path]:
    """A new copy of the work, always under the same path; it is removed at the end."""
    folder = base / "copy"
    try:
        for name in ("tmp", "project"):
            (folder / name).mkdir(parents=True)
        work.prepare(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def undisturbed(work: Work, base: Path) -> Whole:
    """Do the work: how long it takes, how often it writes, and what."""
    with fresh(work, base) as folder:
        tally = folder / "tally"
        once = repeat(work, folder, KL_DISTURB=f"count:0:{tally}")
        if once.status != 0:
            raise RuntimeError(f"{work.what} does not even work undisturbed: {once.said[-3000:]}")
        files = [path for path in folder.rglob("*") if path.is_file() and path != tally]
        largest = max(path.stat().st_size for path in files)
        return Whole(once.seconds, tally.stat().st_size, work.result(folder), work.files(folder), largest)


def consequences(
    work: Work, base: Path, whole: Whole, disturbance: Disturbance, draw: random.Random
) -> tuple[list[str], list[str]]:
    """Disturb a fresh copy of the work and repeat it: what failed, and what was lost."""
    failed: list[str] = []
    with fresh(work, base) as folder:
        before = work.result(folder)
        once, lost = disturbance(work, folder, whole, draw)
        if once.status is None:
            failed.append(f"it never ended when it was disturbed: {once.said[-500:]}")
        now = work.result(folder)
        for name, content in ({} if work.in_place else now).items():
            if content not in (before.get(name), whole.result.get(name)):
                lost.append(f"{name} is half-written: {content[-100:]!r}")
        lost += [f"{name} is gone" for name in before.keys() - now.keys()]
        kept = work.finished(folder)
        work.rest(folder)
        again = repeat(work, folder)
        if again.status != 0:
            failed.append(f"the next run ended with {again.status}: {again.said[-1500:]}")
        elif (found := work.result(folder)) != whole.result:
            names = {n for n in found.keys() | whole.result.keys() if found.get(n) != whole.result.get(n)}
            failed.append(f"another result after the next run: {sorted(names)}")
        repeated = kept & set(work.begun(folder, again.said))
        lost += [f"{piece} was finished and done again" for piece in sorted(repeated)]
        if again.status == 0:
            lost += [f"left behind: {name}" for name in sorted(work.files(folder) - whole.files)[:5]]
        said = f"(the disturbed run ended with {once.status}: {once.said[-300:]})"
        return [f"{x} {said}" for x in failed], [f"{x} {said}" for x in lost]


def trial(
    what: str, work: Work, base: Path, whole: Whole, disturbances: Sequence[Disturbance], draw: random.Random
) -> Trial:
    """Disturb the work in each of these ways, and count."""
    failed, lost, said = 0, 0, list[str]()
    for number, disturbance in enumerate(disturbances, 1):
        wrong, gone = consequences(work, base, whole, disturbance, draw)
        failed, lost = failed + bool(wrong), lost + bool(gone)
        said += [f"{what}, number {number}: {text}" for text in [*wrong, *gone]]
    return Trial(what, len(disturbances), failed, lost, tuple(said))
