"""Mistakes: each is a specific exception that names the job, what was expected and found, and the user's line."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import pydoc
import sys
import traceback
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import oneflow as flow
import oneflow.typing as tp
from oneflow import errors

X = np.ones((2, 3), np.float32)


def sgd(loss):
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)


def train_job():
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((2, 3)), y: tp.Numpy.Placeholder((2,), dtype=flow.int32)) -> tp.Numpy:
        logits = flow.layers.dense(x, 4, kernel_initializer=flow.truncated_normal(0.1))
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        sgd(loss)
        return loss

    return job


Y = np.zeros((2,), np.int32)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "text"),
    [
        ((X,), {}, errors.FeedError, "takes 2 arguments, 1 was given"),
        ((X, Y, Y), {}, errors.FeedError, "takes 2 arguments, 3 were given"),
        ((X,), {"z": Y}, errors.FeedError, r"(?s)there is no input 'z'.*call it as job\(x, y\)"),
        ((X, Y), {"y": Y}, errors.FeedError, "multiple values for argument 'y'"),
        ((X[:1], Y), {}, errors.FeedShapeError, r"input 'x' must have shape \(2, 3\), got \(1, 3\)"),
        ((X[0], Y), {}, errors.FeedShapeError, r"got \(3,\)"),
        (([[1.0, 2.0, 3.0], [4.0]], Y), {}, errors.FeedError, "got list: setting an array element with a sequence"),
        ((X, 3), {}, errors.FeedShapeError, r"input 'y' must have shape \(2,\), got \(\)"),
        ((X, "text"), {}, errors.FeedError, "must be an array or something that is made one, got str"),
        ((X, [object(), None]), {}, errors.FeedError, "got list"),
        ((np.ma.masked_array(X, X > 1), Y), {}, errors.FeedError, "got MaskedArray: a masked array has elements without"),
        ((X, np.zeros(2, np.float32)), {}, errors.FeedDtypeError, "input 'y' must be int32, got float32"),
        ((X, np.array([1, 2**40])), {}, errors.FeedDtypeError, "outside its range"),
        ((X.astype(complex), Y), {}, errors.FeedDtypeError, "got complex128"),
        ((X.astype(str), Y), {}, errors.FeedDtypeError, "input 'x' must be float32"),
        ((None, Y), {}, errors.FeedError, "got NoneType"),
    ],
)
def test_wrong_feeds_change_nothing(args, kwargs, error, text):
    job = train_job()
    job(X, Y)
    before = {k: v.numpy() for k, v in flow.get_all_variables().items()}
    with pytest.raises(error, match=text) as caught:
        job(*args, **kwargs)
    assert "job 'job'" in str(caught.value) and "test_errors.py:" in str(caught.value)
    after = {k: v.numpy() for k, v in flow.get_all_variables().items()}
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])
    job(X, Y)


def test_feeds_that_are_converted():
    flow.manual_seed(1)
    expected = train_job()(X, Y)
    flow.clear_default_session()
    got = train_job()(np.asfortranarray(np.ones((2, 6))[:, ::2]), np.zeros(2, np.int64))
    np.testing.assert_array_equal(got, expected)


def test_non_contiguous_feeds_have_their_logical_content():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((3, 4))) -> tp.Numpy:
        return x * 2

    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for x in (
        base[:, ::2].T,
        np.asfortranarray(base[:3, :4]),
        base[::-1][:3, :4],
        base[:3, :4].astype(">f4"),
        base[:3, :4].astype(float),
    ):
        np.testing.assert_array_equal(job(x), x * 2)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    hnp.arrays(
        dtype=st.one_of(
            hnp.floating_dtypes(),
            hnp.integer_dtypes(),
            hnp.complex_number_dtypes(),
            hnp.unicode_string_dtypes(),
            hnp.boolean_dtypes(),
        ),
        shape=hnp.array_shapes(min_dims=0, max_dims=4, max_side=4),
    )
)
def test_any_array_is_either_taken_or_refused_and_the_session_goes_on(array):
    global _JOB
    if not _JOB or _JOB[0]._session.closed:
        _JOB[:] = [flow.global_function()(_double)]
    (job,) = _JOB
    try:
        got = job(array)
    except errors.FeedError as error:
        assert "input 'x'" in str(error)
    else:
        assert array.shape == (2, 3)
        np.testing.assert_array_equal(got, array.astype(np.float32) * 2)
    np.testing.assert_array_equal(job(X), X * 2)


_JOB: list = []


def _double(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
    return x + x


def refused(body, error, *texts, train=False, call=(X,)):
    """The job is refused when it is built, in the one layout, and another job still works."""
    job = flow.global_function(type="train" if train else "predict")(body)

    @flow.global_function()
    def other(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x

    for _ in range(2):
        with pytest.raises(error) as caught:
            job(*call)
    for text in texts:
        assert text in str(caught.value), str(caught.value)
    np.testing.assert_array_equal(other(X), X)


def test_train_job_without_objective():
    def body(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.layers.dense(x, 2)

    refused(body, errors.TrainError, "train job 'body'", "minimize", train=True)


def test_predict_job_with_objective():
    def body(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        y = flow.layers.dense(x, 2)
        sgd(y)
        return y

    refused(body, errors.TrainError, "'body'", "test_errors.py:", 'type="train"')


def test_loss_without_variables():
    def body(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        sgd(x)
        return x

    refused(body, errors.GradientError, "depends on no trainable variable", train=True)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda x: bool(x), "truth of a Blob"),
        (lambda x: [i for i in x], "cannot be iterated"),
        (lambda x: len(x), "blob.shape[0]"),
        (lambda x: float(x), "float() of a Blob"),
        (lambda x: int(x), "int() of a Blob"),
        (lambda x: {x: 1}, "hashed"),
        (lambda x: np.sum(x), "NumPy's sum"),
        (lambda x: np.exp(x), "flow.math.exp"),
        (lambda x: np.asarray(x), "NumPy"),
        (lambda x: np.ones((2, 3)) + x, "feed the array"),
        (lambda x: 1 if x > 0 else 2, "flow.where"),
        (lambda x: x in [1], "truth of a Blob"),
        (lambda x: (x > 0) & (x < 1), "flow.math.logical_and(x, y)"),
        (lambda x: True | (x > 0), "flow.math.maximum(x, y)"),
        (lambda x: (x > 0) ^ (x < 1), "flow.math.not_equal(x, y)"),
        (lambda x: ~(x > 0), "flow.math.equal(x, 0)"),
        (lambda x: operator.setitem(x, 0, 1.0), "cannot be changed in place"),
        (lambda x: operator.setitem(x, slice(1), x), "flow.tensor_scatter_nd_update(blob, indices, updates)"),
        (lambda x: operator.delitem(x, 0), "flow.concat"),
    ],
)
def test_a_blob_is_not_a_number(use, text):
    def body(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        use(x)
        return x

    refused(body, errors.BlobUseError, text, "job 'body'", "test_errors.py:")


def test_unknown_attributes_can_be_probed():
    def body(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        assert not hasattr(x, "numpy") and not hasattr(x, "foo") and hasattr(x, "shape")
        return x

    np.testing.assert_array_equal(flow.global_function()(body)(X), X)
    assert not hasattr(flow.FunctionConfig(), "no_such") and not hasattr(flow, "no_such_name") and not hasattr(flow.nn, "nope")


def test_blob_of_another_job():
    kept = []

    @flow.global_function()
    def first(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        kept.append(x)
        return x

    first(X)

    def body(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x + kept[0]

    refused(body, errors.BlobScopeError, "belongs to job 'first'", "job 'body'")

    def returns(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return kept[0]

    refused(returns, errors.ReturnError, "another job")
    with pytest.raises(errors.ModeError, match="inside a job"):
        flow.math.relu(kept[0])
    with pytest.raises(errors.ModeError, match="inside a job"):
        kept[0] + 1


def test_dtypes_are_never_mixed():
    def body(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x + flow.cast(x, flow.int32)

    refused(body, errors.DtypeError, "float32", "int32", "flow.cast", "test_errors.py:")


def test_conflicting_variables_name_both_places():
    @flow.global_function()
    def first(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x * flow.get_variable("w", (2, 3), initializer=flow.ones_initializer())

    first(X)

    def body(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x * flow.get_variable("w", (1, 3), initializer=flow.ones_initializer())

    refused(body, errors.VariableConflictError, "'w'", "float32[1, 3]", "float32[2, 3]", "test_errors.py")

    def twice(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        a = flow.get_variable("v", (1,), initializer=flow.ones_initializer())
        return x * a * flow.get_variable("v", (1,), dtype=flow.float64, initializer=flow.ones_initializer())

    refused(twice, errors.VariableConflictError, "float64")
    np.testing.assert_array_equal(first(X), X)


def test_duplicate_names():
    def body(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.math.relu(flow.math.relu(x, name="same"), name="same")

    refused(body, errors.DuplicateNameError, "'same'", "the first")


@pytest.mark.parametrize(
    ("annotation", "returned", "text"),
    [
        (tp.Numpy, lambda x: (x,), "return annotation"),
        (tp.Numpy, lambda x: None, "return annotation"),
        (tp.Numpy, lambda x: 3.0, "return annotation"),
        (None, lambda x: x, "None"),
        (tp.Dict[str, tp.Numpy], lambda x: [x], "dict"),
        (tp.Tuple[tp.Numpy, tp.Numpy], lambda x: (x,), "1 v.s. 2"),
        (tp.List[tp.Numpy], lambda x: (x,), "list"),
    ],
)
def test_returns_must_match(annotation, returned, text):
    def body(x: tp.Numpy.Placeholder((2, 3))):
        return returned(x)

    body.__annotations__["return"] = annotation
    refused(body, errors.ReturnError, text, "body")


def test_a_broken_job_is_told_of_and_holds_nothing_up(tmp_path):
    @flow.global_function()
    def broken(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        raise ZeroDivisionError("mine")

    with pytest.warns(errors.JobWarning, match="job 'broken' cannot be built.*mine") as told:
        flow.train.CheckPoint().save(str(tmp_path / "a"))
    assert told[0].filename == __file__
    assert (tmp_path / "a" / "snapshot_done").exists() and flow.get_all_variables() == {}
    flow.train.CheckPoint().save(str(tmp_path / "b"))  # it has been told once
    assert "failed to build: ZeroDivisionError: mine" in repr(broken)
    with pytest.raises(ZeroDivisionError):
        broken(X)


def test_redefining_a_job_with_another_width():
    def declare(width):
        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            return flow.layers.dense(x, width, name="d")

        return job

    assert declare(4)(X).shape == (2, 4)
    assert declare(5)(X).shape == (2, 5)


@pytest.mark.parametrize("make", [copy.deepcopy, pickle.dumps])
def test_variables_are_neither_deep_copied_nor_pickled(make):
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.layers.dense(x, 2, name="only")

    job(X)
    handle = flow.get_all_variables()["only-bias"]
    told = r"(?s)variable 'only-bias' can be neither deep-copied nor pickled.*test_errors.py.*make\(handle\).*try +.*numpy"
    with pytest.raises(TypeError, match=told):
        make(handle)
    assert copy.copy(handle).name == "only-bias"


def test_a_callback_that_was_forgotten():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Callback[tp.Numpy]:
        return x

    with pytest.raises(flow.errors.ResultError, match=r"(?s)a call of job 'job' was given no callback.*try +job\(\.\.\.\)\(f\)"):
        job(X)()
    got = []
    job(X)(got.append)
    job(X)(callback=got.append)
    flow.sync_default_session()
    assert len(got) == 2


@pytest.mark.parametrize("make", [copy.deepcopy, pickle.dumps])
def test_jobs_are_neither_deep_copied_nor_pickled(make):
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x

    told = r"(?s)job 'job' can be neither deep-copied nor pickled.*test_errors.py.*make\(job\).*try +declare it there"
    with pytest.raises(TypeError, match=told):
        make(job)


def test_declaring_wrongly():
    def nested(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        @flow.global_function()
        def inner(y: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            return y

        return x

    with pytest.raises(errors.ArgumentError, match="parentheses"):

        @flow.global_function
        def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            return x

    with pytest.raises(errors.ArgumentError, match='"train" or "predict"'):
        flow.global_function(type="eval")
    with pytest.raises(errors.AnnotationError, match="'x'"):

        @flow.global_function()
        def unannotated(x):
            return x

    job = flow.global_function()(nested)
    with pytest.raises(errors.ArgumentError, match="(?s)'nested' is a job already.*try +declare two jobs"):
        flow.global_function("train")(job)
    with pytest.raises(
        errors.ArgumentError, match=r"flow.function needs parentheses.*\n.*\n  try        write @flow.function\(\)"
    ):
        flow.function(nested)
    with pytest.raises(errors.ArgumentError, match="(?s)in the place of the type, and 'train' besides.*try .*\"train\", config"):
        flow.global_function(flow.function_config(), "train")
    with pytest.raises(errors.ArgumentError, match=r"try        dtype=flow.float$"):
        tp.Numpy.Placeholder((2, 3), dtype="float")
    with pytest.raises(errors.AnnotationError, match="try        leave 'is_train' out: inputs are arrays") as caught:

        @flow.global_function()
        def with_a_flag(x: tp.Numpy.Placeholder((2, 3)), is_train: bool) -> tp.Numpy:
            return x

    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)] == ["test_declaring_wrongly"]
    assert caught.value.__context__ is None

    refused(nested, errors.ModeError, "inside the body")


def test_a_body_is_an_ordinary_function():
    async def coroutine(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x

    def generator(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        yield x

    async def both(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        yield x

    for body, kind, advice in (
        (coroutine, "an async function", r"await job.submit\(...\)"), (generator, "a generator function", "return the Blobs"),
        (both, "an async generator function", "return the Blobs"),
    ):  # fmt: skip
        line = body.__code__.co_firstlineno
        text = rf"(?s)'{body.__name__}' is {kind}, .*your line .*test_errors.py:{line}.*try .*{advice}"
        with pytest.raises(errors.ArgumentError, match=text):
            flow.global_function()(body)


def test_arrays_for_devices_that_the_job_does_not_have():
    @flow.global_function()
    def job(x: tp.ListNumpy.Placeholder((2, 3))) -> tp.ListNumpy:
        return x

    with pytest.raises(errors.FeedError, match=r"(?s)list of 1 element.*try .*gpu_device_num\(2\)"):
        job([X, X])
    assert len(job([X])) == 1


def test_a_number_for_an_input_of_one_element():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
        return x * 2.0

    with pytest.raises(errors.FeedShapeError, match=r"(?s)got \(\).*try +feed a list of one number: \[number\]"):
        job(3.0)
    assert job([3.0]) == 6


def test_tensor_methods_have_hints():
    def body(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        for name, hint in (("backward", "minimize"), ("item", "return the Blob"), ("to", "placement"), ("add_", "x = x [+] 1")):
            with pytest.raises(AttributeError, match=f"{name!r}: .*{hint}"):
                getattr(x, name)
        return x

    flow.global_function()(body)(X)


def test_sizes_that_are_given_one_by_one():
    def body(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.reshape(x, 3, 2)

    refused(body, errors.ArgumentError, "try        flow.reshape(x, (3, 2))", "got 3 and 2")

    def dynamic(x: tp.ListNumpy.Placeholder((2, 3))) -> tp.ListNumpy:
        return flow.reshape(x, 3, -1)

    with pytest.raises(errors.ArgumentError, match=r"flow.dynamic_reshape\(x, \(3, -1\)\)"):
        flow.global_function()(dynamic)([X])


def test_a_result_is_not_its_value():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))):
        return x

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for use, what in (
        (lambda r: r.mean(), "attribute 'mean'"), (lambda r: r["loss"], "elements"), (lambda r: print(*r), "elements"),
        (lambda r: r + 1, r"operator \+"), (lambda r: 2 * r, r"operator \*"), (lambda r: -r, "operator -"),
        (lambda r: r > 1, "operator >"), (lambda r: math.floor(r), r"float\(\)"), (lambda r: int(r), r"int\(\)"),
    ):  # fmt: skip
        with pytest.raises(
            TypeError, match=rf"(?s)the Result of a call of job 'job' has no {what}: .*try        its get\(\) waits"
        ):
            use(job(x))
    result = job(x)
    assert not hasattr(result, "mean") and result != x.size and copy.copy(result) is copy.deepcopy(result) is result
    np.testing.assert_array_equal(np.add(result, 1), x + 1)
    np.testing.assert_array_equal(np.ones((2, 3), np.float32) + result, x + 1)


def test_tracebacks_of_wrong_programs_show_the_users_frames() -> None:
    def square(x):
        return flow.matmul(x, x)

    @flow.global_function("predict")
    def wrong(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return square(x)

    @flow.global_function("predict")
    def right(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x

    def functions(call):
        with pytest.raises(flow.errors.OneFlowError) as caught:
            call()
        frames = traceback.extract_tb(caught.value.__traceback__)
        return [frame.name for frame in frames if frame.filename != __file__ or frame.name not in ("functions", "<lambda>")]

    data = np.zeros((4, 3), np.float32)
    assert functions(wrong.build) == ["wrong", "square"]
    assert functions(lambda: flow.Trainer().predict(wrong, data)) == ["wrong", "square"]
    assert functions(lambda: flow.Trainer(max_epochs=1).fit(wrong, data)) == []
    for job in (wrong, wrong.submit):
        for _ in range(2):
            assert functions(lambda: job(np.zeros((2, 3), np.float32))) == ["wrong", "square"]  # noqa: B023
    for _ in range(2):  # the second time, everything is compiled
        assert functions(lambda: right(np.zeros((2, 2), np.float32))) == []
        right(np.zeros((2, 3), np.float32))


def _own(x):
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("my own") from error


def _interrupted(x):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "raises, kind, text",
    [
        (lambda x: x.sum(), AttributeError, "a Blob has no attribute 'sum'"),
        (lambda x: flow.math.rellu(x), AttributeError, "no attribute 'rellu'"),
        (lambda x: flow.math.relu(x, inplace=True), TypeError, "unexpected keyword argument 'inplace'"),
        (lambda x: no_such_name, NameError, "no_such_name"),  # noqa: F821
        (lambda x: {}["missing"], KeyError, "missing"),
        (lambda x: f"{x:.2f}", TypeError, "format"),
        (lambda x: sys.exit(3), SystemExit, "3"),
        (lambda x: flow.reshape(x, 3), flow.errors.ArgumentError, "shape"),
        (_own, ValueError, "^my own$"),
        (_interrupted, KeyboardInterrupt, "^$"),
    ],
)
def test_tracebacks_of_whatever_a_body_raises_show_the_users_frames(raises, kind, text) -> None:
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return raises(x)

    for call in (lambda: job(X), lambda: job(X), lambda: job.submit(X), job.build, job.summary, job.plan, lambda: job.graph):
        with pytest.raises(kind, match=text) as caught:
            call()
        frames = traceback.extract_tb(caught.value.__traceback__)
        inner = [frame for frame in frames if frame.name != "<lambda>"][1:]
        assert {frame.filename for frame in frames} == {__file__}
        assert [frame.name for frame in inner] == ["job", raises.__name__][: 1 if raises.__name__ == "<lambda>" else 2]
        assert isinstance(caught.value.__context__, KeyError) == (raises is _own)
        assert isinstance(caught.value.__cause__, KeyError) == (raises is _own)


def test_tracebacks_show_the_librarys_frames_where_they_say_something(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(kind, job):
        with pytest.raises(kind) as caught:
            job(X)
        return {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)}

    def declared(body):
        @flow.global_function("predict")
        def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            return body(x)

        return job

    with monkeypatch.context() as patched:
        interrupt = KeyboardInterrupt()
        with pytest.raises(flow.errors.ModeError) as caught:
            flow.identity(None)
        interrupt.__cause__ = caught.value.with_traceback(caught.tb.tb_next)  # as JAX adds one, which begins in our code
        at_the_end = mock.Mock(side_effect=interrupt)
        patched.setattr(sys.modules["oneflow.job.function"], "warn_of_dead_layers", at_the_end)  # of compiling
        assert files(KeyboardInterrupt, declared(flow.identity)) == {__file__}
        assert interrupt.__cause__ is None
    result = declared(flow.identity).submit(X)
    for error in (KeyboardInterrupt(), flow.errors.ExecutionError("no memory")):
        result.delivery.convert = mock.Mock(side_effect=error)
        with pytest.raises(type(error)) as caught:
            result.result()
        assert {str(frame.path) for frame in caught.traceback} == {__file__}
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["oneflow.job.building"], "finish", None)  # a defect
        assert any(file.endswith("building.py") for file in files(TypeError, declared(flow.identity)))
    flow.config.log_level("debug")
    try:
        assert any(file.endswith("building.py") for file in files(KeyError, declared(lambda x: {}["missing"])))
    finally:
        flow.config.log_level("notice")


def test_tracebacks_of_callbacks_show_the_users_frames(capfd: pytest.CaptureFixture[str]) -> None:
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Callback[tp.Numpy]:
        return x

    def callback(value):
        {}["missing"]

    job(X)(callback)
    with pytest.raises(flow.errors.CallbackError):
        flow.sync_default_session()
    shown = capfd.readouterr().err
    assert "in callback\n" in shown and "result.py" not in shown and "KeyError: 'missing'" in shown


def test_help_and_dir_show_what_users_need() -> None:
    @flow.global_function("predict")
    def plain(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x

    @flow.global_function("predict")
    def told(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        """The same again."""
        return x

    text = pydoc.render_doc(plain, renderer=pydoc.plaintext)
    assert "predict job plain(x: Numpy.Placeholder((2, 3), float32)) -> oneflow.typing.Numpy" in text and "submit()" in text
    assert "The same again." in pydoc.render_doc(told, renderer=pydoc.plaintext)
    assert {"submit", "summary", "profile", "find_nonfinite", "throughput"} <= set(dir(plain))
    assert "invalidate" not in dir(plain)


def test_what_the_compiler_refuses_is_told_with_the_job() -> None:
    @flow.experimental.register_op("calls_nobody")
    def calls_nobody(x):
        return jax.ffi.ffi_call("nobody_has_it", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return calls_nobody(x)

    for _ in range(2):
        told = r"(?s)'job' cannot be compiled for its devices.*nobody_has_it.*the job"
        with pytest.raises(flow.errors.CompileError, match=told):
            job(np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (lambda x: flow.layers.dense(x, 4, activations=flow.nn.relu), "try        activation=..."),
        (lambda x: flow.math.reduce_mean(x, dim=1), "try        axis=..."),
        (lambda x: flow.optimizer.SGD(lr=0.1), "try        lr_scheduler=..."),
        (lambda x: flow.optimizer.Adam(0.1, weight_decay=0.1), "try        flow.optimizer.AdamW(..., weight_decay=...)"),
        (lambda x: flow.math.relu(x, nothing=3), "it takes   x, name"),
    ],
)
def test_unknown_keywords_are_explained(body, note):
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return body(x)

    for _ in range(2):
        with pytest.raises(TypeError, match="unexpected keyword argument") as caught:
            job(X)
        if "Did you mean" not in str(caught.value):  # as Python 3.13 and newer say themselves
            assert caught.value.__notes__ == [f"  {note}"]


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (lambda x: flow.reshape(x, 3, 2, 1), "flow.reshape(x, shape, name=None)"),
        (lambda x: flow.math.reduce_sum(), "flow.math.reduce_sum(input_tensor, axis=None, keepdims=False, name=None)"),
        (lambda x: flow.optimizer.CosineScheduler(0.1), "flow.optimizer.CosineScheduler(base_lr, steps, alpha=0.0, warmup=None)"),
    ],
)
def test_too_few_and_too_many_arguments_are_explained(body, note):
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return body(x)

    with pytest.raises(TypeError, match=r"missing|takes") as caught:
        job(X)
    assert caught.value.__notes__ == [f"  its form   {note}"]


@pytest.mark.parametrize(
    ("body", "meant"),
    [
        (jnp.sin, "flow.math.sin(...), or "),
        (lambda x: jnp.stack([x, x]), "flow.stack(...), or "),
        (jax.nn.relu, ""),  # an error of what it calls
        pytest.param(lambda x: pytest.importorskip("torch").sigmoid(x), "flow.math.sigmoid(...), or ", id="torch"),
    ],
)
def test_functions_of_other_libraries_name_the_op_that_takes_a_blob(body, meant):
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return body(x)

    for _ in range(2):
        with pytest.raises(TypeError) as caught:
            job(X)
        why, tried = caught.value.__notes__[-2:]
        assert why.split() == "why a Blob has no value while the job is described: only ops of flow take it".split()
        assert tried == f"  try        {meant}flow.experimental.register_op for an op that is written in JAX"


def softmax(x):
    return x


def test_a_programs_own_function_of_that_name_is_pythons():
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return softmax(x, axis=1)

    with pytest.raises(TypeError, match="unexpected keyword") as caught:
        job(X)
    assert not hasattr(caught.value, "__notes__")


def test_keywords_of_other_functions_are_pythons():
    def other():
        pass

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return other(x=x)

    with pytest.raises(TypeError) as caught:
        job(X)
    assert not hasattr(caught.value, "__notes__")


def test_several_results_in_the_place_of_one():
    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.math.relu(flow.nn.moments(x, [0]))

    with pytest.raises(errors.ArgumentError, match=r"(?s)must be a Blob, got (tuple|list).*try +give one of its elements"):
        job(X)


class _Stopping(flow.callbacks.EarlyStopping):
    """A program's own."""


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        (lambda: flow.optimizer.PiecewiseConstantScheduler([1, 2], [0.1]), flow.errors.ArgumentError, "one value more"),
        (lambda: flow.callbacks.EarlyStopping("loss", patience=-1), flow.errors.ArgumentError, "patience must be an int >= 0"),
        (lambda: flow.Trainer(max_epochs=-4), flow.errors.ArgumentError, "max_epochs"),
        (lambda: flow.FixedTensorDef((2, -3)), flow.errors.ArgumentError, r"shape\[1\] must be"),
        (lambda: tp.Numpy.Placeholder((2, "a")), flow.errors.ArgumentError, r"shape\[1\] must be"),
        (lambda: flow.regularizers.l2(-1), flow.errors.ArgumentError, "l must be a number >= 0"),
        (lambda: flow.random_normal_initializer("1"), flow.errors.ArgumentError, "mean must be"),
        (lambda: flow.FunctionConfig().default_data_type(3), flow.errors.ArgumentError, "takes a flow dtype"),
        (lambda: flow.FunctionConfig().train.primry_lr(0.1), flow.errors.ConfigError, "close      train.primary_lr"),
        (lambda: flow.config.gpu_device_num("a"), flow.errors.ArgumentError, "takes int"),
        (lambda: flow.export.load(3), flow.errors.ArgumentError, "path"),
        (lambda: flow.quantization.calibrate(3, []), flow.errors.ArgumentError, "needs a job function"),
        (lambda: flow.optimizer.Adagrad(0.1), AttributeError, "has no attribute 'Adagrad'$"),
    ],
)
def test_errors_outside_of_jobs_show_the_users_frames(wrong, kind, text):
    with pytest.raises(kind, match=text) as caught:
        wrong()
    assert {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)} == {__file__}


@pytest.mark.parametrize(
    ("wrong", "text", "note"),
    [
        (lambda: flow.callbacks.EarlyStopping("loss", patients=3), "EarlyStopping.__init__", "try        patience=..."),
        (lambda: _Stopping("loss", patients=3), "_Stopping.__init__", "try        patience=..."),
        (lambda: flow.FixedTensorDef((2, 3), dtypee=flow.float), "FixedTensorDef.__init__", "try        dtype=..."),
        (lambda: flow.optimizer.warmup.constant(5), "missing", "its form   flow.optimizer.warmup.constant(steps, multiplier)"),
        (lambda: flow.FunctionConfig(1), "takes 1 positional", "its form   flow.FunctionConfig()"),
        (lambda: tp.Numpy.Placeholder((2, 3), dtyp=flow.float), "Placeholder", "try        dtype=..."),
    ],
)
def test_wrong_arguments_outside_of_jobs_are_explained(wrong, text, note):
    with pytest.raises(TypeError, match=text) as caught:
        wrong()
    assert {frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)} == {__file__}
    if "Did you mean" not in str(caught.value):
        assert caught.value.__notes__ == [f"  {note}"]


def test_a_defect_of_a_constructor_shows_where(monkeypatch):
    monkeypatch.setattr(sys.modules["oneflow.callbacks.early_stopping"], "check", None)
    with pytest.raises(AttributeError, match="NoneType") as caught:
        flow.callbacks.EarlyStopping("loss")
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename.endswith("early_stopping.py")
