"""The points of a table on other machines: an existing dask cluster.

What travels to a worker is a project in small: the notebook, and the tables that it loads by name. So a
worker needs no checkout and no shared folder, only an installed package, and it cannot read a table that
differs from the driver's. It runs the point in a temporary folder of its own, exactly as the driver would,
and sends three files back as bytes: the rows, the executed notebook and the log (`worker.py`). The driver
puts them into the point's folder, checks the rows and makes the table, as after a local run.

A worker is refused when the package files that the notebook uses, or the versions that numbers depend on, are
not those of the driver: all workers before anything is sent, and each one again with every point, since it
may have joined or changed meanwhile. The scheduler repeats the point of a worker that is lost; a point that
the driver has on disk is never sent again.

joblib only drives the threads that wait, as it does locally. Its own backend for dask was tried and loses
what matters here: in joblib 1.6 no error of a future reaches `Parallel`, so a point that the scheduler gives
up, and a cluster that has lost its last worker, are waited for without end; everything runs in the driver's
process when the workers have one thread in all; `n_jobs` is disregarded; and the death of a worker repeats
points that had been collected.

Whoever reaches a scheduler can run code on its workers: keep both within your own network, or use dask's TLS.
"""

from __future__ import annotations

import ast
import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kl_book.tables.checking import FILES
from kl_book.tables.closure import notebook_code, parse
from kl_book.tables.manifest import ON_GPU, Manifest, read_manifest
from kl_book.tables.notebook_process import EXECUTED, LOG, WRITTEN, Backend, TableError
from kl_book.tables.project import names, unknown
from kl_book.tables.worker import Outcome, PointTask, Worker, identify, refusal, run_task
from kl_companion.files import write_atomically

CONNECT_SECONDS = 5.0
ALONE_SECONDS = 60.0  # how long a point waits for a worker when the last one has gone


class Cluster(NamedTuple):
    """A connected cluster.

    `ask(function, *arguments)` has every worker answer, an exception for one that cannot;
    `call(function, *arguments)` runs it on some worker, and again on another one if that is lost;
    `slots()` says how many calls are answered at a time.
    """

    ask: Callable[..., dict[str, Any]]
    call: Callable[..., Any]
    slots: Callable[[], int]


class Lost(RuntimeError):
    """No outcome: workers were lost time and again, none is left, or the connection to the scheduler is."""


def checked(backend: str, address: str | None) -> tuple[str, int]:
    """Host and port of the address of a backend that can be used here.

    Raises:
        ValueError: an unknown backend, or an address without host or port.
        ImportError: the library of the backend is not installed.
    """
    if backend not in BACKENDS:
        raise unknown("backend", backend, BACKENDS)
    try:
        parts = urlsplit(address if address and "://" in address else f"//{address or ''}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port:
        raise ValueError(
            f"address is {address!r}, expected tcp://host:port: where the {backend} scheduler listens"
        )
    _library()
    return host, port


def _library() -> Any:
    try:
        return import_module("distributed")
    except ModuleNotFoundError as error:
        if error.name != "distributed":
            raise
        what = "needs distributed, which is not installed: pip install -e 'book[cluster]'"
        raise ImportError(f"backend 'dask' {what}", name="distributed") from None


@contextmanager
def connect(backend: str, address: str, manifest: Manifest, record: Mapping[str, Any]) -> Iterator[Backend]:
    """Connect to a cluster, check its workers, and run points there until the end of the `with`.

    Args:
        backend: "dask".
        address: where the scheduler listens, `tcp://host:port`.
        manifest: of the table.
        record: what `provenance.begin` gave.

    Raises:
        ConnectionError: nothing answers at the address within seconds, or there is no worker.
        TableError: a worker holds another package, other versions, or no GPU where one is needed.
    """
    try:
        socket.create_connection(checked(backend, address), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"no {backend} scheduler answers at {address}: {error}") from None
    task = pack(manifest, record)
    with BACKENDS[backend](_library(), address) as cluster:
        found = cluster.ask(identify, task)
        if not found:
            raise ConnectionError(f"the {backend} cluster at {address} has no worker: start one, and repeat")
        said = [_refused(name, answer, task) for name, answer in found.items()]
        if refused := [text for text in said if text]:
            raise TableError("\n".join([f"{manifest.name}: no point was sent.", *refused]))
        devices: list[dict[str, str | None]] = []

        def execute(notebook: Path, parameters: Mapping[str, Any], folder: Path) -> tuple[int, str]:
            try:
                outcome: Outcome = cluster.call(run_task, task, dict(parameters))
            except Lost as error:
                return 1, str(error)
            devices.append(outcome.device)
            for name in (LOG, EXECUTED, WRITTEN):
                if name in outcome.files:
                    write_atomically(folder / name, outcome.files[name])
            return outcome.status, outcome.message

        yield Backend(execute, cluster.slots(), lambda: _merged(devices))


def pack(manifest: Manifest, record: Mapping[str, Any]) -> PointTask:
    """What a worker needs: the notebook, the tables that it loads by a literal name, what to compare."""
    notebook = manifest.notebook
    tree = parse(notebook_code(notebook.read_text(encoding="utf-8")))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    loaded = [call.args[0] for call in calls if ast.unparse(call.func).split(".")[-1] == "load"]
    wanted = {node.value for node in loaded if isinstance(node, ast.Constant)}
    paths = {notebook}
    for other in (read_manifest(name) for name in names() if name in wanted):
        paths |= {other.notebook, *(path for file in FILES if (path := other.folder / file).is_file())}
        paths |= {other.root / "tables" / other.like / "manifest.yml"} if other.like else set()
    files = {path.relative_to(manifest.root).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    main = notebook.relative_to(manifest.root).as_posix()
    return PointTask(files, main, record["package_files"], record["versions"], record["profile"] in ON_GPU)


def _refused(name: str, answer: Any, task: PointTask) -> str | None:
    if isinstance(answer, Worker):
        return refusal(name, answer, task)
    return (
        f"worker {name} cannot use kl_companion ({type(answer).__name__}: {answer}). "
        "Install the same version there, with `pip install -e book`, and start the worker again."
    )


def _merged(devices: list[dict[str, str | None]]) -> dict[str, str | None] | None:
    """The devices that points ran on as one entry of the provenance, each model once; None for no device."""
    models = {key: sorted({text for d in devices if (text := d[key])}) for key in ("gpu", "processor")}
    return {key: ", ".join(texts) or None for key, texts in models.items()} if devices else None


# -- dask ---------------------------------------------------------------------------------------------------


@contextmanager
def _dask(distributed: Any, address: str) -> Iterator[Cluster]:
    async def greet() -> None:
        # a client's own timeout ends at the connection: what accepts one and says nothing would keep it
        options = distributed.Security().get_connection_args("client")
        connection = distributed.core.connect(address, timeout=CONNECT_SECONDS, **options)
        (await asyncio.wait_for(connection, CONNECT_SECONDS)).abort()

    try:
        with ThreadPoolExecutor(1) as thread:  # a notebook has a loop running in this one
            thread.submit(asyncio.run, greet()).result()
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except Exception as error:
        raise ConnectionError(f"no dask scheduler answers at {address}: {error!r}") from None

    def ask(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        return dict(client.run(function, *arguments, on_error="return")) if client.nthreads() else {}

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        future = client.submit(function, *arguments, pure=False)
        done, alive = threading.Event(), time.monotonic()
        future.add_done_callback(lambda _: done.set())
        try:
            while not done.wait(1.0):
                alive = time.monotonic() if client.nthreads() else alive
                if time.monotonic() - alive > ALONE_SECONDS:
                    raise Lost(f"The cluster at {address} has had no worker for {ALONE_SECONDS:.0f} s.")
            return future.result()
        except Lost:
            raise
        except (CancelledError, distributed.comm.CommClosedError) as error:
            raise Lost(f"The connection to the scheduler at {address} was lost: {error}") from None
        except distributed.KilledWorker as error:
            text = f"It was given up after {error.allowed_failures + 1} workers in a row were lost with it"
            raise Lost(f"{text}. Does it need more memory than they have?") from None
        except Exception as error:
            raise Lost(f"Its worker could not run it: {type(error).__name__}: {error}") from None
        finally:
            future.release()  # else the scheduler computes the result again when its worker dies

    with client:
        yield Cluster(ask, call, lambda: sum(client.nthreads().values()))


BACKENDS: dict[str, Callable[[Any, str], AbstractContextManager[Cluster]]] = {"dask": _dask}
