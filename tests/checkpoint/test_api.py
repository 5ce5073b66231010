"""The public functions, against a session that is a dictionary."""

from __future__ import annotations

import os
import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from oneflow._base.dist import parse_placement
from oneflow._base.dtype import float32, int8, int64
from oneflow._base.source import caller
from oneflow.checkpoint import api, get, save
from oneflow.checkpoint.api import UnknownVariableError
from oneflow.checkpoint.format import FileValue
from oneflow.checkpoint.layout import EXTRA
from oneflow.checkpoint.manager import SimpleCheckPointManager
from oneflow.checkpoint.program import CheckPoint
from oneflow.compiler.layout import Layout, Storage
from oneflow.errors import (
    ArgumentError,
    CheckpointError,
    CheckpointExistsError,
    CheckpointNotFoundError,
    CheckpointWarning,
    DtypeError,
    ModeError,
    OneFlowError,
    ShapeError,
)
from oneflow.graph.graph import Variable
from oneflow.runtime.pieces import Piece


class Zeros:
    def draw(self, shape, dtype, rng):
        return np.zeros(shape, dtype)


class FakeSession:
    """The part of a session that checkpoints use."""

    def __init__(self, **values: np.ndarray):
        self.values = values
        self.random = {"seed": 1, "calls": {}}
        self.log: list[str] = []
        self.state = {"System-Train-TrainStep-job", "w-momentum"}

    def variables(self) -> dict[str, Variable]:
        dtypes = {"float32": float32, "int64": int64, "int8": int8}
        return {
            name: Variable(
                name, v.shape, dtypes[v.dtype.name], Zeros(), caller(), role="state" if name in self.state else "parameter"
            )
            for name, v in self.values.items()
        }

    def storage_of(self, name: str) -> Storage:
        return Storage(Layout.whole(parse_placement("cpu", "0:0")), self.values[name].shape)

    def read(self, names=None):
        self.log.append("read")
        return {name: self.values[name].copy() for name in (self.values if names is None else names)}

    def warn_of_broken_jobs(self) -> None:
        pass

    def broken_jobs(self) -> dict[str, str]:
        return {}

    def start(self) -> None:
        """All jobs are traced."""

    def capture(self, names=None, *, whole=False):
        values, random = self.read(names), dict(self.random)
        pieces = {name: [Piece((0,) * v.ndim, v.shape, v)] for name, v in values.items()}
        return SimpleNamespace(pieces=pieces, random_state=lambda: random)

    def exchange(self, values, random_state=None):
        self.log.append("exchange")
        self.values.update(values)
        if random_state is not None:
            self.check_random_state(random_state)
            self.random = dict(random_state)

    def sync(self) -> None:
        self.log.append("sync")

    def check_random_state(self, state) -> None:
        if not isinstance(state, dict) or not isinstance(state.get("seed"), int):
            raise ArgumentError("not a random state")


def sample(scale: float = 1) -> dict[str, np.ndarray]:
    return {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3) * np.float32(scale),
        "w-momentum": np.full((2, 3), scale, np.float32),
        "System-Train-TrainStep-job": np.array([int(scale)]),
    }


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> FakeSession:
    return use(monkeypatch, FakeSession(**sample()))


def use(monkeypatch: pytest.MonkeyPatch, session: FakeSession) -> FakeSession:
    monkeypatch.setattr("oneflow.checkpoint.session.default_session", lambda: session)
    return session


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


# --- CheckPoint


def test_save_and_load(session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session.random = {"seed": 2**62, "calls": {"job": 3}}
    check_point = CheckPoint()
    check_point.init()
    check_point.save(str(tmp_path / "m"))
    fresh = use(monkeypatch, FakeSession(**sample(0)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CheckPoint().load(tmp_path / "m")
    assert same(fresh.values, sample()) and fresh.random == session.random and fresh.log == ["exchange"]


def test_nothing_is_printed(session: FakeSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    CheckPoint().init()
    CheckPoint().save(tmp_path / "m")
    CheckPoint().load(tmp_path / "m")
    assert capfd.readouterr() == ("", "")


def test_a_taken_target_is_refused_before_anything_is_read(session: FakeSession, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(CheckpointExistsError, match=f"remove '{tmp_path}' first, or choose another path"):
        CheckPoint().save(tmp_path)
    assert session.log == []


def test_missing_variables_give_one_warning_at_the_users_line(
    session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "m")
    new = use(monkeypatch, FakeSession(**{**sample(0), "head": np.full(2, 5, np.int8)}))
    for name in ("System-Train-TrainStep-job", "w-momentum"):
        for file in (tmp_path / "m" / name).iterdir():
            file.unlink()
    with pytest.warns(CheckpointWarning) as caught:
        CheckPoint().load(tmp_path / "m")
    assert len(caught) == 1 and caught[0].filename == __file__
    assert str(caught[0].message) == (
        f"checkpoint '{tmp_path}/m' lacks 3 of the program's 4 variables: 1 parameter(s): head; optimizer state and counters, "
        "so that training starts again: w-momentum, System-Train-TrainStep-job; they keep the values they have"
    )
    assert same(new.values, {**sample(0), "w": sample()["w"], "head": np.full(2, 5, np.int8)})


def test_a_checkpoint_of_another_network_is_refused(
    session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "m")
    new = use(monkeypatch, FakeSession(head=np.full(2, 5, np.int8), b=np.zeros(2, np.float32)))
    rule = r"(?s)has none of the program's 2 parameters.*it has .*it needs +head, b.*rename="
    for load in (CheckPoint().load, api.load_variables):
        with pytest.raises(CheckpointError, match=rule):
            load(tmp_path / "m")
    assert (new.values["head"] == 5).all()


def test_strict_makes_missing_variables_an_error(session: FakeSession, tmp_path: Path) -> None:
    save(tmp_path / "m")
    session.values["head"] = np.zeros(2, np.int8)
    before = {k: v.copy() for k, v in session.values.items()}
    with pytest.raises(CheckpointError, match="lacks 1 of the program's 4 variables: 1 parameter.* head"):
        CheckPoint().load(tmp_path / "m", strict=True)
    assert same(session.values, before) and "write" not in session.log


def test_extra_ones_are_ignored_even_when_damaged(session: FakeSession, tmp_path: Path) -> None:
    save(tmp_path / "m")
    for name in ("other", "broken"):
        (tmp_path / "m" / name).mkdir()
        (tmp_path / "m" / name / "out").write_bytes(b"12")
    (tmp_path / "m/broken/meta").write_text("no meta")
    with pytest.warns(CheckpointWarning, match=r"CheckPoint.load was given 2 name\(s\) .*: 'broken', 'other'"):
        CheckPoint().load(tmp_path / "m")
    assert "other" not in session.values
    with pytest.raises(UnknownVariableError, match="'broken' is not a variable name"):
        CheckPoint().load(tmp_path / "m", strict=True)


def test_a_program_without_variables_is_told_so(tmp_path: Path, session: FakeSession) -> None:
    save(tmp_path / "m")
    session.values.clear()
    with pytest.warns(CheckpointWarning, match="no variables yet; declare its jobs before loading"):
        CheckPoint().load(tmp_path / "m")


def test_one_of_oneflows_first_checkpoints(session: FakeSession, tmp_path: Path) -> None:
    """Neither meta, nor JSON, nor snapshot_done: sizes are all there is to check."""
    for name, value in sample(3).items():
        (tmp_path / "m" / name).mkdir(parents=True)
        (tmp_path / "m" / name / "out").write_bytes(value.tobytes())
    CheckPoint().load(tmp_path / "m", strict=True)
    assert same(session.values, sample(3)) and session.random == {"seed": 1, "calls": {}}
    (tmp_path / "m/w/out").write_bytes(bytes(23))
    with pytest.raises(CheckpointError, match="truncated") as caught:
        CheckPoint().load(tmp_path / "m")
    assert "24 bytes, for float32[2, 3] (the program declares)" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "array", "what", "found"),
    [
        ("w", np.zeros((3, 2), np.float32), "another shape", "float32[3, 2]"),
        ("w", np.zeros((2, 3), np.float64), "another dtype", "float64[2, 3]"),
        ("System-Train-TrainStep-job", np.zeros(1, np.int32), "another dtype", "int32[1]"),
    ],
)
def test_misfits(session: FakeSession, tmp_path: Path, name: str, array: np.ndarray, what: str, found: str) -> None:
    save(tmp_path / "m", {**sample(2), name: array})
    with pytest.raises(CheckpointError, match=what) as caught:
        CheckPoint().load(tmp_path / "m")
    text = str(caught.value)
    assert f"variable {name!r}" in text and f"{found}, in {tmp_path}/m/{name}/out" in text
    assert f"expected   {session.variables()[name].describe()}, declared at" in text and "test_api.py" in text
    assert same(session.values, sample()) and "write" not in session.log


def test_every_wrong_variable_is_named(session: FakeSession, tmp_path: Path) -> None:
    save(tmp_path / "m", {"w": np.zeros(1, np.float32), "w-momentum": np.zeros(2, np.float32)})
    (tmp_path / "m/System-Train-TrainStep-job").mkdir()
    (tmp_path / "m/System-Train-TrainStep-job/meta").write_text("shape { dim: 1 } data_type: kInt64")
    with pytest.raises(CheckpointError, match="variable 'w' has another shape") as caught:
        CheckPoint().load(tmp_path / "m")
    assert "also wrong w-momentum, System-Train-TrainStep-job" in str(caught.value)
    assert same(session.values, sample())


def test_damage_loads_nothing(session: FakeSession, tmp_path: Path) -> None:
    save(tmp_path / "m", sample(2))
    (tmp_path / "m/w-momentum/out").write_bytes(bytes(20))
    with pytest.raises(CheckpointError, match="truncated"):
        CheckPoint().load(tmp_path / "m")
    assert same(session.values, sample())


def test_other_bytes_are_told_as_the_users_own_line_has_met_them(session: FakeSession, tmp_path: Path) -> None:
    save(tmp_path / "m", sample(2))
    file = tmp_path / "m/w-momentum/out"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(CheckpointError, match="are not those that were saved") as caught:
        CheckPoint().load(tmp_path / "m")
    assert "your line" in str(caught.value) and "test_api.py" in str(caught.value)
    assert caught.value.__context__ is None  # no error of the library's own in front of it
    assert same(session.values, sample())


@pytest.mark.parametrize("text", ['{"format": 1, "random": {"seed": "x"}}', '{"format": 1, "random": [1]}', "{"])
def test_damaged_json_loads_nothing(session: FakeSession, tmp_path: Path, text: str) -> None:
    save(tmp_path / "m", sample(2))
    (tmp_path / "m" / EXTRA).write_text(text)
    with pytest.raises(CheckpointError, match=EXTRA) as caught:
        CheckPoint().load(tmp_path / "m")
    assert f"remove {EXTRA} to load the variables alone" in str(caught.value)
    assert same(session.values, sample()) and session.random["seed"] == 1


def test_no_checkpoint_there(session: FakeSession, tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="does not exist"):
        CheckPoint().load(tmp_path / "missing")
    save(tmp_path / "m")
    with pytest.raises(CheckpointNotFoundError, match="directory of one variable") as caught:
        CheckPoint().load(tmp_path / "m/w")
    assert f"load '{tmp_path}/m'" in str(caught.value)


def test_errors_show_the_users_frames_alone(session: FakeSession, tmp_path: Path) -> None:
    save(tmp_path / "m", sample(2))
    file = tmp_path / "m/w-momentum/out"
    stored = get(tmp_path / "m")
    file.write_bytes(bytes(file.stat().st_size))
    for wrong in (
        lambda: get(tmp_path / "other"), lambda: api.load_variables(stored), stored["w-momentum"].numpy,
        lambda: CheckPoint().load(tmp_path / "m"), lambda: CheckPoint().save(tmp_path / "m"),
    ):  # fmt: skip
        try:
            raise ValueError("the program handles it")
        except ValueError as handled:
            with pytest.raises(OneFlowError) as caught:
                wrong()
            assert caught.value.__context__ is handled
        frames = [os.path.basename(entry.path) for entry in caught.traceback]
        assert set(frames) <= {"test_api.py", "frames.py"}, frames  # the decorator's own is there while pytest looks at it


def test_relative_paths(session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CheckPoint().save("./lenet_models_1")
    session.values["w"][:] = 0
    CheckPoint().load("./lenet_models_1")
    assert same(session.values, sample())


@pytest.mark.parametrize("path", ["m", "m/w", "m.safetensors"])
def test_values_are_read_after_the_program_has_changed_its_directory(
    session: FakeSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if path.endswith("safetensors"):
        pytest.importorskip("safetensors")
    save(path.partition("/")[0], sample(), format="safetensors" if "." in path else "oneflow")
    found = get(path)
    found = found if "/" in path else found["w"]
    monkeypatch.chdir("/")
    assert same({"w": found.numpy()}, {"w": sample()["w"]})


def test_a_variable_whose_name_leads_elsewhere(session: FakeSession, tmp_path: Path) -> None:
    save(tmp_path / "m")
    (tmp_path / "out").write_bytes(bytes(4))
    session.values["../"] = np.ones(1, np.float32)
    with pytest.warns(CheckpointWarning, match="lacks 1"):
        CheckPoint().load(tmp_path / "m")
    assert session.values["../"] == 1
    with pytest.raises(CheckpointError, match="cannot be saved"):
        save(tmp_path / "m2")
    assert not (tmp_path / "m2").exists()


# --- handles


def test_get_all_variables(session: FakeSession) -> None:
    handles = api.get_all_variables()
    assert session.log == ["sync"] and set(handles) == set(sample())
    handle = handles["w"]
    assert (handle.name, handle.shape, handle.dtype) == ("w", (2, 3), float32)
    assert not handle.is_dynamic and not handle.is_tensor_list and handle.batch_axis < 0
    assert handle.parallel_conf.parallel_num == handle.numpy_size() == handle.numpy_list_size() == 1
    np.testing.assert_array_equal(handle.numpy(), sample()["w"])
    np.testing.assert_array_equal(handle.numpy(0), sample()["w"])
    np.testing.assert_array_equal(handle.numpy_list()[0], sample()["w"])
    handle.numpy()[:] = 9  # a copy
    session.values["w"] = sample(4)["w"]
    np.testing.assert_array_equal(handle.numpy(), sample(4)["w"])  # the current value
    assert "'w' float32[2, 3]" in repr(handle)
    for rank in (1, -1, "0", True):
        with pytest.raises(ArgumentError, match="no part of rank"):
            handle.numpy(rank)


def test_interface_values(session: FakeSession) -> None:
    api.set_interface_blob_value("w", sample(3)["w"])
    np.testing.assert_array_equal(api.get_interface_blob_value("w"), sample(3)["w"])
    with pytest.raises(UnknownVariableError, match="'w-momentun' is not a variable name") as caught:
        api.get_interface_blob_value("w-momentun")
    assert "did you mean 'w-momentum'" in str(caught.value) and isinstance(caught.value, RuntimeError)


# --- load_variables


def test_load_variables_takes_arrays_handles_and_file_values(session: FakeSession, tmp_path: Path) -> None:
    save(tmp_path / "m", sample(5))
    handle = api.get_all_variables()["w-momentum"]
    api.load_variables(
        {"w": sample(7)["w"], "w-momentum": handle, "System-Train-TrainStep-job": get(tmp_path / "m/System-Train-TrainStep-job")}
    )
    expected = {**sample(), "w": sample(7)["w"], "System-Train-TrainStep-job": np.array([5])}
    assert same(session.values, expected)
    save(tmp_path / "all")
    session.values.update(sample(0))
    session.random = {"seed": 9, "calls": {}}
    values = get(str(tmp_path / "all"))
    api.load_variables(values)
    assert same(session.values, expected) and session.random["seed"] == 1
    session.random = {"seed": 9, "calls": {}}
    api.load_variables(dict(values))  # values alone, however they were come by
    assert session.random["seed"] == 9


def test_load_variables_and_names_that_are_none(session: FakeSession) -> None:
    with pytest.warns(CheckpointWarning, match=r"1 name\(s\) that no variable of the program has: 'x'") as told:
        api.load_variables({"x": np.zeros(3)})
    assert told[0].filename == __file__
    with pytest.raises(RuntimeError, match="'x' is not a variable name"):
        api.load_variables({"w": sample(2)["w"], "x": np.zeros(3)}, ignore_mismatch=False)
    assert same(session.values, sample())


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (np.zeros((3, 2), np.float32), ShapeError, "found      shape (3, 2)"),
        (np.zeros((2, 3, 1), np.float32), ShapeError, "found      shape (2, 3, 1)"),
        (np.zeros((2, 3)), DtypeError, "astype(np.float32)"),
        (np.zeros((2, 3), ">f4"), DtypeError, "found      dtype >f4"),
        ([[0.0] * 3] * 2, ArgumentError, "cannot be given a list"),
        (3, ArgumentError, "cannot be given a int"),
    ],
)
def test_load_variables_all_or_none(session: FakeSession, value, error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        api.load_variables({"w-momentum": np.zeros((2, 3), np.float32), "w": value})
    assert says in str(caught.value) and "variable 'w'" in str(caught.value) and isinstance(caught.value, AssertionError)
    assert same(session.values, sample())


def test_load_variables_needs_a_dict(session: FakeSession, tmp_path: Path) -> None:
    save(tmp_path / "m")
    for value in (None, [("w", 1)], get(tmp_path / "m/w")):
        with pytest.raises(ArgumentError, match="needs a dict"):
            api.load_variables(value)


def test_int8_is_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    session = use(monkeypatch, FakeSession(c=np.zeros(2, np.int8)))
    api.load_variables({"c": np.array([1, -1], np.int8)})
    assert session.values["c"].tolist() == [1, -1]


def test_file_value_without_meta(session: FakeSession, tmp_path: Path) -> None:
    save(tmp_path / "m", sample(5))
    (tmp_path / "m/w/meta").unlink()
    api.load_variables({"w": get(tmp_path / "m/w")})
    np.testing.assert_array_equal(session.values["w"], sample(5)["w"])


# --- save with values, get, flow.save and flow.load


def test_save_takes_handles_file_values_and_arrays(session: FakeSession, tmp_path: Path) -> None:
    save(tmp_path / "a", {"x": np.ones(2, np.int32)})
    save(tmp_path / "b", {"w": api.get_all_variables()["w"], "x": get(tmp_path / "a/x"), "y": np.zeros(1, np.float16)})
    values = get(tmp_path / "b")
    assert isinstance(values, dict) and list(values) == ["w", "x", "y"]
    np.testing.assert_array_equal(values["w"].numpy(), sample()["w"])
    np.testing.assert_array_equal(values["x"].numpy(), [1, 1])
    for wrong in ([1], 3, None, "x"):
        with pytest.raises(ArgumentError, match=r"var_dict\['v'\] cannot be saved"):
            save(tmp_path / "c", {"v": wrong})
    with pytest.raises(ArgumentError, match="must be a dict"):
        save(tmp_path / "c", [np.ones(2)])  # type: ignore[arg-type]
    assert not (tmp_path / "c").exists()


def test_flow_save_and_load(session: FakeSession, tmp_path: Path) -> None:
    api.save_dict(api.get_all_variables(), tmp_path / "m")
    session.values.update(sample(0))
    api.load_variables(get(tmp_path / "m"))
    assert same(session.values, sample())


def test_get_one_value(session: FakeSession, tmp_path: Path) -> None:
    save(tmp_path / "m")
    value = get(tmp_path / "m/w")
    assert isinstance(value, FileValue) and value.name == "w" and value.shape == (2, 3)
    (tmp_path / "m/only-meta").mkdir()
    (tmp_path / "m/only-meta/meta").write_text("shape { dim: 1 } data_type: kFloat")
    values = get(tmp_path / "m")
    assert isinstance(values, dict) and set(values) == set(sample())  # as OneFlow: without `out` it is not a value


def test_inside_a_job(session: FakeSession, tmp_path: Path) -> None:
    from oneflow._base.dist import parse_placement
    from oneflow.graph.graph import Graph, tracing
    from oneflow.graph.node import Scope

    with tracing(Graph("job", train=False, scope=Scope(parse_placement("cpu", "0:0")))):
        for use_it in (
            lambda: save(tmp_path / "m"), CheckPoint().init, api.get_all_variables, lambda: api.load_variables({}),
            lambda: api.get_interface_blob_value("w"),
        ):  # fmt: skip
            with pytest.raises(ModeError, match="inside a job"):
                use_it()


# --- SimpleCheckPointManager


def test_manager(session: FakeSession, tmp_path: Path) -> None:
    manager = SimpleCheckPointManager(str(tmp_path / "a/b"))
    assert manager.list_checkpoints() == [] and manager.latest_checkpoint() is None
    manager.initialize_or_restore()
    manager.save()
    names = manager.list_checkpoints()
    assert len(names) == 2 and names == sorted(names) and manager.latest_checkpoint() == names[-1]
    assert all(len(n) == len("snapshot_20200101_000000_000000") for n in names)
    session.values.update(sample(0))
    SimpleCheckPointManager(tmp_path / "a/b").initialize_or_restore()
    assert same(session.values, sample())


@pytest.mark.parametrize("prefix", ["snapshot_", "", "."])
def test_manager_counts_finished_checkpoints_only(session: FakeSession, tmp_path: Path, prefix: str) -> None:
    manager = SimpleCheckPointManager(tmp_path, prefix)
    manager.save()
    finished = manager.list_checkpoints()
    for name in (f"{prefix}9_unfinished", ".oneflow-saving-snapshot_9-0123"):
        (tmp_path / name).mkdir()
    (tmp_path / ".oneflow-saving-snapshot_9-0123/snapshot_done").write_text("")  # killed in front of the rename
    (tmp_path / "other").mkdir()
    (tmp_path / f"{prefix}file").write_text("")
    assert manager.list_checkpoints() == finished and len(finished) == 1


def test_manager_needs_a_directory(session: FakeSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointExistsError, match="is a file"):
        SimpleCheckPointManager(tmp_path / "file")
    with pytest.raises(ArgumentError, match="prefix"):
        SimpleCheckPointManager(tmp_path, "../x")
    assert os.listdir(tmp_path) == ["file"]


def test_a_disk_that_refuses_is_told_without_the_librarys_frames(tmp_path, monkeypatch):
    def refuses(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("oneflow.checkpoint.atomic._write_file", refuses)
    with pytest.raises(CheckpointError, match="No space left on device; nothing was changed") as caught:
        save(tmp_path / "c", {"w": np.ones(2)})
    told = "".join(traceback.format_exception(caught.value))
    assert "OSError: [Errno 28] No space left on device" in told and "atomic.py" not in told
