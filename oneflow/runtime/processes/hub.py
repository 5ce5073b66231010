"""Lines of JSON between the processes of a run: the first one relays what each says to all of them.

Knows sockets and threads only; what the lines mean is in ``processes.py``. JAX's own coordination service cannot do this: it
aborts a process, without naming another, where a peer is missing, late or gone.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from ...errors import ProcessError

_GREETING = "oneflow-run-1"
_RETRY_SECONDS = 0.2


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises OSError where the address is not this machine's or the port is in use."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    server = socket.socket(family, kind, protocol)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a run may begin right after another ended
        server.bind(address)
        server.listen(256)
    except OSError:
        server.close()
        raise
    return server


def free_port(host: str) -> int:
    """A port that was free a moment ago."""
    with listen(host, 0) as probe:
        return probe.getsockname()[1]


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


class Hub(threading.Thread):
    """In the first process: waits for all members, tells them ``welcome``, then relays every line to all of them."""

    def __init__(self, server: socket.socket, count: int, welcome: dict[str, Any], patience: float):
        super().__init__(name="oneflow-hub", daemon=True)
        self._server = server
        self._count = count
        self._welcome = welcome
        self._deadline = time.monotonic() + patience
        self._members: dict[int, socket.socket] = {}
        self._buffers: dict[socket.socket, bytearray] = {}
        self._index_of: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Until all members have left."""
        try:
            self._serve()
        finally:
            self._selector.close()
            for connection in (*self._buffers, self._server):
                connection.close()

    def _serve(self) -> None:
        self._server.setblocking(False)
        self._selector.register(self._server, selectors.EVENT_READ)
        complete = False
        while not complete or self._members:
            for key, _ in self._selector.select(1.0):
                if key.fileobj is self._server:
                    self._accept()
                else:
                    self._read(key.fileobj)  # type: ignore[arg-type]
            if not complete and len(self._members) == self._count:
                complete = True
                self._relay(encode({"go": self._welcome}))
            elif not complete and time.monotonic() > self._deadline:
                missing = [i for i in range(self._count) if i not in self._members]
                self._relay(encode({"refused": "", "missing": missing}))
                return

    def _accept(self) -> None:
        try:
            connection, _ = self._server.accept()
        except OSError:
            return
        connection.settimeout(5.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffers[connection] = bytearray()
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        buffer = self._buffers[connection]
        buffer += data
        *lines, rest = bytes(buffer).split(b"\n")
        buffer[:] = rest
        for line in lines:
            if connection in self._index_of:
                self._relay(line + b"\n")
            elif not self._greet(connection, line):
                return

    def _greet(self, connection: socket.socket, line: bytes) -> bool:
        try:
            hello = json.loads(line)
            index, count = hello["index"], hello["count"]
            known = hello["greeting"] == _GREETING
        except (ValueError, KeyError, TypeError):
            known = False
        if not known:
            self._drop(connection)
            return False
        if count != self._count:
            why = f"it was told that the run has {count} processes, the first one knows of {self._count}"
        elif not 0 <= index < count or index in self._members:
            why = f"another process is number {index} already"
        else:
            self._members[index] = connection
            self._index_of[connection] = index
            return True
        self._send(connection, encode({"refused": why}))
        self._drop(connection)
        return False

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        self._buffers.pop(connection, None)
        index = self._index_of.pop(connection, None)
        if index is not None:
            del self._members[index]
            self._relay(encode({"gone": index}))

    def _relay(self, line: bytes) -> None:
        for connection in list(self._members.values()):
            self._send(connection, line)

    @staticmethod
    def _send(connection: socket.socket, line: bytes) -> None:
        try:
            connection.sendall(line)
        except OSError:
            pass  # its end is seen by the next read


class Member:
    """One process's connection to the hub."""

    def __init__(self, host: str, port: int, index: int, count: int, patience: float):
        self._where = f"{host}:{port}"
        self._patience = patience
        self._lock = threading.Lock()
        deadline = time.monotonic() + patience
        welcome = None
        while welcome is None:
            self._socket = self._connect(host, port, deadline)
            self._file = self._socket.makefile("rb")
            self.send({"greeting": _GREETING, "index": index, "count": count})
            welcome = self._await_welcome(deadline)
        self.welcome = welcome

    def _connect(self, host: str, port: int, deadline: float) -> socket.socket:
        why = ""
        while (left := deadline - time.monotonic()) > 0:
            try:
                connection = socket.create_connection((host, port), timeout=min(left, 5.0))
            except OSError as error:
                why = error.strerror or str(error)
                time.sleep(_RETRY_SECONDS)
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection
        raise ProcessError(
            f"the first process of the run does not answer at {self._where}: {why} (tried for {self._patience:g} s)\n"
            f"  try        start the same script on every machine; look at the addresses and at flow.env.ctrl_port"
        )

    def _await_welcome(self, deadline: float) -> dict[str, Any] | None:
        """What the hub tells when all are there; None where another try makes sense: it may not have been the hub."""
        self._socket.settimeout(self._patience + 10)
        try:
            line = self._file.readline()
            answer = json.loads(line) if line else {}
        except (OSError, ValueError):
            answer = {}
        self._socket.settimeout(None)
        if "go" not in answer:
            self.close()
            if "missing" in answer:
                raise MissingError(answer["missing"])
            why = answer.get("refused", "")
            if not why and time.monotonic() + _RETRY_SECONDS < deadline:
                time.sleep(_RETRY_SECONDS)
                return None
            why = why or "what listens there is no process of this run, or it has just ended"
            raise ProcessError(f"the process at {self._where} does not let this one join: {why}")
        return answer["go"]

    def close(self) -> None:
        """Leaves the run."""
        self._file.close()
        self._socket.close()

    def send(self, message: dict[str, Any]) -> None:
        """Tells all processes, this one included. Where the connection is gone, ``listen`` sees it."""
        try:
            with self._lock:
                self._socket.sendall(encode(message))
        except OSError:
            pass

    def listen(self, receive: Callable[[dict[str, Any]], None], ended: Callable[[], None]) -> None:
        """Hands every message to ``receive``, from a thread; ``ended`` when the hub is gone."""

        def run() -> None:
            try:
                for line in self._file:
                    receive(json.loads(line))
            except (OSError, ValueError):
                pass  # closed, by whomever
            self.close()
            ended()

        threading.Thread(target=run, name="oneflow-listen", daemon=True).start()


class MissingError(Exception):
    """Some processes did not come in time; ``args[0]`` are their numbers."""
