"""Two processes with two virtual devices each, on loopback: what they compute, save, and do when one of them is lost."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow

TWO = ("-m", "oneflow.launch", "--nproc", "2")

MOVES = """
import numpy as np
import oneflow as flow
flow.config.cpu_device_num(2)
flow.env.init()
from oneflow.runtime import devices, processes, transfer
devices.prepare()
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

found = np.array(jax.devices())
rng = np.random.default_rng(0)
dtypes = [np.float32, np.float64, np.int64, np.int8, np.bool_, np.float16, jax.numpy.bfloat16]
parts = {"all": found, "first": found[:2], "second": found[2:], "one": found[3:], "middle": found[1:3]}
meshes = {name: Mesh(part, ("d",)) for name, part in parts.items()}
places = [NamedSharding(mesh, PartitionSpec(*spec)) for mesh in meshes.values() for spec in ((), ("d",))]
for number, dtype in enumerate(dtypes):
    x = (rng.standard_normal((4, 3)) * 5).astype(dtype)
    if x.dtype.kind == "f":
        x[:3, 0] = -0.0, np.nan, np.inf
    for place in places[number % 5 :: 5]:
        array = transfer.to_global(x, place)
        for y in (array, transfer.readable(array), *(transfer.move(array, other) for other in places[number % 4 :: 4])):
            host = transfer.to_host(y)
            assert host.dtype == x.dtype and host.tobytes() == x.tobytes() and host.flags.writeable, (dtype, place)
assert processes.gather("numbers", processes.index() + 1) == [1, 2]
assert processes.broadcast_from_rank_zero("number", processes.index() + 5) == 5
try:
    processes.on_rank_zero("a failure", lambda: (_ for _ in ()).throw(flow.errors.CheckpointError("the disk is full")))
except flow.errors.CheckpointError as error:
    print(error, processes.index())
"""


def test_arrays_move_between_processes_bit_for_bit(program: Any) -> None:
    done = program(MOVES, *TWO)
    assert (done.returncode, done.stdout) == (0, "the disk is full 0\n"), done.stderr


ON_ONE = """
import json
import sys
import numpy as np
import oneflow as flow, oneflow.typing as tp
flow.env.init()

@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((4, 2))) -> tp.Numpy:
    with flow.scope.placement("cpu", sys.argv[1]):
        loss = flow.math.reduce_mean(flow.math.square(flow.layers.dense(x, 1, name="d") - 1.0))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
    return loss

losses = [train(np.ones((4, 2), np.float32)).item() for _ in range(3)]
assert losses[2] < losses[1] < losses[0], losses
"""


@pytest.mark.parametrize("place", [pytest.param("0:0", marks=pytest.mark.thorough), "1:0"])
def test_a_job_on_a_device_of_one_process(place: str, program: Any) -> None:
    done = program(ON_ONE, *TWO, arguments=(place,))
    assert done.returncode == 0, done.stderr


TRAINING = """
import json
import sys
import numpy as np
import oneflow as flow, oneflow.typing as tp

load, first, last, save = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
several = flow.distributed.get_world_size() > 1
flow.config.gpu_device_num(2 if several else int(sys.argv[5]))
flow.manual_seed(7)
first_half, second_half = ("0:0-1", "1:0-1") if several else ("0:0", "0:0")
normal = flow.random_normal_initializer(stddev=0.3)

def layer(x):
    split = flow.distribute.split(1)
    w = flow.get_variable("split", (6, 12), initializer=normal, distribute=split)
    return flow.math.tanh(flow.matmul(x, w))

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((16, 6)), y: tp.Numpy.Placeholder((16,), flow.int32)) -> tp.Numpy:
    h = flow.layers.batch_normalization(layer(x), name="norm")
    h = flow.nn.dropout(h, rate=0.2)
    z = flow.layers.dense(h, 4, name="dense", kernel_initializer=normal)
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, z)
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
    return loss

@flow.global_function(type="train")
def staged(x: tp.Numpy.Placeholder((16, 6)), y: tp.Numpy.Placeholder((16,), flow.int32)) -> tp.Numpy:
    with flow.scope.placement("gpu", first_half):
        h = flow.layers.dense(x, 12, activation=flow.math.tanh, name="a", kernel_initializer=normal)
    with flow.scope.placement("gpu", second_half):
        z = flow.layers.dense(flow.nn.dropout(h, rate=0.2), 4, name="b", kernel_initializer=normal)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, z)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(loss)
    return loss

@flow.global_function()
def hidden(x: tp.Numpy.Placeholder((16, 6))) -> tp.Callback[tp.Numpy]:
    return layer(x)

if load != "-":
    flow.load_variables(flow.checkpoint.get(load))
got = []
rng = np.random.default_rng(0)
for step in range(last):
    x, y = rng.standard_normal((16, 6)).astype(np.float32), rng.integers(0, 4, 16).astype(np.int32)
    if step >= first:
        hidden(x)(lambda value: got.append(value))
        print("loss", step, *train(x, y), *staged(x, y))
flow.sync_default_session()
print("hidden", *np.sum(got, 0).reshape(-1)[::5])
if save != "-":
    flow.checkpoint.save(save)
for name, variable in sorted(flow.get_all_variables().items()):
    print("variable", name, *variable.numpy().reshape(-1)[::3])
"""


def _numbers(done: Any) -> dict[str, np.ndarray]:
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    return {
        " ".join(row[:2]) if row[0] != "hidden" else "hidden": np.array(row[1 + (row[0] != "hidden") :], float) for row in rows
    }


def test_training_equals_one_process_and_goes_on_elsewhere(program: Any, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    whole = _numbers(program(TRAINING, arguments=("-", "0", "4", "-", "1")))
    begun = _numbers(program(TRAINING, *TWO, arguments=("-", "0", "2", str(saved))))
    assert len(list(saved.glob("*/out"))) > 10 and [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    resumed = _numbers(program(TRAINING, arguments=(str(saved), "2", "4", "-", "2")))
    assert resumed.keys() | begun.keys() == whole.keys()
    for name, value in {**begun, **resumed}.items():
        if name != "hidden":
            np.testing.assert_allclose(value, whole[name], rtol=2e-4, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(begun["hidden"] + resumed["hidden"], whole["hidden"], rtol=2e-4, atol=2e-5)


LOSING = """
import os, signal, sys, time
import numpy as np
import oneflow as flow, oneflow.typing as tp

how, rank = sys.argv[1], flow.distributed.get_rank()
flow.env.stall_timeout(3)
width = 12 if how == "differs" and rank == 1 else 11

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((16, 6))) -> tp.Numpy:
    if how == "body" and rank == 1:
        raise ValueError("no such layer")
    loss = flow.math.reduce_mean(flow.layers.dense(x, width, name="a"))
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), momentum=0).minimize(loss)
    return loss

@flow.global_function()
def other(x: tp.Numpy.Placeholder((16, 6))) -> tp.Numpy:
    return x + x

@flow.global_function()
def alike(x: tp.Numpy.Placeholder((16, 6))) -> tp.Numpy:
    return x * x

x = np.ones((16, 6), np.float32)
train(x), other(x)
if how == "ends":
    alike(x)
print("begun", flush=True)
if how == "ends":
    (other if rank else alike)(x)
    sys.exit()
if how == "killed" and rank == 0:
    os.kill(os.getpid(), 9)
if how == "raises" and rank == 1:
    raise ValueError("no such file")
if how == "sleeps" and rank == 1:
    time.sleep(1000)
if how == "exits" and rank == 1:
    sys.exit(3)
if how == "calls" and rank == 1:
    other(x)
if how == "stops":
    from oneflow.runtime.processes import watch
    watch.SILENT_SECONDS = 2.0
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
if how == "elsewhere":
    if rank == 1:
        os.kill(os.getpid(), 9)
    time.sleep(1000)
for _ in range(3):
    train(x)
print("done", flush=True)
"""

LOST = {
    "killed": (137, ["process 1 of 2 cannot go on: process 0 is gone without a word", "process 0 of 2 was ended by SIGKILL"]),
    "raises": (1, ["process 0 of 2 cannot go on: process 1 ended with an error: ValueError: no such file", "program.py:"]),
    "body": (1, ["errors.ProcessError: process 0 of 2 cannot go on: process 1 ended with an error: ValueError: no such layer"]),
    "sleeps": (1, ["process 0 of 2 cannot go on: process 1 has stood still for", "waits for it in call 3, job 'train'",
                   "process 1 of 2 cannot go on: process 0 gave up"]),
    "stops": (1, ["process 0 of 2 cannot go on: process 1 has not been heard of for", "it was stopped", "program.py:"]),
    "elsewhere": (137, ["process 0 of 2 cannot go on: process 1 is gone without a word", "its next call will raise this"]),
    "exits": (3, ["the program of process 1 ended after 2 calls, and this one waits for it in call 3, job 'train'"]),
    "calls": (1, ["the programs differ: call 3 is job 'train' here and job 'other' in process 1"]),
    "ends": (1, ["the programs differ: call 4 is job '", "every process must make the same calls"]),
    "differs": (1, ["differ in job 'train'", "'a-weight': float32[11, 6]", "'a-weight': float32[12, 6]", "the same script"]),
}  # fmt: skip


@pytest.mark.parametrize(
    "how",
    [pytest.param(h, marks=[pytest.mark.thorough] * (h not in ("killed", "raises", "body", "calls", "differs"))) for h in LOST],
)
def test_a_lost_process_ends_the_others_with_a_clear_error(how: str, program: Any) -> None:
    done = program(LOSING, *TWO, arguments=(how,))
    status, texts = LOST[how]
    assert done.returncode == status, done.stderr
    assert done.stdout == ("" if how in ("body", "differs") else "begun\n")
    for text in texts:
        assert text in done.stderr
    assert "Check failure stack trace" not in done.stderr  # JAX's own end of a process


HANGING = """
import sys, time
import numpy as np
import oneflow as flow, oneflow.typing as tp

rank, count, end = flow.distributed.get_rank(), [0], sys.argv[1] == "end"
flow.env.step_timeout(3)
flow.env.end_on_step_timeout(end)

@flow.experimental.register_host_op("sleeper")
def sleeper(x):
    count[0] += 1
    if rank == 0 and count[0] == 4:
        time.sleep(1000 if end else 8)
    return x

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((16, 6))) -> tp.Numpy:
    h = flow.user_op_builder("kernel").Op("sleeper").Input("x", [x]).Output("out").Build().InferAndTryRun().RemoteBlobList()[0]
    loss = flow.math.reduce_mean(flow.layers.dense(h, 4, name="a"))
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), momentum=0).minimize(loss)
    return loss

for i in range(6):
    train(np.ones((16, 6), np.float32))
print("done")
"""


@pytest.mark.parametrize("end", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_a_hang_inside_a_step_that_all_are_in(end: bool, program: Any) -> None:
    """A host function hangs in the first process, and the other waits for it inside of the same call."""
    done = program(HANGING, *TWO, arguments=("end" if end else "go on",))
    assert (done.returncode, done.stdout) == ((1, "") if end else (0, "done\n")), done.stderr
    text = done.stderr[done.stderr.index("all processes have been in call 4, job 'train', for") :]
    assert "s before\n  process 0  waits at" in text and "(in sleeper)" in text and "\n  process 1  waits at" in text
    assert ("process 0 of 2 cannot go on" in done.stderr and "process 1 of 2 cannot go on" in done.stderr) == end
    assert done.stderr.count("all processes have been in") == 1 or end


HEARTBEATS = """
import sys, threading, time
import numpy as np
import oneflow as flow, oneflow.typing as tp
from oneflow.runtime import processes

@flow.global_function()
def twice(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x * 2

x = np.ones(4, np.float32)
twice(x)
sys.setswitchinterval(1e-6)
end = time.monotonic() + 3

def work():
    while time.monotonic() < end:
        with processes.busy("work"):
            pass

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(400):
    twice(x)
for thread in threads:
    thread.join()
print(*twice(x))
"""


@pytest.mark.thorough
def test_work_that_begins_and_ends_often_on_many_threads(program: Any) -> None:
    """Each tells the others, beside the watch: the messages stay whole and in order."""
    done = program(HEARTBEATS, *TWO)
    assert (done.returncode, done.stdout) == (0, "2.0 2.0 2.0 2.0\n"), done.stderr
    assert "Traceback" not in done.stderr and "ProcessError" not in done.stderr


STARTING = """
import os
import oneflow as flow
from oneflow.runtime.processes import jax_runtime

if flow.distributed.get_rank() == int(os.environ["KILLED"]):
    jax_runtime.initialize = lambda *how: os.kill(os.getpid(), 9)
flow.env.init()
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_lost_while_jax_begins(rank: int, program: Any) -> None:
    done = program(STARTING, *TWO, KILLED=str(rank))
    assert done.returncode == 137
    assert f"process {1 - rank} of 2 cannot go on: process {rank} is gone without a word" in done.stderr
    assert "did not end and had to be stopped" not in done.stderr


FORKED = """
import os, sys
import numpy as np
import oneflow as flow, oneflow.typing as tp
from oneflow.runtime import processes

@flow.global_function()
def twice(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x * 2

twice(np.ones(4, np.float32))
import warnings
warnings.simplefilter("ignore")
child = os.fork()
if not child:
    assert processes.gather("alone", 1) == [1]
    for use in (processes.start, lambda: twice(np.ones(4, np.float32))):
        try:
            use()
        except flow.errors.ForkError as error:
            assert "forked" in str(error)
        else:
            sys.exit(8)
    sys.exit(7)  # with the hooks that run at the end of a program
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), *twice(np.ones(4, np.float32)))
"""


@pytest.mark.thorough
def test_a_forked_child_leaves_the_run_alone(program: Any) -> None:
    done = program(FORKED, *TWO)
    assert (done.returncode, done.stdout) == (0, "7 2.0 2.0 2.0 2.0\n"), done.stderr


def test_names_of_the_run_outside_of_one() -> None:
    d = flow.distributed
    assert (d.get_rank(), d.get_world_size(), d.get_local_rank(), d.is_multi_client()) == (0, 1, 0, False)
    assert sys.modules["oneflow.runtime.processes"].gather("a value", 3) == [3]


PARTS = """
import numpy as np
import oneflow as flow, oneflow.typing as tp

count, rank = flow.distributed.get_world_size(), flow.distributed.get_rank()
flow.config.gpu_device_num(2)

def job(placement):
    config = flow.FunctionConfig()
    config.feed_own_part(True)
    config.default_placement_scope(flow.scope.placement("gpu", placement))

    @flow.global_function(function_config=config)
    def twice(x: tp.Numpy.Placeholder((8, 3)), y: tp.Numpy.Placeholder((2,), batch_axis=None)) -> tp.Numpy:
        return x * 2 + flow.math.reduce_sum(y)

    return twice

config = flow.FunctionConfig()
config.feed_own_part(True)

@flow.global_function(function_config=config)
def staged(x: tp.Numpy.Placeholder((8, 3))) -> tp.Callback[tp.Numpy]:
    with flow.scope.placement("gpu", "0:0-1"):
        h = x * 2
    with flow.scope.placement("gpu", "1:0"):
        return h + x

whole, got = np.arange(24, dtype=np.float32).reshape(8, 3), []
part = whole[rank * 4 : rank * 4 + 4]
for placement in (["0:0-1", "1:0-1"], "0:0", "1:0-1"):
    assert np.array_equal(job(placement)(part, np.ones(2, np.float32)), whole * 2 + 2), placement
part = part.copy()
handle = staged(part)
part[:] = 0  # what was fed is the job's own
handle(got.append)
flow.sync_default_session()
assert np.array_equal(got[0], whole * 3)
try:
    staged(whole)
except flow.errors.FeedShapeError as error:
    first, *_, hint = str(error).splitlines()
    print(first)
    assert "feed this process's part, of shape (4, 3), or leave config.feed_own_part out" in hint, hint

@flow.global_function()
def same(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
    return x + 0

same(np.full(4, rank, np.float32))
flow.config.find_nonfinite(True)
try:
    same(np.zeros(4, np.float32))
except flow.errors.ModeError as error:
    assert "runs of one process" in str(error) and "same(np.zeros(4, np.float32))" in str(error), error
else:
    raise SystemExit("find_nonfinite was not refused")
flow.config.find_nonfinite(False)

@flow.global_function(function_config=config)
def alike(x: tp.Numpy.Placeholder((8, 3))) -> tp.Numpy:
    return x + 0

alike(whole[:4])

mirrored = flow.FunctionConfig()
mirrored.default_logical_view(flow.scope.mirrored_view())
mirrored.default_placement_scope(flow.scope.placement("gpu", ["0:0-1", "1:0-1"]))

@flow.global_function(function_config=mirrored)
def lists(x: tp.ListNumpy.Placeholder((2, 3))) -> tp.ListNumpy:
    return x + 0

lists([whole[:2]] * 4)

@flow.global_function(function_config=mirrored)
def pieces(x: tp.ListNumpy.Placeholder((2, 3))) -> tp.ListNumpy:
    return x + 0

pieces(np.split(whole, 4))
"""


def test_each_process_feeds_its_part(program: Any) -> None:
    done = program(PARTS, *TWO)
    assert (done.returncode, done.stdout) == (0, "job 'staged': input 'x' must have shape (4, 3), got (8, 3)\n"), done.stderr
    assert "process 1 feeds other values for 'Input_0' of job 'same' than process 0" in done.stderr
    assert done.stderr.count("process 1 feeds the same values as process 0") == 1
    assert "its own part of the batches of job 'alike': give each process other data" in done.stderr
    assert done.stderr.count("all devices are fed the same arrays") == 1
    assert "in the first call of job 'lists'" in done.stderr


STAGES = """
import numpy as np
import oneflow as flow, oneflow.typing as tp

several = flow.distributed.get_world_size() > 1
flow.config.cpu_device_num(2)
flow.manual_seed(3)

@flow.global_function(type="train")
def train(x: tp.Numpy.Placeholder((8, 5))) -> tp.Numpy:
    h = flow.unpack(x, 4)
    for stage in range(2):
        with flow.scope.placement("cpu", f"{stage if several else 0}:0-1"):
            h = flow.layers.dense(h, 4, kernel_initializer=flow.random_normal_initializer(stddev=0.5), name=f"s{stage}")
    flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(h)
    return h

x = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float32)
for _ in range(40):
    last = train(x)
if flow.distributed.get_rank() == 0:
    print(last.tolist())
"""


@pytest.mark.thorough
def test_micro_batches_of_stages_with_several_devices_each(program: Any) -> None:
    """Many collectives are under way at once, between all devices and between some: they hung before the tenth step or so."""
    found = []
    for command in ((), TWO):
        done = program(STAGES, *command)
        assert done.returncode == 0, done.stderr
        found.append(np.array(json.loads(done.stdout)))
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
