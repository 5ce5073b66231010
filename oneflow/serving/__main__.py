"""``python -m oneflow.serving DIR --port 8000``: serves the models of a directory until it is told to stop."""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
from collections.abc import Sequence
from typing import Any

from .._base.command import Parser, in_a_shell
from .._base.files import read_regular
from ..errors import ArgumentError, OneFlowError
from . import Server

_TOKEN = "ONEFLOW_SERVING_TOKEN"
_LONGEST_TOKEN = 1 << 16  # bytes of its file
_MIB = 1 << 20


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        prog="oneflow serve", description="Serves the models of a directory by KServe's v2 protocol over HTTP.",
        epilog="example: oneflow serve models --port 8000 --max-batch-size 64. DIR holds NAME.stablehlo, or NAME/VERSION/ with a "
        "StableHLO export or a checkpoint. SIGTERM answers what was accepted and ends; SIGHUP loads what has changed.",
    )  # fmt: skip
    made.add_argument("directory", metavar="DIR", help="the models")
    made.add_argument("--host", help="the address to listen at (127.0.0.1: this machine only)")
    made.add_argument("--port", type=int, help="the port (8000); 0 for a free one")
    batches = made.add_argument_group("batches (defaults for each model's config.json)")
    batches.add_argument("--max-batch-size", type=int, metavar="N", help="the most rows that are joined (32)")
    batches.add_argument("--batch-sizes", type=_numbers, metavar="N,N,...", help="the sizes to compile (powers of two)")
    batches.add_argument("--max-delay-ms", type=float, metavar="MS", help="how long a request waits for others")
    batches.add_argument("--max-queue", type=int, metavar="N", help="the most requests of a version that wait (1024)")
    batches.add_argument("--no-batching", action="store_true", help="run each request by itself")
    batches.add_argument("--batches-in-flight", type=int, metavar="N", help="batches of a version at one time (2; 1 on CPUs)")
    limits = made.add_argument_group("limits")
    limits.add_argument("--max-body-mib", type=float, metavar="MIB", help="the largest request (64)")
    limits.add_argument("--max-bodies-mib", type=float, metavar="MIB", help="all requests at one time (1024)")
    limits.add_argument("--max-connections", type=int, metavar="N", help="the most that are open (512)")
    limits.add_argument("--timeout", type=float, metavar="S", help="how long a request may take (30)")
    limits.add_argument("--body-timeout", type=float, metavar="S", help="how long a body may take to arrive (30)")
    limits.add_argument("--drain", type=float, metavar="S", help="how long requests may go on after SIGTERM (30)")
    limits.add_argument("--drain-delay", type=float, metavar="S", help="how long requests are still taken after SIGTERM (0)")
    made.add_argument("--poll", type=float, metavar="S", help="look at DIR for changes every S seconds (never)")
    access = made.add_argument_group("access")
    access.add_argument("--token-file", metavar="FILE", help=f"the bearer token that requests must have; or in {_TOKEN}")
    access.add_argument("--allowed-host", action="append", metavar="NAME", help="a further value of the header Host")
    for name in ("ssl-certfile", "ssl-keyfile", "ssl-ca-certs"):
        access.add_argument(f"--{name}", metavar="FILE", help="for TLS, as uvicorn's")
    access.add_argument("--ssl-keyfile-password", metavar="TEXT", help="for TLS, as uvicorn's")
    made.add_argument("--verbose", action="store_true", help="log what is loaded")
    return made


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be whole numbers such as 1,8,32, got {text!r}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGTERM or SIGINT. Returns 0; 2 where the server cannot start."""
    options = parser().parse_args(arguments)
    level = logging.INFO if options.verbose else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        server = Server(options.directory, **_arguments(options))
        server.run(_announce)
    except OneFlowError as error:
        print(f"error: {in_a_shell(error)}", file=sys.stderr)
        return 2
    return 0


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    given = {
        "host": options.host, "port": options.port, "token": _token(options.token_file), "max_batch_size": options.max_batch_size,
        "batch_sizes": options.batch_sizes, "max_delay_ms": options.max_delay_ms, "max_queue": options.max_queue,
        "batching": False if options.no_batching else None, "batches_in_flight": options.batches_in_flight,
        "max_body": _bytes(options.max_body_mib), "max_bodies": _bytes(options.max_bodies_mib),
        "max_connections": options.max_connections, "timeout": options.timeout,
        "body_timeout": options.body_timeout, "drain": options.drain, "drain_delay": options.drain_delay, "poll": options.poll,
        "allowed_hosts": options.allowed_host, "ssl_certfile": options.ssl_certfile, "ssl_keyfile": options.ssl_keyfile,
        "ssl_keyfile_password": options.ssl_keyfile_password, "ssl_ca_certs": options.ssl_ca_certs,
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def _bytes(mebibytes: float | None) -> int | None:
    return None if mebibytes is None else int(mebibytes * _MIB) if math.isfinite(mebibytes) else 0  # which is refused


def _token(file: str | None) -> str | None:
    """The token, which is no option of its own: other users of the machine see command lines."""
    if file is None:
        return os.environ.get(_TOKEN) or None
    try:
        token = read_regular(file, _LONGEST_TOKEN).decode().strip()
    except OSError as error:
        raise ArgumentError(f"--token-file {file!r}: {error.strerror}") from error
    except ValueError as error:
        raise ArgumentError(f"--token-file {file!r}: {error}") from error
    if not token:
        raise ArgumentError(f"--token-file {file}: the file is empty")
    return token


def _announce(server: Server) -> None:
    print(f"serving at {server.url}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
