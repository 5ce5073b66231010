"""The launcher that started this process, found in its environment: one table of launchers and their variables.

JAX detects some of them by itself, in private parts of its code and only while it starts, but neither Open MPI 5 nor torchrun.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from ...errors import ProcessError
from . import addresses

COORDINATOR = ("ONEFLOW_COORDINATOR_ADDRESS", "JAX_COORDINATOR_ADDRESS")
COUNT = ("ONEFLOW_NUM_PROCESSES", "JAX_NUM_PROCESSES")
RANK = ("ONEFLOW_PROCESS_ID", "JAX_PROCESS_ID")
LOOPBACK = "127.0.0.1"
_END_OF_PORTS = 1 << 16
_PORTS = range(61001, _END_OF_PORTS)  # above those that Linux hands out by itself
_TPU_PORT = 8482
_POD_PORT = 29500

Variables = Mapping[str, str]
Address = tuple[str, int | None]  # a host, and a port where one is known


def _nowhere(variables: Variables) -> Address | None:
    return None


def _as_they_are(variables: Variables) -> Variables:
    return variables


@dataclass(frozen=True, slots=True)
class Launcher:
    """A row of the table: the names of its variables, of which the first that is set counts.

    ``address`` finds the first process, where the environment has it. ``job`` distinguishes runs on one machine; if
    no port is given, it is derived from it. ``example`` shows how to set a variable in all processes. ``prepare`` makes variables
    for information that is given in another way, or none where this launcher did not start the process.
    """

    name: str
    rank: tuple[str, ...]
    count: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    local_count: tuple[str, ...] = ()
    address: Callable[[Variables], Address | None] = _nowhere
    job: tuple[str, ...] = ()
    example: str = "{}=..."
    prepare: Callable[[Variables], Variables] = _as_they_are
    needs_count: bool = False  # rank 0 without a count says nothing: the name is in wide use


@dataclass(frozen=True, slots=True)
class Claim:
    """A launcher's claim about this process, from its variables; None if they are not set."""

    launcher: Launcher
    rank: int | None
    count: int | None
    local_rank: int | None = None
    local_count: int | None = None
    address: Address | None = None
    job: str = ""

    @property
    def host(self) -> str | None:
        """The address of the first process without its port; None where it is not known."""
        return self.address[0] if self.address else None

    @property
    def port(self) -> int | None:
        """The given port, or one that other runs on these machines hardly have."""
        given = self.address[1] if self.address else None
        return given or (_PORTS[zlib.crc32(self.job.encode()) % len(_PORTS)] if self.job else None)


# --- where the first process is


def _master(variables: Variables) -> Address | None:
    host, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT", "")
    if not host or not port.isdecimal():
        return (host, None) if host else None
    if not 0 < int(port) < _END_OF_PORTS:
        raise ProcessError(
            f"MASTER_PORT must be a port from 1 to {_END_OF_PORTS - 1}, it is {port!r}\n  try        MASTER_PORT=29500"
        )
    is_taken = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun itself listens there
    return host, int(port) + is_taken


def _mpirun(variables: Variables) -> Address | None:
    """Open MPI 4 says where mpirun is: 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911"""
    found = re.search(r"tcp://([^,:]+)|tcp6://\[([^,\]]+)", variables.get("OMPI_MCA_orte_hnp_uri", ""))
    return (found[1] or found[2], None) if found else None


def _first_node(variables: Variables) -> Address | None:
    """The first of a list of nodes: node[001-003,7],other  ->  node001"""
    found = re.match(r"([^,\[]+)(?:\[([^],-]+)[^]]*\]([^,\[]*))?", variables.get("SLURM_STEP_NODELIST", ""))
    return ("".join(part or "" for part in found.groups()), None) if found else None


def _first_pod(variables: Variables) -> Address | None:
    """Pods of an indexed job or a JobSet are named job-0, job-1, ...; those that have a domain find each other by name."""
    index = variables.get("JOB_COMPLETION_INDEX", "")
    host, _, domain = socket.getfqdn().partition(".")
    if not domain or not host.endswith(f"-{index}"):
        return None
    return f"{host.removesuffix(index)}0.{domain}", _POD_PORT


def _tpu_workers(variables: Variables) -> list[str]:
    listed = variables.get("TPU_PROCESS_ADDRESSES") or variables.get("TPU_WORKER_HOSTNAMES", "")
    return [worker for worker in listed.split(",") if worker]


def _first_tpu_worker(variables: Variables) -> Address | None:
    first = variables.get("MEGASCALE_COORDINATOR_ADDRESS") or next(iter(_tpu_workers(variables)), "")
    return (first.partition(":")[0], _TPU_PORT) if first else None


# --- launchers that need more than plain variables


def _tpu_pod(variables: Variables) -> Variables:
    workers = len(_tpu_workers(variables))
    worker, piece = variables.get("TPU_WORKER_ID", ""), variables.get("MEGASCALE_SLICE_ID", "0")
    pieces = variables.get("MEGASCALE_NUM_SLICES", "1")
    if not (workers and worker.isdecimal() and piece.isdecimal() and pieces.isdecimal()):
        return {}
    return {**variables, "(rank)": str(int(worker) + int(piece) * workers), "(count)": str(workers * int(pieces))}


def _ray_train(variables: Variables) -> Variables:
    """A worker of Ray Train has a context that says so; other workers of Ray do not know of each other."""
    train = sys.modules.get("ray.train") if "RAY_RAYLET_PID" in variables or "RAY_JOB_ID" in variables else None
    try:
        context = train.get_context()  # type: ignore[union-attr]
        numbers = {
            "(rank)": context.get_world_rank(), "(count)": context.get_world_size(),
            "(local rank)": context.get_local_rank(), "(local count)": context.get_local_world_size(),
        }  # fmt: skip
    except Exception:  # no Ray Train, or not in one of its workers, which it says by errors of several kinds
        return {}
    return {**variables, **{name: str(number) for name, number in numbers.items() if type(number) is int}}


def _slurm_step(variables: Variables) -> Variables:
    """Only what srun starts has siblings: a batch script sees the numbers of its whole allocation, too."""
    of_step = {"SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS"} & variables.keys()
    if not of_step and variables.get("SLURM_PROCID", "0") == "0":
        return {}
    return {**variables, "(local count)": _tasks_of_node(variables)}


def _tasks_of_node(variables: Variables) -> str:
    """How many tasks this node has, of a list such as 4(x2),3; empty if it is not in the list."""
    tasks: list[str] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", variables.get("SLURM_STEP_TASKS_PER_NODE", "")):
        tasks += [number] * min(int(times or 1), 1 << 16)
    node = variables.get("SLURM_NODEID", "0")
    return tasks[int(node)] if node.isdecimal() and int(node) < len(tasks) else ""


# The innermost first: torchrun may run under SLURM, and mpirun in an allocation.
LAUNCHERS = (
    Launcher(
        "torchrun or OneFlow's own launcher", ("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",), ("LOCAL_WORLD_SIZE",),
        _master, ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"), "export {}=...", needs_count=True,
    ),
    Launcher(
        "Ray Train", ("(rank)",), ("(count)",), ("(local rank)",), ("(local count)",), _master,
        example='runtime_env={{"env_vars": {{"{}": ...}}}}', prepare=_ray_train,
    ),
    Launcher(
        "Open MPI", ("OMPI_COMM_WORLD_RANK",), ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",), _mpirun, ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri"), "mpirun -x {}=...",
    ),
    Launcher(
        "MPICH or Intel MPI", ("PMI_RANK",), ("PMI_SIZE",), ("MPI_LOCALRANKID",), ("MPI_LOCALNRANKS",),
        job=("I_MPI_HYDRA_UUID", "PMI_JOBID"), example="mpiexec -genv {} ...",
    ),
    Launcher(
        "SLURM", ("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",), ("(local count)",),
        _first_node, ("SLURM_JOB_ID", "SLURM_STEP_ID"), "export {}=... before srun", prepare=_slurm_step,
    ),
    Launcher("a TPU pod", ("(rank)",), ("(count)",), address=_first_tpu_worker, prepare=_tpu_pod, example="export {}=..."),
    Launcher(
        "an indexed job of Kubernetes", ("JOB_COMPLETION_INDEX",), (), address=_first_pod, example="env {} in the pod's spec",
    ),
    Launcher("prterun or another PMIx launcher", ("PMIX_RANK",), (), job=("PMIX_NAMESPACE",), example="prterun -x {}=..."),
)  # fmt: skip
_BY_HAND = Launcher("the environment", RANK, COUNT, example="export {}=...")


def find(variables: Variables | None = None) -> Claim | None:
    """The claim of the environment about this process; None if it is alone, or nothing is said.

    Raises:
      ProcessError: it says that there are several processes, but not how many or which one this is; or it contradicts itself.
    """
    variables = os.environ if variables is None else variables
    own = _claim(_BY_HAND, variables)
    if own.count == 1:
        return None  # each is to run on its own, whatever started it
    claims = [claim for row in LAUNCHERS if _says_something(claim := _claim(row, variables))]
    coordinator = next((variables[name] for name in COORDINATOR if variables.get(name)), None)
    if not claims and not coordinator and own.rank is None and own.count is None:
        return None
    main = claims[0] if claims else own
    if own.count is None:
        _check_agreement(claims)
    rank = main.rank if own.rank is None else own.rank
    count = main.count if own.count is None else own.count
    if count == 1:
        return None
    if count is None:
        _refuse_unknown(main, "how many they are", COUNT[0], "the number of processes, or 1 where each is to run on its own")
    if rank is None or rank >= count:
        what = f"which of the {count} processes this one is" if rank is None else f"how one of {count} can be number {rank}"
        _refuse_unknown(main, what, RANK[0], f"0 to {count - 1}, another one in each")
    alike = [claim for claim in claims if (claim.rank, claim.count) == (rank, count)] or [main]
    is_one_machine = any(claim.local_count == count for claim in alike)
    address = next((claim.address for claim in alike if claim.address), None)
    if coordinator:
        address = _parsed(coordinator)
    elif is_one_machine:
        address = LOOPBACK, address[1] if address else None
    local = next((claim for claim in alike if claim.local_rank is not None), main)
    job = next((claim.job for claim in alike if claim.job), "")
    return Claim(main.launcher, rank, count, local.local_rank, local.local_count, address, job)


def _claim(row: Launcher, variables: Variables) -> Claim:
    variables = row.prepare(variables)

    def number(names: tuple[str, ...], least: int) -> int | None:
        name = next((name for name in names if variables.get(name)), None)
        if name is None:
            return None
        text = variables[name]
        if not (text.isascii() and text.isdigit() and int(text) >= least):
            raise ProcessError(
                f"{name} is {text!r} in the environment, and must be a number of at least {least}\n"
                f"  try        unset {name}, or {COUNT[0]}=1 where this process is to run on its own"
            )
        return int(text)

    rank, count = number(row.rank, 0), number(row.count, 1)
    job = " ".join(f"{name}={variables[name]}" for name in row.job if name in variables)
    address = None if rank is None and count is None else row.address(variables)
    return Claim(row, rank, count, number(row.local_rank, 0), number(row.local_count, 1), address, job)


def _says_something(claim: Claim) -> bool:
    return claim.count is not None or (claim.rank is not None and (claim.rank > 0 or not claim.launcher.needs_count))


def _check_agreement(claims: list[Claim]) -> None:
    alone = next((claim for claim in claims if claim.count == 1), None)
    several = next((claim for claim in claims if (claim.count or 1) > 1), None)
    if alone and several:
        raise ProcessError(
            f"the environment contradicts itself: {alone.launcher.name} says that this process is alone, "
            f"{several.launcher.name} that it is number {several.rank} of {several.count}\n"
            f"  try        {COUNT[0]}=1 where it is to run on its own, {COUNT[0]}={several.count} where it is one of several"
        )


def _parsed(coordinator: str) -> Address:
    try:
        return addresses.split(coordinator)
    except ValueError:
        raise ProcessError(
            f"{COORDINATOR[0]} (or {COORDINATOR[1]}) must be host:port, it is {coordinator!r}\n  try        10.0.0.1:29500"
        ) from None


def _refuse_unknown(claim: Claim, what: str, variable: str, value: str) -> NoReturn:
    raise ProcessError(
        f"{claim.launcher.name} says that this is one of several processes, and nothing says {what}\n"
        f"  try        {claim.launcher.example.format(variable)}: {value}; {COUNT[0]}=1 where each is to run on its own"
    )


def refuse_unknown_place(claim: Claim) -> NoReturn:
    """The error for processes that do not know where the first of them is."""
    what = "where the first of them is" if claim.host is None else f"at which port of {claim.host} the first of them listens"
    _refuse_unknown(claim, what, COORDINATOR[0], "host:port, an address of the first one's machine and a free port there")
