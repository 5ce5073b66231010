"""The connection between two processes of a run: a proof that both know its secret, then JSON messages, one per line.

Knows bytes and sockets only. The messages are in ``messages.py``.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import socket
import threading
from typing import Any

MAX_LINE = 4 << 20  # bytes of one message
MAX_BACKLOG = 64 << 20  # bytes kept for a peer that does not read
MAX_DEPTH = 16  # of nested lists and objects in one message
_CHUNK = 1 << 16

PROTOCOL = b"oneflow-run-3\n"
_RANDOM_BYTES = 32
CHALLENGE_SIZE = len(PROTOCOL) + _RANDOM_BYTES  # the hub speaks first
RESPONSE_SIZE = 2 * _RANDOM_BYTES  # the member's own challenge, and its proof
VERDICT_SIZE = 1 + _RANDOM_BYTES  # whether the hub accepts it, and the hub's proof
_ACCEPTED, _REFUSED = b"+", b"-"


class ProtocolError(Exception):
    """The peer sent what no process of a run sends."""


# --- challenge and response


def session_key(secret: str, run: str) -> bytes:
    """The key of one run. ``run`` distinguishes runs that share a secret: a job's number, the count of restarts."""
    return hmac.digest(secret.encode(), PROTOCOL + run.encode(), "sha256")


def _proof(key: bytes, side: bytes, challenge: bytes, other: bytes) -> bytes:
    return hmac.digest(key, side + challenge + other, "sha256")


class HubHandshake:
    """The hub's side: sends ``challenge``, and answers a member's response by ``verdict``."""

    def __init__(self, key: bytes):
        self._key = key
        self._random = secrets.token_bytes(_RANDOM_BYTES)
        self.challenge = PROTOCOL + self._random

    def verdict(self, response: bytes) -> tuple[bool, bytes]:
        """Whether the member knows the secret, and what to send it."""
        theirs, proof = response[:_RANDOM_BYTES], response[_RANDOM_BYTES:]
        if not hmac.compare_digest(proof, _proof(self._key, b"member", self._random, theirs)):
            return False, _REFUSED + bytes(_RANDOM_BYTES)
        return True, _ACCEPTED + _proof(self._key, b"hub", theirs, self._random)


class MemberHandshake:
    """A member's side: answers the hub's challenge by ``response``, and judges its verdict."""

    def __init__(self, key: bytes):
        self._key = key
        self._random = secrets.token_bytes(_RANDOM_BYTES)
        self._theirs = b""

    @property
    def opening(self) -> bytes:
        """The beginning of the response, which does not depend on the challenge."""
        return self._random

    def response(self, challenge: bytes) -> bytes:
        """The reply to send to the hub. Raises ProtocolError if the peer is not a hub."""
        if len(challenge) != CHALLENGE_SIZE or not challenge.startswith(PROTOCOL):
            raise ProtocolError("it does not speak the protocol of a run")
        self._theirs = challenge[len(PROTOCOL) :]
        return self._random + _proof(self._key, b"member", self._theirs, self._random)

    def accepted(self, verdict: bytes) -> bool:
        """Whether the hub took this member's proof. Raises ProtocolError where the hub does not know the secret itself."""
        if verdict[:1] == _REFUSED:
            return False
        if not hmac.compare_digest(verdict, _ACCEPTED + _proof(self._key, b"hub", self._random, self._theirs)):
            raise ProtocolError("it does not know the secret of this run")
        return True


# --- messages as lines


def encode(message: dict[str, Any]) -> bytes:
    """The message as a line. Raises ValueError where it is larger or deeper than the other side takes."""
    line = json.dumps(message, separators=(",", ":")).encode()
    if len(line) > MAX_LINE or _depth(line) > MAX_DEPTH:
        raise ValueError(f"a message of {len(line)} bytes, {_depth(line)} levels deep, is more than other processes take")
    return line + b"\n"


def decode(line: bytes) -> Any:
    """The message in a line. Raises ProtocolError if it is not JSON, or nested too deeply."""
    if _depth(line) > MAX_DEPTH:
        raise ProtocolError("a message is nested too deeply")
    try:
        return json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a message is not JSON") from error


_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")


def _depth(line: bytes) -> int:
    """How deeply lists and objects are nested, found without parsing: in what is valid JSON this is exact."""
    if (brackets := line.count(b"[") + line.count(b"{")) <= MAX_DEPTH:
        return brackets  # an upper bound
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", line)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


class LineBuffer:
    """Splits what arrives into lines. Each byte is looked at once, however the lines are cut into pieces."""

    def __init__(self, limit: int = MAX_LINE):
        self._limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes. Raises ProtocolError where one is longer than the limit."""
        first, *others = data.split(b"\n")
        self._rest += first
        lines = []
        for following in others:
            lines.append(bytes(self._rest))
            self._rest = bytearray(following)
        if len(self._rest) > self._limit or any(len(line) > self._limit for line in lines):
            raise ProtocolError(f"a message is longer than {self._limit} bytes")
        return lines


class Channel:
    """A connected socket that never blocks: what the peer does not take at once waits here, in order.

    ``send`` and ``flush`` may be called by any thread.
    """

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._lock = threading.Lock()
        self._backlog = bytearray()

    def fileno(self) -> int:
        """The number of its socket, for selectors."""
        return self._socket.fileno()

    @property
    def has_backlog(self) -> bool:
        """Whether something still waits to be sent."""
        return bool(self._backlog)

    def send(self, data: bytes) -> None:
        """Sends what the peer takes now and keeps the rest. Raises OSError where the connection is gone or the rest too much."""
        with self._lock:
            if len(self._backlog) + len(data) > MAX_BACKLOG:
                raise ConnectionAbortedError("the peer does not read")
            self._backlog += data
            self._flush()

    def flush(self) -> None:
        """Sends what the peer takes now. Raises OSError where the connection is gone."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        while self._backlog:
            try:
                sent = self._socket.send(self._backlog[:_CHUNK])
            except BlockingIOError:
                return
            except OSError:
                self._backlog.clear()  # nobody will ever read it
                raise
            del self._backlog[:sent]

    def receive(self, size: int = _CHUNK) -> bytes:
        """At most ``size`` bytes that have arrived; empty at the end. Raises BlockingIOError if there are none, or OSError."""
        return self._socket.recv(size)

    def shut_down(self) -> None:
        """Ends the connection for both sides; a thread that waits for it wakes up."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the peer was faster

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()
