"""The protocol under fire: a real run while thousands of hostile messages arrive, and each side alone against nonsense."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from strangers import stranger

from oneflow.errors import ProcessError
from oneflow.runtime.processes import addresses, member, messages, wire
from oneflow.runtime.processes.watch import Watch

SECRET = "the secret of the tests"
KEY = wire.session_key(SECRET, "restart 0")
KNOWN = {**messages.FROM_MEMBERS, **messages.FROM_HUB}

REAL = [
    messages.encode("join", **{"from": 1, "count": 2}),
    messages.encode(
        "beat",
        **{"from": 1},
        calls=3,
        returned=2,
        busy="compiling job 'train'",
        doing="waits at train.py:12 (in main)",
        recent=[[2, "job 'train'"], [3, "job 'other'"]],
    ),
    messages.encode("gather", **{"from": 1}, number=1, tag="the seed of the session", value=7),
    messages.encode("gather", **{"from": 1}, number=2, tag="comparing job 'train'", value=["a" * 64, None, {"b": [1.5]}]),
    messages.encode("end", **{"from": 1}, how="failed", why="ValueError: no such file", calls=3),
    messages.encode("go", coordinator="127.0.0.1:4000"),
    messages.encode("missing", ranks=[1], strangers=3),
    messages.encode("gone", **{"from": 0}),
]
NONSENSE = [
    b"null\n", b"[" * 200_000 + b"\n", b"\n" * 500, b'{"a":' * 50_000, b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b'{"kind":"join","from":"1","count":2}\n', b'{"kind":"join","from":0.5,"count":2}\n',
    b'{"kind":"join","from":1e400,"count":2}\n',
    b'{"kind":"beat","from":1,"calls":' + b"9" * 5000 + b"}\n", b"\xff\xfe\n", b'"' * 10_001 + b"\n", b"x" * 300_000,
]  # fmt: skip


def _mutated(generator: random.Random, text: bytes) -> bytes:
    """The text with a few bytes changed, taken out, doubled or cut off, or with a number or a word in the place of another."""
    text = bytearray(text)
    for _ in range(generator.randint(1, 4)):
        at, what = generator.randrange(len(text) + 1), generator.randrange(6)
        if what == 0 and text:
            text[at % len(text)] ^= 1 << generator.randrange(8)
        elif what == 1:
            text[at:at] = generator.randbytes(generator.randint(1, 8))
        elif what == 2:
            del text[at : at + generator.randint(1, 8)]
        elif what == 3:
            text[at:at] = text[: generator.randint(1, 40)]
        elif what == 4:
            del text[at:]
        else:
            old = generator.choice([b"1", b"2", b"[", b'"from"', b"true", b"}", b":"])
            text = text.replace(
                old, generator.choice([b"-1", b"0.5", b"null", b"[[]]", b'""', b"{}", b"99999999999999999999"]), 1
            )
    return bytes(text)


def _hostile(generator: random.Random) -> bytes:
    return _mutated(generator, generator.choice(REAL)) if generator.random() < 0.5 else generator.choice(NONSENSE)


# --- a run


PROGRAM = """
import numpy as np
import oneflow as flow, oneflow.typing as tp

flow.env.start_timeout(170)
config = flow.FunctionConfig()
config.feed_own_part(True)

@flow.global_function(type="train", function_config=config)
def train(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
    w = flow.get_variable("w", (3,), initializer=flow.zeros_initializer())
    loss = flow.math.reduce_mean(w * x)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [6.0]), momentum=0).minimize(loss)
    return loss

rank = flow.distributed.get_rank()
for _ in range(5):
    loss = train(np.full((1, 3), 1 + rank, np.float32))
print(*loss, *flow.get_all_variables()["w"].numpy())
"""
# the gradient of each w is 3 / 6, so that five steps of 6 * 0.5 end at -15, and the last loss was (-12) * (1 + 2) / 2
RESULT = "-18.0 -15.0 -15.0 -15.0"


def _attack(port: int, generator: random.Random, overheard: list[bytes]) -> None:
    """One message of somebody who does not know the secret, or of somebody who knows it and does not behave."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.settimeout(2)
        kind = generator.randrange(6)
        if kind == 0:  # speaks first, and goes
            connection.sendall(_hostile(generator))
            return
        handshake = wire.MemberHandshake(KEY if kind >= 4 else wire.session_key("another secret", ""))
        challenge = connection.recv(wire.CHALLENGE_SIZE)
        if len(challenge) < wire.CHALLENGE_SIZE:
            return
        response = handshake.response(challenge)
        if kind == 1:
            response = _mutated(generator, response)
        elif kind == 2 and overheard:
            response = generator.choice(overheard)  # of an earlier conversation
        overheard[:] = [*overheard[-20:], response]
        text = _hostile(generator)
        if kind >= 4 and b'"join"' in text:
            text = b"null\n"  # who knows the secret may join
        connection.sendall(response + (text if kind != 5 else b""))
        if kind == 4:
            connection.settimeout(0.02)
            connection.recv(1 << 16)
        elif kind == 5:
            connection.recv(wire.VERDICT_SIZE)
            connection.sendall(text)
            connection.settimeout(0.02)  # where the line has no end, the hub waits for more
            connection.recv(1 << 16)


def _fight(tmp_path: Path, count: int, seed: int) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    port = addresses.free_port("127.0.0.1")
    generator, overheard = random.Random(seed), []
    command = [
        sys.executable,
        "-m",
        "oneflow.launch",
        "--nnodes",
        "2",
        "--master",
        f"127.0.0.1:{port}",
        "--all-output",
        "--node_rank",
    ]
    pipes: Any = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": {**os.environ, "ONEFLOW_SECRET": SECRET},
    }
    first = subprocess.Popen([*command, "0", str(tmp_path / "program.py")], **pipes)
    idle: list[socket.socket] = []
    try:
        while first.poll() is None and not idle:
            with contextlib.suppress(OSError):
                idle.append(socket.create_connection(("127.0.0.1", port), timeout=1))
            time.sleep(0.05)
        for number in range(count):
            _attack(port, generator, overheard)
            if number % 10 == 0:  # beside those that stay and say nothing
                with contextlib.suppress(OSError):
                    idle.append(socket.create_connection(("127.0.0.1", port), timeout=1))
        assert first.poll() is None, first.communicate()[1]
        second = subprocess.Popen([*command, "1", str(tmp_path / "program.py")], **pipes)
        stop = threading.Event()

        def go_on() -> None:
            while not stop.is_set():
                _attack(port, generator, overheard)

        attacker = threading.Thread(target=go_on)
        attacker.start()
        try:
            for process in (second, first):
                out, err = process.communicate(timeout=120)
                assert (process.returncode, out) == (0, RESULT + "\n"), err
        finally:
            stop.set()
            attacker.join()
        assert err.count("turned away a connection from 127.0.0.1") == 1  # of the first process
        assert "Traceback" not in err
    finally:
        for connection in idle:
            connection.close()
        first.kill()
        first.communicate()


def test_a_run_among_hostile_messages(tmp_path: Path) -> None:
    _fight(tmp_path, 400, seed=1)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [2, 3])
def test_a_run_among_many_hostile_messages(tmp_path: Path, seed: int) -> None:
    _fight(tmp_path, 10_000, seed)


# --- each side alone


def test_messages_of_who_knows_the_secret_are_checked_before_use() -> None:
    """A mutated message is refused, or it is one of the protocol, which the watch takes."""
    generator = random.Random(4)
    refused = taken = 0
    watch = Watch(0, 2, str, 40.0, 0.0)
    for now in range(10_000):
        line = _mutated(generator, generator.choice(REAL)[:-1])
        try:
            message = messages.decode(line, 2, KNOWN)
        except wire.ProtocolError:
            refused += 1
            continue
        taken += 1
        if message["kind"] in ("beat", "gather", "end", "gone"):
            watch.hear(message, float(now))
            watch.look(float(now))
    assert refused > 5_000 and taken > 100


def test_a_process_that_meets_something_else_than_the_hub() -> None:
    """It neither crashes nor waits beyond its patience, whatever is said to it, also by somebody who knows the secret."""
    generator = random.Random(5)

    def talk(connection: socket.socket) -> None:
        handshake = wire.HubHandshake(KEY)
        challenge = handshake.challenge
        connection.sendall(challenge if generator.random() < 0.7 else _mutated(generator, challenge))
        _, verdict = handshake.verdict(connection.recv(wire.RESPONSE_SIZE))
        connection.sendall(verdict if generator.random() < 0.7 else _mutated(generator, verdict))
        text = _hostile(generator)
        connection.sendall(text if b'"go"' not in text else b"null\n")

    with stranger(talk) as port:
        for _ in range(15):
            with pytest.raises((ProcessError, member.MissingError)):
                member.Member("127.0.0.1", port, 1, 2, KEY, 0.5)
