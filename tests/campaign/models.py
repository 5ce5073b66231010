"""Damaged checkpoints, safetensors files, ONNX and StableHLO models and settings of served models, for ``files.py``.

What is damaged is made once, in a process of its own, because the process that forks one for each case must not start JAX:

    python -m tests.campaign.models FOLDER
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp
from oneflow.checkpoint import CheckpointManager, digests, inspection
from oneflow.checkpoint import __main__ as command
from oneflow.checkpoint.description import Description
from oneflow.serving import _settings

from .isolation import each
from .mutations import Damage

ROOT = Path(__file__).resolve().parent.parent.parent
STEP, NAME = 5, "snapshot_0000000005"
_SPARSE = 3 << 30  # bytes: more than a case may allocate
_CONFIG = {
    "max_batch_size": 8, "batch_sizes": [1, 4, 8], "max_delay_ms": 2.5, "max_queue": 64, "batching": True,
    "sizes": {"length": [16, 32]}, "versions": [1, 2], "job": "script.py:predict", "arguments": ["--width", "8"],
}  # fmt: skip


# --- what is damaged


def make(folder: Path) -> None:
    """A small model in all formats. Starts JAX."""
    normal = flow.random_normal_initializer(stddev=0.2)

    def net(x: Any) -> Any:
        h = flow.layers.dense(x, 64, flow.math.relu, kernel_initializer=normal, name="a")
        return flow.nn.softmax(flow.layers.dense(h, 3, kernel_initializer=normal, name="b"))

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        loss = flow.math.reduce_mean(flow.math.square(net(flow.nn.dropout(x, rate=0.2))))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(loss)
        return loss

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        return net(x)

    for _ in range(STEP):
        train(np.ones((4, 5), np.float32))
    CheckpointManager(folder, monitor="loss").save(STEP, {"loss": 0.5}, {"epoch": 1})
    flow.checkpoint.save(folder / "m.safetensors", format="safetensors")
    for stem, external in (("m", False), ("external", True)):
        flow.export.onnx(predict, folder / f"{stem}.onnx", external_data=external)
        flow.export.stablehlo(predict, folder / f"{stem}.stablehlo", platforms=("cpu",), external_data=external)


@cache
def _made() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="oneflow-models-"))
    command = [sys.executable, "-m", f"{__package__}.models", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    if done.returncode != 0:
        raise RuntimeError(f"the models cannot be made: {done.stderr[-2000:]}")
    return folder


def _spoil(path: Path, damage: Damage) -> None:
    """Puts something else in the place of a file, or changes its bytes."""
    kind = damage.below(8) if damage.chance(0.3) else -1
    if kind < 0:
        path.write_bytes(damage.bytes(path.read_bytes()))
        return
    content = path.read_bytes()
    path.unlink()
    if kind == 1:
        path.mkdir()
    elif kind == 2:
        os.mkfifo(path)
    elif kind == 3:
        path.symlink_to("/dev/zero")
    elif kind == 4:
        path.symlink_to(path.parent / "nowhere")
    elif kind == 5:
        path.write_bytes(content)
        os.truncate(path, _SPARSE)
    elif kind == 6:
        path.symlink_to(path)
    elif kind == 7:
        (path.parent / "moved").write_bytes(content)
        path.symlink_to("moved")


def _copied(folder: Path, *names: str) -> None:
    for name in names:
        shutil.copy(_made() / name, folder / name)


# --- checkpoints


def write_checkpoint(folder: Path, damage: Damage) -> None:
    path = folder / NAME
    shutil.copytree(_made() / NAME, path)
    variables = sorted(p for p in path.iterdir() if p.is_dir())
    one, other = (variables[damage.below(len(variables))] for _ in range(2))
    kind = damage.below(6) if damage.chance(0.5) else -1
    if kind == 0 and one != other:  # exchanged directories
        one.rename(folder / "x"), other.rename(one), (folder / "x").rename(other)
    elif kind == 1:
        shutil.rmtree(one)
        if damage.chance(0.7):
            one.write_bytes(b"") if damage.chance(0.5) else one.symlink_to(folder / "nowhere")
    elif kind == 2:
        shutil.copytree(one, path / "another")
    elif kind == 3:
        (path / "snapshot_done").unlink()
    elif kind in (4, 5):  # somebody has changed the JSON file, and its digest
        text = path / "oneflow-jax.json"
        changed = damage.json({key: value for key, value in json.loads(text.read_bytes()).items() if key != "crc32"})
        with contextlib.suppress(ValueError, TypeError, AttributeError):  # what JSON does not hold
            text.write_bytes(digests.seal(changed))
    files = sorted(p for p in path.rglob("*") if p.is_file())
    if kind < 0:
        _spoil(files[damage.below(len(files))], damage)


def read_checkpoint(folder: Path) -> None:
    path, right = folder / NAME, _values()

    def values() -> None:
        stored = flow.checkpoint.get(path)
        assert isinstance(stored, dict)
        found = {name: value.numpy() for name, value in stored.items()}
        if Description.read(str(path)).digests == _digests():  # then what is read is what was saved
            assert all(np.array_equal(value, right[name]) for name, value in found.items())

    def manager() -> None:
        made = CheckpointManager(folder, monitor="loss", max_to_keep=1)
        repr(made), made.all(), made.latest(), made.best()
        each(made.metadata, made.metrics, made.step)

    def commands() -> None:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            for words in (["list", folder], ["show", path], ["verify", path], ["diff", path, _made() / NAME]):
                assert command.main([*map(str, words)]) in (0, 1, 2)

    each(values, lambda: inspection.verify(str(path)), manager, commands, lambda: flow.checkpoint.get(path / "a-weight"))


@cache
def _values() -> dict[str, np.ndarray]:
    stored = flow.checkpoint.get(_made() / NAME)
    assert isinstance(stored, dict)
    return {name: value.numpy() for name, value in stored.items()}


@cache
def _digests() -> Any:
    return Description.read(str(_made() / NAME)).digests


# --- safetensors


def write_safetensors(folder: Path, damage: Damage) -> None:
    _copied(folder, "m.safetensors")
    path = folder / "m.safetensors"
    if not damage.chance(0.5):
        _spoil(path, damage)
        return
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(damage.json(json.loads(content[8:end]))).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[end:])


def read_safetensors(folder: Path) -> None:
    def values() -> None:
        stored: Any = flow.checkpoint.get(folder / "m.safetensors")
        each(*(value.numpy for value in stored.values()))

    each(values)


# --- ONNX


def write_onnx(folder: Path, damage: Damage) -> None:
    _copied(folder, *(p.name for p in _made().glob("external.onnx*")))
    external = damage.chance(0.3)
    shutil.copy(_made() / ("external.onnx" if external else "m.onnx"), folder / "m.onnx")
    if external and damage.chance(0.5):
        data = sorted(p for p in folder.iterdir() if p.name not in ("m.onnx", "external.onnx"))
        _spoil(data[damage.below(len(data))], damage)
    elif damage.chance(0.6):
        _change_onnx(folder / "m.onnx", damage)
    else:
        _spoil(folder / "m.onnx", damage)


_ODD_NUMBERS = (0, 1, -1, 2, 7, 1 << 31, 1 << 40, -(1 << 63), (1 << 63) - 1)
_ODD_TEXTS = (
    "",
    "x",
    "Relu",
    "Loop",
    "../../etc/passwd",
    "/dev/zero",
    "pipe",
    "a" * 3000,
    "Reshape",
    "Range",
    "Expand",
    "1099511627776",
)


def _change_onnx(path: Path, damage: Damage) -> None:
    """Changes one to four fields of the message."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    for _ in range(1 + damage.below(4)):
        places = list(_fields(model.graph))
        holder, field = places[damage.below(len(places))]
        value = getattr(holder, field)
        with contextlib.suppress(ValueError, TypeError):  # values that the field does not take
            if hasattr(value, "append"):
                kind = damage.below(3)
                if kind == 0 and len(value):
                    del value[damage.below(len(value))]
                elif len(value) and isinstance(value[0], (int, str)):
                    others: Any = _ODD_TEXTS if isinstance(value[0], str) else _ODD_NUMBERS
                    value[damage.below(len(value))] = others[damage.below(len(others))]
            else:
                choices: Any = (
                    _ODD_TEXTS if isinstance(value, str) else [b"", value[:5]] if isinstance(value, bytes) else _ODD_NUMBERS
                )
                setattr(holder, field, choices[damage.below(len(choices))])
    path.write_bytes(model.SerializeToString())


def _fields(message: Any) -> Any:
    """Holder and name of every field that is set, at every depth."""
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            yield message, descriptor.name
            continue
        inner = value if hasattr(value, "append") or hasattr(value, "add") else [value]
        if hasattr(value, "add"):
            yield message, descriptor.name
        for each_one in inner:
            yield from _fields(each_one)


def read_onnx(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = flow.onnx.load(folder / "m.onnx")
        repr(model)

        def job(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
            return model(x)

        flow.global_function()(job).graph  # noqa: B018 - traces it


# --- StableHLO


def write_stablehlo(folder: Path, damage: Damage) -> None:
    stem = "external" if damage.chance(0.3) else "m"
    _copied(folder, "external.safetensors")
    shutil.copy(_made() / f"{stem}.stablehlo", folder / "external.stablehlo")
    spoilt = "safetensors" if stem == "external" and damage.chance(0.5) else "stablehlo"
    _spoil(folder / f"external.{spoilt}", damage)


def read_stablehlo(folder: Path) -> None:
    model = flow.export.load(folder / "external.stablehlo")
    repr(model), model.inputs, model.results, model.platforms


# --- settings of served models


def write_settings(folder: Path, damage: Damage) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(damage.json(_CONFIG)))
    if damage.chance(0.5):
        _spoil(path, damage)


def read_settings(folder: Path) -> None:
    assert _settings.read(folder, _settings.ModelSettings()).compiled_batches


if __name__ == "__main__":
    make(Path(sys.argv[1]))
