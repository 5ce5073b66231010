"""Everything public, called with what nobody should pass: outside jobs and in one.

``test_fuzz.py`` spoils calls that begin as a docstring's example. This goes over all public functions, settings, constructors
and methods, whether they have an example or not, and its values are hostile: objects whose methods raise, Blobs of another
job, ints of thousands of digits, lists that hold themselves. Such a call returns, or raises an error of the library with the
user's line. Nothing else comes out.
"""

from __future__ import annotations

import contextlib
import inspect
import random
import tempfile
import traceback
import types
import warnings
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from fuzz import OURS, PACKAGE, PLAIN
from table import trace
from test_fuzz import THOROUGH, examples

import oneflow as flow
import oneflow.typing as tp
from oneflow.config._function_config import FunctionSetter
from oneflow.config._settings import SettingsSetter
from oneflow.errors import OneFlowError
from oneflow.user_op import UserOpConfBuilder, UserOpModuleBuilder

VALUES_PER_PARAMETER = 160 if THOROUGH else 4
COMBINATIONS = 1500 if THOROUGH else 4


class Evil:
    """Raises whatever it is asked."""

    def _raise(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("evil")

    __repr__ = __str__ = __array__ = __len__ = __iter__ = __float__ = __int__ = __index__ = __bool__ = __eq__ = _raise
    __hash__ = __fspath__ = __getitem__ = __contains__ = __enter__ = __format__ = _raise  # type: ignore[assignment]


class Mute:
    """An ordinary object, but for its repr."""

    def __repr__(self) -> str:
        raise RuntimeError("mute")


def itself() -> list[Any]:
    made: list[Any] = [1]
    made.append(made)
    return made


def stale_blob(shape: tuple[int, ...] = (8, 4)) -> flow.Blob:
    """A Blob of a job that has been described."""
    _, (blob,) = trace(lambda x: x, [(shape, np.float32)])
    return blob


BLOB = object()  # stands for a Blob of the job where there is one
HOSTILE: tuple[Any, ...] = (
    BLOB, Evil(), Mute(), [Evil()], (Mute(), 1), {"a": Evil()}, {Mute(): 1}, itself(), 10**5000, -(10**5000), (10**5000,),
    10**30, np.array([None, 1], object), np.array(["a", "b"]), np.datetime64("2020-01-01"), Decimal("1.5"), Fraction(1, 3),
    np.zeros((2, 2)), Evil, lambda: None, lambda *args: Evil(), "\0", "a" * 100_000, "../..", b"\xff", [BLOB], (BLOB, BLOB),
    {"x": BLOB}, float("nan"), memoryview(b"abc"), flow, Ellipsis, np.float16(2), True,
)  # fmt: skip
ALWAYS = (BLOB, HOSTILE[1], HOSTILE[2], 10**5000, -1, None, "", np.zeros((2, 2)))
SAMPLED = HOSTILE + PLAIN + OURS

# What a required argument is while another one is spoilt; a Blob where its name is not here.
PLAUSIBLE: dict[str, Any] = {
    "name": "n", "shape": (2, 3), "dtype": flow.float32, "data_dir": ".", "ofrecord_dir": ".", "batch_size": 2, "axis": 0,
    "op_type_name": "relu", "op_module_name": "m", "path": "missing", "save_dir": "saved", "directory": ".", "type": "predict",
    "device_tag": "cpu", "machine_device_ids": "0:0", "val": 1, "seed": 1, "scope": {}, "filter_by_num_nodes": bool,
    "steps": 10, "base_lr": 0.1, "decay_rate": 0.5, "boundaries": [10], "values": [0.1, 0.01], "scale": 0.5,
    "lr_scheduler": flow.optimizer.CosineScheduler(0.1, 100), "multiplier": 0.5, "start_multiplier": 0.1, "clip_norm": 1.0,
    "permutation": (1, 0), "perm": (1, 0), "rank": 2, "prefix": "p", "index": 0, "parts": 2, "records": [], "filename": "f",
}  # fmt: skip
LEFT_OUT = {
    "flow.checkpoint.Preemption": "is made by flow.checkpoint.save_on_preemption",
    "flow.export.ExportedFunction": "is made by flow.export.load", "flow.onnx.OnnxModel": "is made by flow.onnx.load",
    "flow.serving.Server": "listens at a port; tests/serving/test_batching.py gives it such arguments",
    **dict.fromkeys([f"flow.loggers.{n}Logger" for n in ("Wandb", "MLFlow", "Trackio")], "needs a package of its own"),
    "flow.env.init": "starts the processes of a run",
    "flow.unittest.TestCase": "a class of Python's, whose methods are Python's",
    "flow.data.EpochArray": "an array, whose methods are NumPy's",
    "Model.__call__": "hands its arguments to the user's forward", "DataModule.__call__": "hands its arguments to forward",
    "NumpyDataModule.__call__": "hands its arguments to forward", "Blob.operator": "where ops/operators.py puts arithmetic",
}  # fmt: skip
# Methods that the compiler calls with arrays; they have no underscore because another room of the library uses them.
OF_THE_COMPILER = {
    "update", "slots", "bound", "effective_rate", "weight_decay_of", "learning_rate", "moments", "formula", "decayed", "value",
    "base_rate", "rate", "measure", "scaled", "clip", "gradient", "draw", "apply", "check", "take", "restore", "mark", "opener",
    "fused", "fused_scalars", "factor",
}  # fmt: skip


def _instances() -> dict[type, Callable[[], Any]]:
    """How to make something whose methods can be called."""
    schedule = flow.optimizer.CosineScheduler(0.1, 100)
    return {
        flow.typing.FixedTensorDef: lambda: flow.typing.FixedTensorDef((2, 3)),
        flow.FunctionConfig: flow.FunctionConfig,
        flow.Model: flow.Model,
        flow.model.TrainingConfig: flow.model.TrainingConfig,
        flow.model.ValidationConfig: flow.model.ValidationConfig,
        flow.model.CheckpointConfig: flow.model.CheckpointConfig,
        flow.model.DataModule: flow.model.DataModule,
        flow.model.NumpyDataModule: flow.model.NumpyDataModule,
        flow.train.CheckPoint: flow.train.CheckPoint,
        flow.train.SimpleCheckPointManager: lambda: flow.train.SimpleCheckPointManager(tempfile.mkdtemp(dir=".")),
        flow.checkpoint.CheckpointManager: lambda: flow.checkpoint.CheckpointManager(tempfile.mkdtemp(dir="."), 2, "loss"),
        flow.optimizer.SGD: lambda: flow.optimizer.SGD(schedule),
        flow.optimizer.CombinedOptimizer: lambda: flow.optimizer.CombinedOptimizer(
            [flow.optimizer.SGD(schedule, variables=["w"])]
        ),
        flow.optimizer.CosineScheduler: lambda: schedule,
        flow.optimizer.loss_scale.StaticLossScalePolicy: lambda: flow.optimizer.loss_scale.static_loss_scale(2.0),
        flow.experimental.CustomOpModule: lambda: flow.experimental.CustomOpModule("m"),
        UserOpConfBuilder: lambda: flow.user_op_builder("u").Op("relu"),
        UserOpModuleBuilder: lambda: flow.user_op_module_builder("relu"),
    }


def _job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
    return x


def _made(attribute: str) -> Any:
    """Objects that a program gets from calls of a job."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))):  # type: ignore[no-untyped-def]
        return x * flow.get_variable("w", (1,), initializer=flow.ones_initializer())

    result = job(np.ones((2, 3), np.float32))
    if attribute == "Result":
        return result
    if attribute == "LocalTensor":
        return result.get()
    return flow.get_all_variables()["w"]


def _subjects() -> dict[str, tuple[Callable[[], Any], str]]:
    """Path -> (how to come by what the call is made on, the attribute that is called; "" for itself)."""
    found: dict[str, tuple[Callable[[], Any], str]] = {}
    for path, value in examples.public().items():
        if issubclass(value if inspect.isclass(value) else int, BaseException):
            continue
        found[path] = (lambda v=value: v), ""
    for name in ("__call__", "summary", "plan", "build_report"):
        found[f"JobFunction.{name}"] = (lambda: flow.global_function()(_job)), name
    for kind in ("Result", "LocalTensor", "Variable"):
        names = _methods(type(_made(kind)))
        for name in ("get", "result", "async_get", "add_done_callback", "__call__") if kind == "Result" else names:
            found[f"{kind}.{name}"] = (lambda k=kind: _made(k)), name
    flow.clear_default_session()
    for name in dir(flow.config):
        if isinstance(getattr(flow.config, name), SettingsSetter):
            found[f"flow.config.{name}"] = (lambda n=name: getattr(flow.config, n)), ""
    for kind, make in _instances().items():
        for name in _methods(kind):
            found[f"{kind.__name__}.{name}"] = make, name
    for name in dir(flow.FunctionConfig()):
        if isinstance(getattr(flow.FunctionConfig(), name), FunctionSetter):
            found[f"FunctionConfig.{name}"] = flow.FunctionConfig, name
    for name in _methods(flow.Blob):
        found[f"Blob.{name}"] = (lambda: BLOB), name
    return {path: made for path, made in found.items() if path not in LEFT_OUT}


OPERATORS = "add sub mul truediv floordiv mod pow matmul lt le gt ge getitem contains array".split()


def _methods(kind: type) -> list[str]:
    """Its public methods, and ``__call__`` where the library defines that."""
    names = [n for n in dir(kind) if not n.startswith("_") and n not in OF_THE_COMPILER]
    names = [n for n in names if inspect.isroutine(inspect.getattr_static(kind, n))]
    special = [f"__{n}__" for n in (OPERATORS if kind is flow.Blob else ())]
    called = inspect.getattr_static(kind, "__call__", None)
    return [*names, *special, *(["__call__"] if inspect.isfunction(called) else [])]


WAITING: list[str] = []
SUBJECTS = {path: made for path, made in _subjects().items() if path not in WAITING}


def _resolved(value: Any, blob: flow.Blob) -> Any:
    if value is BLOB:
        return blob
    if isinstance(value, str) and value in OURS:
        return eval(value, {"flow": flow})  # noqa: S307 - of our own table
    if type(value) in (list, tuple) and any(v is BLOB for v in value):
        return type(value)(blob if v is BLOB else v for v in value)
    return {k: blob if v is BLOB else v for k, v in value.items()} if type(value) is dict else value


def calls(
    path: str, parameters: list[inspect.Parameter], rng: random.Random | None = None
) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Arguments that are tried: one after the other spoilt, then all together. Always the same ones without an ``rng``."""
    rng = random.Random(zlib.crc32(path.encode())) if rng is None else rng
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = {p.name: PLAUSIBLE.get(p.name, BLOB) for p in named if p.default is p.empty}
    many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    yield [], dict(required)
    for p in named:
        for value in (*ALWAYS, *rng.sample(SAMPLED, min(VALUES_PER_PARAMETER, len(SAMPLED)))):
            yield [], {**required, p.name: value}
    for _ in range(COMBINATIONS):
        yield [], {p.name: rng.choice(SAMPLED) for p in named if p.name in required or rng.random() < 0.5}
        if many and not named:
            yield [rng.choice(SAMPLED) for _ in range(rng.randint(0, 3))], {}


DECORATED = (lambda x: x, lambda: None, -1, None, BLOB, HOSTILE[1], HOSTILE[2], int, np.zeros(2), "job")


def used(made: Any, decorated: Any) -> None:
    """Uses the result: a decorator decorates, a scope is entered."""
    if isinstance(made, types.FunctionType) and made.__module__.startswith("oneflow"):
        made(decorated)
    elif hasattr(type(made), "__enter__") and hasattr(type(made), "__exit__"):
        with made:
            pass


def outcome(call: Callable[[], Any], decorated: Any = None, file: str = Path(__file__).name) -> str:
    """ "" where it returns or is refused well, with a line of ``file`` or of this one, else what is wrong."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            used(call(), decorated)
    except OneFlowError as error:
        text = str(error)
        told = "your line" in text and (file in text or Path(__file__).name in text)
        return "" if told else f"no line of the user: {type(error).__name__}: {text[:300]}"
    except TimeoutError:  # the contract of a future
        return ""
    except Exception as error:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(PACKAGE)]
        where = f"{Path(frames[-1].filename).relative_to(PACKAGE)}:{frames[-1].lineno}" if frames else "nowhere in the library"
        return f"{type(error).__name__} from {where}: {str(error)[:300]}"
    return ""


def _described(value: Any) -> str:
    with contextlib.suppress(Exception):
        return repr(value)[:80]
    return f"<{type(value).__name__}>"


def parameters_of(target: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return []


def _failures(path: str, blob: flow.Blob, owner: Any) -> Iterator[str]:
    attribute = SUBJECTS[path][1]
    owner = blob if owner is BLOB else owner
    target = getattr(owner, attribute) if attribute else owner
    parameters = parameters_of(target)
    for i, (args, kwargs) in enumerate(calls(path, parameters)):
        args = [_resolved(a, blob) for a in args]
        kwargs = {k: _resolved(v, blob) for k, v in kwargs.items()}
        positional = {p.name for p in parameters if p.kind is p.POSITIONAL_ONLY}
        assert not positional & kwargs.keys()
        decorated = _resolved(DECORATED[i % len(DECORATED)], blob)
        if wrong := outcome(lambda a=args, k=kwargs: target(*a, **k), decorated):
            shown = ", ".join([*map(_described, args), *(f"{k}={_described(v)}" for k, v in kwargs.items())])
            yield f"{path}({shown})\n    {wrong}"


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("oneflow.ops.custom.REGISTERED", {})
    (tmp_path / "m").mkdir()
    for name in ("m_py_api.py", "m_cpp_def.cpp", "m_py_kernel.py"):
        (tmp_path / "m" / name).write_text("")
    with jax.enable_x64(True):
        yield
    flow.experimental.enable_typing_check(False)


@pytest.mark.parametrize("path", sorted(p for p in SUBJECTS if not p.startswith(("UserOpConfBuilder", "UserOpModuleBuilder"))))
def test_outside_jobs(path: str) -> None:
    found = list(_failures(path, stale_blob(), SUBJECTS[path][0]()))
    assert not found, "\n".join(found[:8])


@pytest.mark.parametrize("path", sorted(SUBJECTS))
def test_in_a_job(path: str) -> None:
    found: list[str] = []
    declared = path.startswith(("JobFunction", "Result", "LocalTensor", "Variable"))  # which happens outside of jobs
    made = SUBJECTS[path][0]() if declared else None

    def body(x: flow.Blob) -> flow.Blob:
        found.extend(_failures(path, x, SUBJECTS[path][0]() if made is None else made))
        return x

    trace(body, [((8, 4), np.float32)])
    assert not found, "\n".join(found[:8])


# --- what stands in a job's signature, is fed to it, or returned


TRIED = SAMPLED if THOROUGH else ALWAYS + SAMPLED[::3]


def _all_well(call: Callable[[Any], Any]) -> None:
    blob, found = stale_blob((2, 3)), []
    for value in TRIED:
        if wrong := outcome(lambda v=_resolved(value, blob): call(v)):
            found.append(f"{_described(value)}\n    {wrong}")
    assert not found, "\n".join(found[:8])


def _declared(value: Any, place: str) -> Any:
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x

    job.__annotations__[place] = value
    return flow.global_function()(job)


@pytest.mark.parametrize("place", ["x", "return"])
def test_annotations(place: str) -> None:
    _all_well(lambda value: _declared(value, place).graph)


@pytest.mark.parametrize("kind", [tp.Bundle, tp.Callback])
def test_annotations_inside(kind: Any) -> None:
    def declare(value: Any) -> None:
        try:
            annotation = kind[value]
        except Exception:  # of Python's typing module
            return
        _declared(annotation, "return").graph  # noqa: B018 - traces it

    _all_well(declare)


def test_defaults() -> None:
    def declare(value: Any) -> None:
        def job(x=value) -> None:  # type: ignore[no-untyped-def]
            pass

        flow.global_function()(job).graph  # noqa: B018 - traces it

    _all_well(declare)


@pytest.mark.parametrize("annotation", [tp.Numpy, tp.ListNumpy, tp.Bundle[tp.Numpy], None, list[tp.Numpy]], ids=str)
def test_results(annotation: Any) -> None:
    def declare(value: Any) -> None:
        def job(x: tp.Numpy.Placeholder((2, 3))):  # type: ignore[no-untyped-def]
            return value

        if annotation is not None:
            job.__annotations__["return"] = annotation
        flow.global_function()(job).graph  # noqa: B018 - traces it

    _all_well(declare)


@pytest.mark.parametrize(
    "placeholder", [tp.Numpy.Placeholder((2, 3)), tp.ListNumpy.Placeholder((2, 3)), tp.Numpy.Placeholder((2, 3), flow.int32),
                    tp.ListListNumpy.Placeholder((2, 3)), tuple[tp.Numpy.Placeholder((2, 3)), tp.Numpy.Placeholder((1,))]],
)  # fmt: skip
def test_feeds(placeholder: Any) -> None:
    def job(x):  # type: ignore[no-untyped-def]
        pass

    job.__annotations__["x"] = placeholder
    made = flow.global_function()(job)
    _all_well(made)
    made_of_two = flow.global_function()(_job)
    _all_well(lambda value: made_of_two(value, 1))
    _all_well(lambda value: made_of_two([value, value]))
    _all_well(lambda value: made_of_two(x=value))
    _all_well(lambda value: made_of_two(self=value))
