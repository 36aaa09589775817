"""Small things that the tests of tables and clusters share."""

import socket


def quiet(line: str) -> None:
    """Report nothing."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
