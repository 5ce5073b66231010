"""Finds this process's rank in a run, where the first process listens, and the secret that they share."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, field
from typing import NoReturn

from ..._base.refuse import refuse
from ...config._environment import LAUNCHED, Environment, machines
from ...errors import ArgumentError, ProcessError
from . import addresses, cluster, secret, wire

_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}
BIND_ADDRESS = "ONEFLOW_BIND_ADDRESS"
RESTART_COUNT = "ONEFLOW_RESTART_COUNT"


@dataclass(slots=True)
class Place:
    """This process's place in the run. The first process listens; the others know it as ``host``:``port``."""

    rank: int
    count: int
    host: str
    port: int
    local_rank: int = 0
    local_count: int | None = 1  # None where it is not known
    names: list[str] = field(default_factory=list)  # of all processes, for messages
    run: str = ""  # distinguishes this run from others with the same secret
    key: bytes = b""
    data_port: int | None = None  # of JAX's coordinator as the others know it, where that is not the one it listens at
    bound: tuple[str, int] | None = None  # where the first process listens, in that process
    beside: str = ""  # the same without the port, in other processes of its machine, if that was chosen
    server: socket.socket | None = None  # the first one's; the others listen to show that an address is taken

    def name_of(self, rank: int) -> str:
        where = f" ({self.names[rank]})" if rank < len(self.names) else ""
        return f"process {rank}{where}"

    @property
    def own_host(self) -> str:
        """The first process's address for this one: on the first machine others may know it by one that leads nowhere there."""
        own = self.bound_host or self.beside
        return _REACHED_AT.get(own, own) or self.host

    @property
    def bound_host(self) -> str:
        """Where the first process listens; empty in the others."""
        return self.bound[0] if self.bound else ""

    @property
    def listens_everywhere(self) -> bool:
        return (self.bound_host or self.beside) in _REACHED_AT

    @property
    def own_port(self) -> int:
        return self.bound[1] if self.bound else self.port


def find() -> Place | None:
    """The place of this process; None where the run has one process.

    Raises:
      ArgumentError: the settings contradict each other, no named address is this machine's, or a secret is missing.
      ProcessError: the environment says that there are several processes, but not enough about them; or the port is in use.
    """
    place = _from_launcher() or _from_machines() or _from_environment()
    if place is None or place.count == 1:
        return None
    try:
        bound_to = _bind_address() if place.rank == 0 else None
        place.key = wire.session_key(secret.of_run(place.host, bound_to or place.host), place.run)
        if place.rank == 0 and place.server is None:
            place.server = _listen(place)
        if place.rank == 0 and place.server is not None:
            place.bound = place.server.getsockname()[:2]
        if 0 < place.rank == place.local_rank and not place.names:  # on the first machine
            place.beside = _bind_address() or ""
    except BaseException:
        if place.server is not None:
            place.server.close()
        raise
    return place


def preview() -> tuple[int, int, int]:
    """Rank, number of processes, and rank on the machine, as far as the environment says before the run begins."""
    told = _launched()
    if told is not None:
        return told[0], told[1], told[3]
    claim = cluster.find() if len(machines()) < 2 else None
    if claim is None or claim.rank is None or claim.count is None:
        return 0, 1, 0
    return claim.rank, claim.count, claim.local_rank or 0


# --- the launcher


def _launched() -> tuple[int, int, str, int, int] | None:
    """Rank, number of processes, address of the first, rank and number on the machine, as ``python -m oneflow.launch`` says."""
    text = os.environ.get(LAUNCHED)
    if not text:
        return None
    try:
        rank, count, master, local_rank, local_count = text.split()
        addresses.split(master)
        return int(rank), int(count), master, int(local_rank), int(local_count)
    except ValueError:
        refuse(ArgumentError, f"{LAUNCHED} is {text!r} in the environment: nothing that oneflow.launch sets",
               hint=f"unset {LAUNCHED}")  # fmt: skip


def _from_launcher() -> Place | None:
    told = _launched()
    if told is None:
        return None
    rank, count, master, local_rank, local_count = told
    host, port = addresses.split(master)
    named = machines()
    nodes = count // local_count
    if len(named) not in (0, 1, nodes, count):
        refuse(
            ArgumentError,
            f"flow.env.machine names {len(named)} machines, and the launcher started {count} processes on {nodes}",
            hint="leave flow.env.machine out under the launcher, or name as many",
        )
    run = f"restart {os.environ.get(RESTART_COUNT, '0')}"
    return Place(rank, count, host, port or 0, local_rank, local_count, run=run)


# --- flow.env.machine


def _from_machines() -> Place | None:
    named = machines()
    if len(named) < 2:
        return None
    hosts = [m["addr"] for m in named]
    port = Environment.ctrl_port
    if port is None:
        refuse(ArgumentError, f"flow.env.machine names {len(named)} machines, and no port was chosen for them to meet at",
               hint="flow.env.ctrl_port(50051), the same on all of them")  # fmt: skip
    if len(set(hosts)) != len(hosts):
        refuse(ArgumentError, f"flow.env.machine: each address may be named once, got {', '.join(hosts)}",
               hint="python -m oneflow.launch --nproc n script.py starts several processes on one machine")  # fmt: skip
    rank, server = _claim(hosts, port)
    forwarded = named[0].get("ctrl_port_agent", -1)
    data_port = named[0].get("data_port_agent", -1)
    return Place(
        rank, len(named), hosts[0], forwarded if forwarded > 0 else port, names=hosts, server=server,
        data_port=data_port if data_port > 0 else None,
    )  # fmt: skip


def _claim(hosts: list[str], port: int) -> tuple[int, socket.socket]:
    """The first address that this machine has and no other process listens at: one machine may have several of them."""
    in_use: OSError | None = None
    for rank, host in enumerate(hosts):
        try:
            return rank, addresses.listen(host, port)
        except socket.gaierror:
            continue  # a name that this machine does not know is another machine's
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                in_use = error
    if in_use is not None:
        _refuse_port(" and ".join(f"{host}:{port}" for host in hosts if _is_own(host)), in_use)
    refuse(
        ArgumentError,
        "none of the addresses of flow.env.machine is this machine's",
        found=[("named", ", ".join(hosts)), ("this", ", ".join([socket.gethostname(), *addresses.own_addresses()]))],
        hint="name each machine by an address that it has itself",
    )


def _is_own(host: str) -> bool:
    try:
        addresses.listen(host, 0).close()
    except OSError:
        return False
    return True


# --- what else starts processes


def _from_environment() -> Place | None:
    claim = cluster.find()
    if claim is None:
        return None
    port = Environment.ctrl_port or claim.port
    if claim.host is None or port is None:
        cluster.refuse_unknown_place(claim)
    assert claim.rank is not None and claim.count is not None  # of what ``find`` returns, both are known
    return Place(claim.rank, claim.count, claim.host, port, claim.local_rank or 0, claim.local_count, run=claim.job)


# --- listening


def _bind_address() -> str | None:
    return Environment.bind_address or os.environ.get(BIND_ADDRESS) or None


def _listen(place: Place) -> socket.socket:
    """The socket of the first process: on the interface of its address, and on no other."""
    chosen = _bind_address()
    where = chosen or place.host
    try:
        if not chosen and place.local_count != place.count and _means_loopback(place.host):
            _refuse_host(place, "stands for this machine's loopback interface here, which other machines do not reach")
        return addresses.listen(where, place.port)
    except socket.gaierror as error:
        _refuse_host(place, f"is unknown here: {error.strerror}", chosen)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            _refuse_host(place, "is not an address of this machine", chosen)
        _refuse_port(addresses.join(where, place.port), error)


def _means_loopback(host: str) -> bool:
    """Whether a name, which elsewhere means this machine, is in its own table of hosts as a loopback address."""
    return not addresses.is_literal(host) and host != "localhost" and addresses.is_loopback(host)


def _refuse_host(place: Place, what: str, chosen: str | None = None) -> NoReturn:
    own = addresses.own_addresses()
    one = own[0] if own else "ADDRESS"
    raise ProcessError(
        f"the first process of the run cannot listen at {chosen or place.host}: that {what}\n"
        f"  this       {', '.join([socket.gethostname(), *own])}\n"
        f"  try        an address of this machine, the one with process 0. Where others reach it by another (NAT, containers), "
        f"name also its own address that leads there: {BIND_ADDRESS}={one}, flow.env.bind_address({one!r}), "
        f"or --bind {one} of the launcher"
    )


def _refuse_port(where: str, error: OSError) -> NoReturn:
    raise ProcessError(
        f"the first process of the run cannot listen at {where}: {error.strerror or error}\n"
        f"  try        another port: flow.env.ctrl_port(n), or --master host:port of the launcher; "
        f"or end the run that still uses this one"
    ) from error
