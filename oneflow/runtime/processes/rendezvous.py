"""Which process of a run this one is: from the launcher, from ``flow.env.machine``, or from the cluster it was started by."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, field
from typing import NoReturn

from ..._base.refuse import refuse
from ...config._environment import LAUNCHED, Environment, machines
from ...errors import ArgumentError, ProcessError
from . import hub


@dataclass(slots=True)
class Place:
    """One process of the run. The first listens at ``host``:``port``, the others come there."""

    index: int
    count: int
    host: str
    port: int
    local_index: int = 0
    local_count: int = 1
    names: list[str] = field(default_factory=list)  # of all processes, for messages
    server: socket.socket | None = None  # what the first one listens on; what the others show that they are taken with

    def name_of(self, index: int) -> str:
        where = f" ({self.names[index]})" if index < len(self.names) else ""
        return f"process {index}{where}"


def find() -> Place | None:
    """The place of this process; None where the run has one process.

    Raises:
      ArgumentError: the settings contradict each other, or no named address is this machine's.
      ProcessError: the port is in use.
    """
    place = from_launcher() or _from_machines() or _from_cluster()
    if place is None or place.count == 1:
        return None
    if place.index == 0 and place.server is None:
        place.server = _listen(place.host, place.port)
    return place


def _listen(host: str, port: int) -> socket.socket:
    try:
        return hub.listen(host, port)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:  # known to others by an address that this machine does not see
            return hub.listen("", port)
        _refuse_port(f"{host}:{port}", error)


def _refuse_port(where: str, error: OSError) -> NoReturn:
    raise ProcessError(
        f"the first process of the run cannot listen at {where}: {error.strerror or error}\n"
        f"  try        another port: flow.env.ctrl_port(n), or --master host:port of the launcher; "
        f"or end the run that still uses this one"
    ) from error


def from_launcher() -> Place | None:
    """What ``python -m oneflow.launch`` told this process."""
    text = os.environ.get(LAUNCHED)
    if not text:
        return None
    index, count, master, local_index, local_count = text.split()
    host, _, port = master.rpartition(":")
    named = machines()
    nodes = int(count) // int(local_count)
    if len(named) not in (0, 1, nodes, int(count)):
        refuse(
            ArgumentError,
            f"flow.env.machine names {len(named)} machines, and the launcher started {count} processes on {nodes}",
            hint="leave flow.env.machine out under the launcher, or name as many",
        )
    return Place(int(index), int(count), host, int(port), int(local_index), int(local_count))


def _from_machines() -> Place | None:
    named = machines()
    if len(named) < 2:
        return None
    addresses = [m["addr"] for m in named]
    port = Environment.ctrl_port
    if port is None:
        refuse(ArgumentError, f"flow.env.machine names {len(named)} machines, and no port was chosen for them to meet at",
               hint="flow.env.ctrl_port(50051), the same on all of them")  # fmt: skip
    if len(set(addresses)) != len(addresses):
        refuse(ArgumentError, f"flow.env.machine: each address may be named once, got {', '.join(addresses)}",
               hint="python -m oneflow.launch --nproc n script.py starts several processes on one machine")  # fmt: skip
    index, server = _claim(addresses, port)
    meeting = named[0].get("ctrl_port_agent", -1)
    return Place(index, len(named), addresses[0], meeting if meeting > 0 else port, names=addresses, server=server)


def _claim(addresses: list[str], port: int) -> tuple[int, socket.socket]:
    """The first address that this machine has and no other process listens at: one machine may have several of them."""
    in_use: OSError | None = None
    for index, address in enumerate(addresses):
        try:
            return index, hub.listen(address, port)
        except socket.gaierror:
            continue  # a name that this machine does not know is another machine's
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                in_use = error
    if in_use is not None:
        own = [a for a in addresses if _is_own(a)]
        _refuse_port(" and ".join(f"{a}:{port}" for a in own), in_use)
    refuse(
        ArgumentError,
        "none of the addresses of flow.env.machine is this machine's",
        found=[("named", ", ".join(addresses)), ("this", socket.gethostname())],
        hint="name each machine by an address that it has itself",
    )


def _is_own(address: str) -> bool:
    try:
        hub.listen(address, 0).close()
    except OSError:
        return False
    return True


def _from_cluster() -> Place | None:
    """SLURM, Open MPI and what else ``jax.distributed`` recognises by the environment of a process."""
    from jax._src.clusters import ClusterEnv

    environment = next((e for e in ClusterEnv._cluster_types if not e.opt_in_only_method and e.is_env_present()), None)
    if environment is None:
        return None
    count = environment.get_process_count()
    if count == 1:
        return None
    patience = int(Environment.start_timeout)
    host, _, port = environment.get_coordinator_address(patience, os.environ.get("JAX_COORDINATOR_PORT")).rpartition(":")
    local = environment.get_local_process_id()
    return Place(environment.get_process_id(), count, host, int(port), local or 0, 1 if local is None else 2)
