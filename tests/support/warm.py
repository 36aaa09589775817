"""Python with the slow imports done: every notebook's process forks from one that has loaded the libraries.

Most notebooks work for a few seconds, and importing torch, sympy, pandas and seaborn takes two more of a
processor each time. `warm()` starts a process that has imported them, and a Jupyter kernel "python3" whose
command is this file. `warm.py ARGUMENTS` does what `python ARGUMENTS` does, in a fork of that process; it
needs no site packages and starts at once. Nothing of the project is imported beforehand, and every notebook
gets a process of its own. What cannot be served (another hash seed, several threads, a system without process
descriptors) is run by an ordinary interpreter.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator

FOLDER = "KL_COMPANION_WARM"  # where the sockets are
SEEDS = ("random", "0")  # of hashing: what a process gets by itself, and what the runner of tables asks for
READY = "ready"
LIBRARIES = (
    *("numpy", "pandas", "sympy", "torch", "matplotlib.figure", "matplotlib.backends.backend_svg", "seaborn"),
    *("IPython", "ipykernel.kernelapp", "ipykernel.ipkernel", "nbformat", "papermill"),
    *("torch._dynamo", "torch.distributed.checkpoint"),  # what models load of torch, and what compiles
    *("pytest", "beartype", "jupyter_book.cli.main", "myst_nb.sphinx_ext"),
)


# -- the command: a client that needs the standard library alone ---------------------------------------------


def command() -> list[str]:
    """What to write instead of `[sys.executable]`; the same when nothing is warm."""
    return [sys.executable, "-I", "-S", __file__] if FOLDER in os.environ else [sys.executable]


def ask(arguments: list[str]) -> int | None:
    """Run `python ARGUMENTS` in a fork of the warm process; its status, or None when there is none for it."""
    folder, seed = os.environ.get(FOLDER, ""), os.environ.get("PYTHONHASHSEED", "random")
    if not folder or os.environ.get("OMP_NUM_THREADS") != "1":
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(os.path.join(folder, seed))
    except OSError:
        return None
    request = {"arguments": arguments, "cwd": os.getcwd(), "environment": dict(os.environ)}
    socket.send_fds(connection, [b"\n"], [0, 1, 2])
    connection.sendall(json.dumps(request).encode() + b"\n")
    signal.signal(signal.SIGINT, lambda *_: connection.sendall(b"i"))
    answer = connection.recv(16)
    return int(answer) if answer else 1


@contextlib.contextmanager
def warm() -> Iterator[dict[str, str]]:
    """Start the warm processes, one per kind of hashing; yields the variables that lead to them."""
    if not hasattr(os, "pidfd_open"):
        yield {}
        return
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        kernel = os.path.join(folder, "kernels", "python3")
        os.makedirs(kernel)
        given = [sys.executable, "-I", "-S", __file__, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        with open(os.path.join(kernel, "kernel.json"), "w", encoding="utf-8") as file:
            json.dump({"argv": given, "display_name": "Python 3 (warm)", "language": "python"}, file)
        started = []
        for seed in SEEDS:
            one_thread = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
            others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            process = subprocess.Popen(
                [sys.executable, __file__, "--serve", os.path.join(folder, seed)],
                env={**others, **one_thread, "PYTHONHASHSEED": seed},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)  # closes the pipe, which ends it, and waits
            started.append(process)
        for process in started:
            process.stdout.readline()  # type: ignore[union-attr]
        paths = [folder, os.environ.get("JUPYTER_PATH", "")]
        yield {FOLDER: folder, "JUPYTER_PATH": os.pathsep.join(filter(None, paths))}


# -- the process that has imported the libraries -------------------------------------------------------------


def serve(address: str) -> list[str]:
    """Fork for every request; in the fork, return what it asked for. The caller goes on as that Python."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print(READY, flush=True)
    while select.select([listener, sys.stdin], [], [])[0] == [listener]:  # the pipe closes when the tests end
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return attend(connection)
        connection.close()
        bury()
    bury()
    os._exit(0)


def bury() -> None:
    """Take note of the forks that have ended, so that their time counts as this process's."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def attend(connection: socket.socket) -> list[str]:
    """Fork once more, wait for that process and report its status; it dies with the one that asked for it."""
    _, descriptors, *_ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("rb") as stream:
        request = json.loads(stream.readline())
    child = os.fork()
    if child == 0:
        return become(request, descriptors, connection)
    for descriptor in descriptors:
        os.close(descriptor)
    process = os.pidfd_open(child)
    while True:
        ready = select.select([process, connection], [], [])[0]
        if process in ready:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            with contextlib.suppress(OSError):
                connection.sendall(str(status if status >= 0 else 128 - status).encode())
            os._exit(0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if connection.recv(1):
                os.kill(child, signal.SIGINT)
            else:
                os.killpg(child, signal.SIGKILL)
                os._exit(0)


def become(request: dict[str, object], descriptors: list[int], connection: socket.socket) -> list[str]:
    """Take over the streams, the folder and the environment of the process that asked."""
    connection.close()
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    return list(request["arguments"])  # type: ignore[call-overload]


def go_on(arguments: list[str]) -> None:
    """Be `python ARGUMENTS`: code after -c, a module after -m, or a script."""
    import random
    import runpy
    import types

    random.seed()
    kind = arguments[0] if arguments[0] in ("-c", "-m") else ""
    name, *rest = arguments[bool(kind) :]
    sys.argv = [kind if kind == "-c" else name, *rest]
    own = {"-c": "", "-m": os.getcwd()}.get(kind, os.path.dirname(os.path.abspath(name)))
    paths = os.environ.get("PYTHONPATH", "")
    sys.path[:1] = [own, *filter(None, paths.split(os.pathsep))]
    if kind == "-c":
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(name, "<string>", "exec"), vars(main))
    elif kind == "-m":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(os.path.abspath(name), run_name="__main__")


def prepare(address: str) -> None:
    """Import the libraries, then serve."""
    import gc
    import importlib

    os.environ["JPY_PARENT_PID"] = str(os.getpid())  # read at import: a kernel with a parent is silent
    for library in LIBRARIES:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(library)
    gc.collect()
    gc.freeze()  # nothing of this is looked through, hence copied, in every fork
    try:
        go_on(serve(address))
    except KeyboardInterrupt:  # a process that has imported torch's compiler would end with a status of 1
        end_as_interrupted()


def end_as_interrupted() -> None:
    """Print what was interrupted, leave tidily, and end by the signal, as Python does by itself."""
    import atexit

    sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        prepare(sys.argv[2])
    else:
        status = ask(sys.argv[1:])
        if status is None:
            os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
        sys.exit(status)
