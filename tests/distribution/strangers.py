"""Servers that are not the hub of a run."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def stranger(talk: Callable[[socket.socket], object]) -> Iterator[int]:
    """The port of a server on loopback that has ``talk(connection)`` with each client."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    accepted = server.accept()[0]
                except OSError:
                    return
                with accepted, contextlib.suppress(OSError):
                    talk(accepted)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
