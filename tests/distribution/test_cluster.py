"""The launcher of a process: the table of launchers, with the variables that real ones set (other variables are left out)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oneflow.env as env
from oneflow.config._environment import LAUNCHED, Environment
from oneflow.errors import ArgumentError, ProcessError
from oneflow.runtime.processes import Processes, addresses, cluster, rendezvous


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Environment.reset()
    for name in (*cluster.COUNT, *cluster.RANK, *cluster.COORDINATOR, "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    yield
    Environment.reset()


def _set(monkeypatch: pytest.MonkeyPatch, variables: str) -> None:
    for pair in variables.split():
        monkeypatch.setenv(*pair.split("=", 1))


TORCHRUN = (
    "RANK=3 WORLD_SIZE=8 LOCAL_RANK=3 LOCAL_WORLD_SIZE=4 GROUP_RANK=0 MASTER_ADDR=10.0.0.1 MASTER_PORT=29400 "
    "TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=True"
)
OPEN_MPI_4 = (
    "OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1 "
    "OMPI_MCA_orte_hnp_uri=640614400.0;tcp://10.96.0.1,10.148.0.1:52779;tcp6://[fd00::2]:52725 PMIX_NAMESPACE=640614401"
)
OPEN_MPI_5 = (
    "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 "
    "PMIX_NAMESPACE=prterun-vm-19171@1 PMIX_RANK=1 PRTE_LAUNCHED=1"
)
PMIX = "PMIX_RANK=1 PMIX_NAMESPACE=prterun-vm-19171@1 PRTE_LAUNCHED=1"  # prterun, which has no numbers of its own
MPICH = "PMI_RANK=1 PMI_SIZE=2 PMI_FD=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 HYDI_CONTROL_FD=7"
INTEL_MPI = f"{MPICH} I_MPI_HYDRA_UUID=a54d0000-d178-ad56-d560-06007907a17a"
SLURM = (
    "SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[001-003] SLURM_NTASKS=5 SLURM_STEP_NUM_TASKS=5 SLURM_PROCID=4 "
    "SLURM_LOCALID=0 SLURM_NODEID=2 SLURM_STEP_NUM_NODES=3 SLURM_STEP_TASKS_PER_NODE=2(x2),1"
)
TPU_POD = "TPU_WORKER_ID=1 TPU_WORKER_HOSTNAMES=10.0.0.7,10.0.0.8"
TPU_SLICES = f"{TPU_POD} MEGASCALE_NUM_SLICES=2 MEGASCALE_SLICE_ID=1 MEGASCALE_COORDINATOR_ADDRESS=10.0.0.5:8080"

# environment -> rank, count, local rank, processes on this machine, host of the first one, port (None: made of the job)
FOUND: list[tuple[str, str, tuple[Any, ...]]] = [
    ("torchrun", TORCHRUN, (3, 8, 3, 4, "10.0.0.1", 29401)),
    ("torchrun on one machine", TORCHRUN.replace("=8", "=4"), (3, 4, 3, 4, "127.0.0.1", 29401)),
    ("OneFlow 0.4", "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=17000",
     (1, 2, 1, None, "127.0.0.1", 17000)),
    ("Open MPI 4", OPEN_MPI_4, (2, 3, 0, 1, "10.96.0.1", None)),
    ("Open MPI 4, IPv6", OPEN_MPI_4.replace("tcp://10.96.0.1,10.148.0.1:52779;", ""), (2, 3, 0, 1, "fd00::2", None)),
    ("Open MPI 5", OPEN_MPI_5, (1, 2, 1, 2, "127.0.0.1", None)),
    ("Intel MPI", INTEL_MPI, (1, 2, 1, 2, "127.0.0.1", None)),
    ("MPICH", f"{MPICH} ONEFLOW_COORDINATOR_ADDRESS=127.0.0.1:4000", (1, 2, 1, 2, "127.0.0.1", 4000)),
    ("SLURM", SLURM, (4, 5, 0, 1, "node001", None)),
    ("SLURM, one node", SLURM.replace("2(x2),1", "5").replace("NODEID=2", "NODEID=0"), (4, 5, 0, 5, "127.0.0.1", None)),
    ("SLURM, other names", SLURM.replace("node[001-003]", "a-[7,9-10]-ib,b[1-2]"), (4, 5, 0, 1, "a-7-ib", None)),
    ("SLURM, names without numbers", SLURM.replace("node[001-003]", "one,two,three"), (4, 5, 0, 1, "one", None)),
    ("SLURM with PMI", f"{SLURM} PMI_RANK=4 PMI_SIZE=5", (4, 5, 0, 1, "node001", None)),
    ("torchrun under SLURM", f"{TORCHRUN} {SLURM}", (3, 8, 3, 4, "10.0.0.1", 29401)),
    ("mpirun in an allocation", f"{OPEN_MPI_5} {SLURM}", (1, 2, 1, 2, "127.0.0.1", None)),
    ("a TPU pod", TPU_POD, (1, 2, None, None, "10.0.0.7", 8482)),
    ("slices of TPUs", TPU_SLICES, (3, 4, None, None, "10.0.0.5", 8482)),
    ("by hand", "ONEFLOW_PROCESS_ID=1 ONEFLOW_NUM_PROCESSES=2 ONEFLOW_COORDINATOR_ADDRESS=[::1]:80",
     (1, 2, None, None, "::1", 80)),
    ("by hand, JAX's names", "JAX_PROCESS_ID=1 JAX_NUM_PROCESSES=2 JAX_COORDINATOR_ADDRESS=a:80", (1, 2, None, None, "a", 80)),
    ("Open MPI 5 on several machines",
     OPEN_MPI_5.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1") + " ONEFLOW_COORDINATOR_ADDRESS=10.0.0.1:4000",
     (1, 2, 1, 1, "10.0.0.1", 4000)),
    ("prterun", f"{PMIX} ONEFLOW_NUM_PROCESSES=4 ONEFLOW_COORDINATOR_ADDRESS=10.0.0.1:4000",
     (1, 4, None, None, "10.0.0.1", 4000)),
    ("an indexed job", "JOB_COMPLETION_INDEX=2 ONEFLOW_NUM_PROCESSES=4 ONEFLOW_COORDINATOR_ADDRESS=job-0.pods:4000",
     (2, 4, None, None, "job-0.pods", 4000)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "variables", "expected"), FOUND, ids=[name for name, *_ in FOUND])
def test_processes_are_found(name: str, variables: str, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    claim = cluster.find(dict(pair.split("=", 1) for pair in variables.split()))
    assert claim is not None
    *who, port = expected
    assert [claim.rank, claim.count, claim.local_rank, claim.local_count, claim.host] == who
    assert claim.port == port if port is not None else claim.port in range(61001, 65536)
    _set(monkeypatch, variables)
    own = Processes()  # of a process whose run has not begun
    assert (own.index(), own.count(), own.local_index()) == (*expected[:2], expected[2] or 0)


ALONE = [
    "", "RANK=0", "WORLD_SIZE=1", "RANK=0 WORLD_SIZE=1", "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0",
    "OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 PMIX_RANK=0", "PMI_RANK=0 PMI_SIZE=1",
    "TPU_WORKER_ID=0 TPU_WORKER_HOSTNAMES=localhost", SLURM.replace("=5", "=1").replace("PROCID=4", "PROCID=0"),
    "SLURM_JOB_ID=77 SLURM_NTASKS=8 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODELIST=node[1-2]",  # a batch script, not srun
    "RAY_RAYLET_PID=20232 RAY_JOB_ID=ffffffff", "LOCAL_RANK=0 MASTER_PORT=1",
    *(f"{several} ONEFLOW_NUM_PROCESSES=1"
      for several in (TORCHRUN, OPEN_MPI_5, MPICH, PMIX, SLURM, TPU_POD, "JOB_COMPLETION_INDEX=3")),
]  # fmt: skip


@pytest.mark.parametrize("variables", ALONE)
def test_processes_that_are_alone(variables: str) -> None:
    assert cluster.find(dict(pair.split("=", 1) for pair in variables.split())) is None


UNCLEAR = [
    # what the environment says, what the error says
    (MPICH.replace("NRANKS=2", "NRANKS=1"), "MPICH or Intel MPI says .* nothing says where the first of them is"),
    (MPICH, "MPICH or Intel MPI says .* at which port of 127.0.0.1 the first(?s:.*)mpiexec -genv ONEFLOW_COORDINATOR_ADDRESS"),
    (OPEN_MPI_5.replace("LOCAL_SIZE=2", "LOCAL_SIZE=1"),
     "Open MPI says .* where the first(?s:.*)mpirun -x ONEFLOW_COORDINATOR_ADDRESS"),
    ("SLURM_JOB_ID=77 SLURM_NTASKS=2 SLURM_PROCID=1", "SLURM says .* where the first"),  # no batch script is number 1
    ("SLURM_JOB_ID=77 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=0", "SLURM says .* where the first"),
    ("RANK=1 WORLD_SIZE=2", "where the first(?s:.*)ONEFLOW_COORDINATOR_ADDRESS"),
    ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=10.0.0.1", "at which port of 10.0.0.1"),
    ("RANK=1", "how many they are(?s:.*)ONEFLOW_NUM_PROCESSES"),
    ("WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", "which of the 2 processes(?s:.*)ONEFLOW_PROCESS_ID"),
    ("RANK=2 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", "how one of 2 can be number 2"),
    ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=99999", "MASTER_PORT must be a port .* it is '99999'"),
    ("WORLD_SIZE=two", "WORLD_SIZE is 'two'"), ("WORLD_SIZE=0", "WORLD_SIZE is '0'"), ("RANK=-1 WORLD_SIZE=2", "RANK is '-1'"),
    ("JOB_COMPLETION_INDEX=0", "an indexed job of Kubernetes says .* how many(?s:.*)in the pod's spec"),
    ("JOB_COMPLETION_INDEX=1 ONEFLOW_NUM_PROCESSES=2", "where the first"),
    (PMIX, "prterun or another PMIx launcher says .* how many(?s:.*)prterun -x ONEFLOW_NUM_PROCESSES"),
    (f"{PMIX} ONEFLOW_NUM_PROCESSES=2", "where the first(?s:.*)prterun -x ONEFLOW_COORDINATOR_ADDRESS"),
    ("JAX_COORDINATOR_ADDRESS=10.0.0.1:80", "how many they are"),
    ("ONEFLOW_PROCESS_ID=0", "how many they are"), ("ONEFLOW_NUM_PROCESSES=2", "which of the 2"),
    ("ONEFLOW_NUM_PROCESSES=2 ONEFLOW_PROCESS_ID=0", "where the first"),
    ("ONEFLOW_NUM_PROCESSES=2 ONEFLOW_PROCESS_ID=0 ONEFLOW_COORDINATOR_ADDRESS=:1", "must be host:port"),
    (f"{OPEN_MPI_5} WORLD_SIZE=1 RANK=0", "contradicts itself(?s:.*)Open MPI that it is number 1 of 2"),
]  # fmt: skip


@pytest.mark.parametrize(("variables", "text"), UNCLEAR)
def test_several_processes_never_run_alone(variables: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, variables)
    with pytest.raises(ProcessError, match=text):
        rendezvous.find()


def test_the_port_may_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=17000")
    env.ctrl_port(50051)
    place = rendezvous.find()
    assert place is not None and place.port == 50051


def test_runs_on_one_machine_have_ports_and_keys_of_their_own() -> None:
    claims = [cluster.find(dict(p.split("=", 1) for p in OPEN_MPI_5.replace("19171", str(n)).split())) for n in range(50)]
    assert len({claim.port for claim in claims if claim}) > 45
    assert len({claim.job for claim in claims if claim}) == 50
    slurm = [cluster.find(dict(p.split("=", 1) for p in SLURM.replace("STEP_ID=0", f"STEP_ID={n}").split())) for n in range(3)]
    assert len({claim.job for claim in slurm if claim}) == 3


def test_pods_of_an_indexed_job_find_the_first_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, "JOB_COMPLETION_INDEX=12 JAX_NUM_PROCESSES=20")
    monkeypatch.setattr(socket, "getfqdn", lambda: "train-12.pods.default.svc.cluster.local")
    claim = cluster.find()
    assert claim is not None and (claim.rank, claim.count) == (12, 20)
    assert (claim.host, claim.port) == ("train-0.pods.default.svc.cluster.local", 29500)
    monkeypatch.setattr(socket, "getfqdn", lambda: "train-12")  # no headless service
    claim = cluster.find()
    assert claim is not None and claim.host is None


def test_workers_of_ray_train(monkeypatch: pytest.MonkeyPatch) -> None:
    _set(monkeypatch, "RAY_RAYLET_PID=20232 RAY_JOB_ID=01000000")

    class Context:
        size = 2

        def __getattr__(self, name: str) -> Any:
            numbers = {"get_world_rank": 1, "get_world_size": self.size, "get_local_rank": 1, "get_local_world_size": 2}
            return lambda: numbers[name]

    module: Any = types.ModuleType("ray.train")
    module.get_context = Context
    monkeypatch.setitem(sys.modules, "ray.train", module)
    with pytest.raises(ProcessError, match="Ray Train says .* at which port(?s:.*)runtime_env="):
        rendezvous.find()
    monkeypatch.setenv("ONEFLOW_COORDINATOR_ADDRESS", "127.0.0.1:4000")
    place = rendezvous.find()
    assert place is not None and (place.rank, place.count, place.local_rank, place.port) == (1, 2, 1, 4000)
    Context.size = 1
    monkeypatch.delenv("ONEFLOW_COORDINATOR_ADDRESS")
    assert rendezvous.find() is None

    def outside() -> None:
        raise RuntimeError("not in a training function")

    module.get_context = outside
    assert rendezvous.find() is None


# --- flow.env.machine, and where the first process listens


def test_machines_by_address() -> None:
    port = addresses.free_port("127.0.0.1")
    env.machine([{"addr": "127.0.0.1", "ctrl_port_agent": 7, "data_port_agent": 8}, {"addr": "127.0.0.2"}])
    env.ctrl_port(port)
    first, second = rendezvous.find(), rendezvous.find()  # the same machine has both addresses
    assert first is not None and second is not None
    assert (first.rank, second.rank, first.count, first.port, second.host) == (0, 1, 2, 7, "127.0.0.1")
    assert (first.own_host, first.own_port, second.own_host, second.own_port) == ("127.0.0.1", port, "127.0.0.1", 7)
    assert first.data_port == 8 and first.key == second.key
    assert second.name_of(1) == "process 1 (127.0.0.2)"
    with pytest.raises(ProcessError, match=rf"127.0.0.1:{port} and 127.0.0.2:{port}: Address already in use(?s:.*)another port"):
        rendezvous.find()
    for place in (first, second):
        assert place.server is not None
        place.server.close()


def test_the_launcher_says_who_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFLOW_SECRET", "0123456789abcdef")
    monkeypatch.setenv(LAUNCHED, "5 8 10.0.0.1:29500 1 4")
    env.machine(["10.0.0.1", "10.0.0.1"])  # the same address is allowed here
    place = rendezvous.find()
    assert place is not None
    found = (place.rank, place.count, place.host, place.port, place.local_rank, place.local_count)
    assert found == (5, 8, "10.0.0.1", 29500, 1, 4)
    env.machine(["10.0.0.1", "10.0.0.2", "10.0.0.3"])
    with pytest.raises(ArgumentError, match="names 3 machines, and the launcher started 8 processes on 2"):
        rendezvous.find()
    monkeypatch.setenv(LAUNCHED, f"0 1 127.0.0.1:{addresses.free_port('127.0.0.1')} 0 1")
    env.machine("10.0.0.1")
    assert rendezvous.find() is None
    monkeypatch.setenv(LAUNCHED, "yes")
    with pytest.raises(ArgumentError, match="nothing that oneflow.launch sets"):
        rendezvous.find()


def test_an_address_that_the_first_machine_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEFLOW_SECRET", "0123456789abcdef")
    port = addresses.free_port("127.0.0.1")
    for host, text in [("203.0.113.9", "is not an address of this machine"), ("no.such.host.invalid", "is unknown here")]:
        monkeypatch.setenv(LAUNCHED, f"0 2 {host}:{port} 0 1")
        with pytest.raises(ProcessError, match=rf"cannot listen at {host}: that {text}(?s:.*)NAT(?s:.*)flow.env.bind_address"):
            rendezvous.find()
        monkeypatch.setenv("ONEFLOW_BIND_ADDRESS", "127.0.0.1")
        place = rendezvous.find()
        assert place is not None and place.server is not None
        assert (place.host, place.own_host, place.own_port, place.bound_host) == (host, "127.0.0.1", port, "127.0.0.1")
        place.server.close()
        monkeypatch.delenv("ONEFLOW_BIND_ADDRESS")
        env.bind_address("0.0.0.0")
        place = rendezvous.find()
        assert place is not None and place.server is not None
        assert (place.own_host, place.bound_host, place.listens_everywhere) == ("127.0.0.1", "0.0.0.0", True)
        place.server.close()
        Environment.reset()
    monkeypatch.setenv("ONEFLOW_BIND_ADDRESS", "203.0.113.9")
    with pytest.raises(ProcessError, match="cannot listen at 203.0.113.9"):
        rendezvous.find()


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
def test_other_processes_of_the_first_machine_use_the_address_that_it_listens_at(
    monkeypatch: pytest.MonkeyPatch, bind: str
) -> None:
    monkeypatch.setenv("ONEFLOW_SECRET", "0123456789abcdef")
    monkeypatch.setenv("ONEFLOW_BIND_ADDRESS", bind)
    for launched, host in [("1 4 203.0.113.9:4000 1 2", "127.0.0.1"), ("2 4 203.0.113.9:4000 0 2", "203.0.113.9"),
                           ("3 4 203.0.113.9:4000 1 2", "203.0.113.9")]:  # fmt: skip
        monkeypatch.setenv(LAUNCHED, launched)
        place = rendezvous.find()
        assert place is not None and (place.host, place.own_host, place.own_port) == ("203.0.113.9", host, 4000)
        assert place.listens_everywhere == (host == "127.0.0.1" and bind == "0.0.0.0")
    monkeypatch.delenv("ONEFLOW_BIND_ADDRESS")
    monkeypatch.setenv(LAUNCHED, "1 4 203.0.113.9:4000 1 2")
    place = rendezvous.find()
    assert place is not None and place.own_host == "203.0.113.9"


def test_a_name_that_is_loopback_only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian gives a machine's own name the address 127.0.1.1, where other machines do not find it."""
    monkeypatch.setenv("ONEFLOW_SECRET", "0123456789abcdef")
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more, **how: real("127.0.1.1" if host == "node1" else host, *more, **how)
    )
    port = addresses.free_port("127.0.0.1")
    monkeypatch.setenv(LAUNCHED, f"0 2 node1:{port} 0 1")
    with pytest.raises(ProcessError, match="node1: that stands for this machine's loopback interface"):
        rendezvous.find()
    monkeypatch.setenv(LAUNCHED, f"0 2 node1:{port} 0 2")  # all on this machine
    place = rendezvous.find()
    assert place is not None and place.bound_host == "127.0.1.1" and place.server is not None
    place.server.close()


# --- real launchers

TOGETHER = """
import numpy as np
import oneflow as flow, oneflow.typing as tp

before = flow.distributed.get_rank(), flow.distributed.get_world_size()
config = flow.FunctionConfig()
config.feed_own_part(True)

@flow.global_function(function_config=config)
def total(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
    return flow.math.reduce_sum(x)

assert before == (flow.distributed.get_rank(), flow.distributed.get_world_size())
print("total", *total(np.full(1, 1 + before[0], np.float32)), flush=True)
"""


def _run(tmp_path: Path, *command: str) -> None:
    (tmp_path / "script.py").write_text(TOGETHER)
    done = subprocess.run([*command, sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "total 3.0"), done.stderr


def test_mpirun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (mpirun := shutil.which("mpirun")) is None:
        pytest.skip("no mpirun here")
    for name in (
        "OMPI_ALLOW_RUN_AS_ROOT",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
        "PRTE_ALLOW_RUN_AS_ROOT",
        "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM",
    ):
        monkeypatch.setenv(name, "1")
    if "Open MPI" not in (told := subprocess.run([mpirun, "--version"], capture_output=True, text=True).stdout):
        pytest.skip(f"this mpirun tells no address: {told.strip()[:60]}")
    _run(tmp_path, mpirun, "-n", "2", "--oversubscribe")


def test_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    _run(tmp_path, sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--no-python")


def test_processes_that_srun_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As SLURM does it: both are told the same, but for their numbers, and the name of a node that means this machine."""
    (tmp_path / "script.py").write_text(TOGETHER)
    _set(monkeypatch, f"SLURM_JOB_ID={os.getpid()} SLURM_STEP_ID=0 SLURM_STEP_NODELIST={socket.gethostname()} SLURM_NTASKS=2")
    _set(monkeypatch, "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_NODEID=0")
    started = []
    for rank in range(2):
        _set(monkeypatch, f"SLURM_PROCID={rank} SLURM_LOCALID={rank}")
        command = [sys.executable, str(tmp_path / "script.py")]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    for process, shown in zip(started, ("total 3.0\n", ""), strict=True):
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, shown), err


# --- two machines: network namespaces, joined by a wire


@pytest.fixture
def two_machines() -> Iterator[list[tuple[list[str], str]]]:
    """For each machine, what to begin a command with, and its address."""
    if shutil.which("ip") is None:
        pytest.skip("no ip command here")
    names = [f"oneflow-{os.getpid()}-{side}" for side in "ab"]
    ends = [f"of{os.getpid() % 10**6}{side}" for side in "ab"]

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
            for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
                ip("link", "set", end, "netns", name)
                ip("-n", name, "addr", "add", f"10.213.7.{number}/24", "dev", end)
                for link in (end, "lo"):
                    ip("-n", name, "link", "set", link, "up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces cannot be made here: {getattr(error, 'stderr', None) or error}")
        yield [(["ip", "netns", "exec", name], f"10.213.7.{number}") for number, name in enumerate(names, 1)]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


PORTS = """
def listening():
    for line in [*open("/proc/self/net/tcp"), *open("/proc/self/net/tcp6")]:
        _, local, _, state, *_ = line.split()
        if state == "0A":
            yield local.split(":")[0]

print(sorted(set(listening())))
"""


def test_two_machines(two_machines: list[tuple[list[str], str]], tmp_path: Path) -> None:
    """Every port of the run listens on the interface of its address, whatever the machine's own name stands for."""
    (tmp_path / "script.py").write_text(TOGETHER + PORTS)
    (tmp_path / "secret").write_text("0123456789abcdef")
    (tmp_path / "secret").chmod(0o600)
    started = []
    for rank, (within, _) in enumerate(two_machines):
        launch = ["--nnodes", "2", "--node_rank", str(rank), "--master", f"{two_machines[0][1]}:29500", "--secret-file"]
        command = [*within, sys.executable, "-m", "oneflow.launch", *launch, "secret", "--all-output", "script.py"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path))
    found = []
    for process in started:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        found.append(out.splitlines())
    # the kernel shows the bytes of an address in the order of a little-endian number, and IPv4 in IPv6 as its last four
    first, second, mapped = "0107D50A", "0207D50A", "0000000000000000FFFF00000107D50A"
    assert found == [["total 3.0", str(sorted([mapped, first]))], ["total 3.0", str([second])]]
