"""Servers for tests; ``clients.py`` beside this file and ``saved_model/saving.py`` are found by their names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "saved_model")]

from clients import Http  # noqa: E402

import oneflow as flow  # noqa: E402

Start = Callable[..., tuple[flow.serving.Server, Http]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server for ``tmp_path / "models"``, and ends it after the test."""
    running: list[flow.serving.Server] = []
    connections: list[Http] = []

    def started(token: str | None = None, **options: Any) -> tuple[flow.serving.Server, Http]:
        server = flow.serving.Server(
            os.path.relpath(tmp_path / "models"), port=0, token=token, **{"batch_sizes": [1, 4], **options}
        )
        running.append(server.start())
        connections.append(Http(server.url, **({"Authorization": f"Bearer {token}"} if token else {})))
        return server, connections[-1]

    yield started
    for connection in connections:
        connection.close()
    for server in running:
        server.stop()
