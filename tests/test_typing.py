"""Annotations, tensor definitions and return structures, without a session."""

from __future__ import annotations

import inspect
import re
import typing
from collections import namedtuple
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oneflow.typing as tp
from oneflow._base import dtype as flow
from oneflow._base.dist import parse_placement
from oneflow._base.source import caller
from oneflow._signature import map_structure, match_return, parse_parameters, parse_return, require_annotations
from oneflow.errors import AnnotationError, ArgumentError, ReturnError
from oneflow.graph.graph import Graph, tracing
from oneflow.graph.node import Blob, Scope
from oneflow.typing import FixedTensorDef, MirroredTensorDef, MirroredTensorListDef

SHAPES = (8, 3)


@pytest.fixture
def blobs() -> Iterator[list[Blob]]:
    graph = Graph("train_job", train=False, scope=Scope(parse_placement("cpu", "0:0")))
    with tracing(graph):
        made = [graph.add_input(f"x{i}", (2, 3), flow.float32, "Numpy", 0, caller()) for i in range(4)]
        made.append(graph.add_input("dynamic", (2, 3), flow.float32, "ListNumpy", 0, caller()))
        made.append(graph.add_input("ragged", (2, 3), flow.float32, "ListListNumpy", 0, caller()))
    yield made


# --- placeholders and definitions


def test_placeholder_says_what_it_is() -> None:
    images = tp.Numpy.Placeholder((np.int64(8), 3), dtype=flow.int32, batch_axis=-1, name="ignored")
    assert (images.shape, images.dtype, images.batch_axis) == ((8, 3), flow.int32, 1)
    assert type(images.shape[0]) is int
    assert "Numpy.Placeholder((8, 3), int32" in repr(images)
    assert tp.Numpy.Placeholder([2]).dtype == flow.float32
    assert tp.Numpy.Placeholder((2,), batch_axis=None).batch_axis is None


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: tp.Numpy.Placeholder(8), "shape should be a tuple of ints, got 8"),
        (lambda: tp.Numpy.Placeholder(2, 3), r"got 2\n(.*\n)*  try        Numpy.Placeholder\(\(2, 3\)\)"),
        (lambda: tp.Numpy.Placeholder(()), "shape needs at least one axis"),
        (lambda: tp.Numpy.Placeholder((2, 0)), r"shape\[1\] must be an int > 0, got 0"),
        (lambda: tp.ListNumpy.Placeholder((2.0,)), r"shape\[0\] must be an int > 0, got 2.0"),
        (lambda: tp.Numpy.Placeholder((True,)), r"shape\[0\] must be an int > 0, got True"),
        (lambda: tp.Numpy.Placeholder((2,), np.float64), r"dtype=flow.float64"),
        (lambda: tp.Numpy.Placeholder((2,), "nonsense"), r"dtype must be a dtype of oneflow, got 'nonsense'"),
        (lambda: tp.Numpy.Placeholder((2,), flow.record), "cannot be fed"),
        (lambda: tp.Numpy.Placeholder((2,), batch_axis=1), r"batch_axis=1 is outside \[-1, 1\)"),
        (lambda: tp.Numpy.Placeholder((2,), batch_axis="x"), "batch_axis must be an int or None"),
        (lambda: tp.ListNumpy.Placeholder((2,), batch_axis=None), "batch_axis must be an int for inputs of a List kind"),
        (lambda: FixedTensorDef((2,), flow.float32, 4), "flow.FixedTensorDef: batch_axis=4"),
    ],
)
def test_placeholder_refuses(make: typing.Callable[[], object], text: str) -> None:
    with pytest.raises(ArgumentError, match=text) as error:
        make()
    assert "test_typing.py" in str(error.value)


def test_definitions_have_the_attributes_of_old() -> None:
    fixed = FixedTensorDef((100, 1, 28, 28), flow.float, name="images")
    assert (fixed.shape, fixed.dtype, fixed.batch_axis, fixed.is_dynamic, fixed.is_tensor_list) == (
        (100, 1, 28, 28), flow.float32, 0, False, False)  # fmt: skip
    assert fixed.logical_blob_name == "images/out"
    assert MirroredTensorDef((3,)).is_dynamic and not MirroredTensorDef((3,)).is_tensor_list
    assert MirroredTensorListDef((3,)).is_tensor_list
    assert FixedTensorDef((2,), flow.float32, 0, "same_with_batch_axis", "x").op_name  # the oldest order: split_axis, name
    assert FixedTensorDef((2,), flow.int32, "labels").op_name == "labels"  # v0.4: the name comes third


# --- parameters


def test_annotated_parameters_in_nested_tuples() -> None:
    image, label = tp.Numpy.Placeholder((8, 3)), tp.ListNumpy.Placeholder((8,), flow.int32)

    def job(x: tp.Numpy.Placeholder(SHAPES), pair: typing.Tuple[image, typing.Tuple[label, image]], other: tuple[image]): ...  # type: ignore # noqa: UP006

    x, pair, other = parse_parameters(job)
    assert x.structure.shape == SHAPES and x.structure.kind == "Numpy"
    assert [name for name, _ in pair.leaves()] == ["pair[0]", "pair[1][0]", "pair[1][1]"]
    assert [leaf.kind for _, leaf in pair.leaves()] == ["Numpy", "ListNumpy", "Numpy"]
    assert isinstance(other.structure, tuple) and other.structure[0].source.file == __file__


def test_annotated_types_define_the_inputs_that_their_placeholders_say() -> None:
    images = tp.Numpy.Placeholder((2, 3), dtype=flow.int32)

    def job(
        a: typing.Annotated[tp.Numpy, images],
        b: typing.Tuple[typing.Annotated[tp.Numpy, "pixels", images], tp.ListNumpy.Placeholder((4,))],  # noqa: UP006
        c: typing.Annotated[np.ndarray, FixedTensorDef((5,))],
        d: typing.Annotated[images, "a remark"],
    ): ...

    a, b, c, d = (parameter.structure for parameter in parse_parameters(job))
    assert a == b[0] == d == images.definition and b[1].kind == "ListNumpy" and c.shape == (5,)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (
            typing.Annotated[tp.Numpy, "images"],
            r"invalid parameter annotation typing.Annotated\[oneflow.typing.Numpy, 'images'\]",
        ),
        (typing.Annotated[tp.Numpy, tp.Numpy.Placeholder((1,)), tp.Numpy.Placeholder((2,))], "it has 2 placeholders"),
        (
            typing.Annotated[tp.ListNumpy, tp.Numpy.Placeholder((1,))],
            "the type is tp.ListNumpy, and the placeholder is one of tp.Numpy",
        ),
    ],
)
def test_annotated_types_that_are_refused(annotation: object, text: str) -> None:
    def job(x): ...

    job.__annotations__["x"] = annotation
    with pytest.raises(AnnotationError, match=f"(?s)parameter 'x' of job 'job'.*{text}.*allowed.*Annotated"):
        parse_parameters(job)


def test_string_annotations_see_local_names_of_the_place_of_declaration() -> None:
    import oneflow.typing as local_tp

    size = 5

    def job(x: local_tp.Numpy.Placeholder((size,))) -> local_tp.Numpy: ...  # type: ignore

    assert inspect.signature(job).parameters["x"].annotation == "local_tp.Numpy.Placeholder((size,))"
    assert parse_parameters(job)[0].structure.shape == (5,)
    spec = parse_return(inspect.signature(job).return_annotation, job)
    assert spec.annotated and not spec.callback and spec.tree.kind == "Numpy"  # type: ignore


def test_a_string_annotation_that_fails_names_it() -> None:
    def job(x: tq.Numpy.Placeholder((5,))): ...  # type: ignore # noqa: F821

    with pytest.raises(AnnotationError, match=r"parameter 'x' of job 'job'.*tq.Numpy.*NameError"):
        parse_parameters(job)


def test_defaults_define_inputs_in_any_container() -> None:
    Pair = namedtuple("Pair", "a b")
    d = FixedTensorDef((2,))

    def job(a=d, b=(d, [d]), c={"k": d}, p=Pair(d, d), q=tp.ListNumpy.Placeholder((3,))): ...  # noqa: B006, B008

    a, b, c, p, q = parse_parameters(job)
    assert a.structure is d.definition
    assert isinstance(b.structure, tuple) and isinstance(b.structure[1], list)
    assert c.structure == {"k": d.definition} and c.leaves()[0][0] == "c['k']"
    assert isinstance(p.structure, Pair)
    assert q.structure.kind == "ListNumpy"


def test_an_annotation_beside_a_definition_as_default() -> None:
    def mixed(x: tp.Numpy.Placeholder((2,)), y=tp.ListNumpy.Placeholder((3,))): ...  # type: ignore # noqa: B008

    def documented(x: "the images" = FixedTensorDef((2,))): ...  # type: ignore # noqa: B008, F722, UP037

    assert [p.structure.shape for p in parse_parameters(mixed)] == [(2,), (3,)]
    with pytest.raises(AnnotationError, match="the images"):
        parse_parameters(documented)


def test_a_kind_as_annotation_beside_a_definition_as_default() -> None:
    def job(x: tp.Numpy = FixedTensorDef((2,))): ...  # type: ignore # noqa: B008

    assert parse_parameters(job)[0].structure.shape == (2,)


def test_methods_and_lambdas() -> None:
    class Model:
        def job(self, x=FixedTensorDef((2,))): ...  # noqa: B008

    assert [p.name for p in parse_parameters(Model().job)] == ["x"]
    assert [p.name for p in parse_parameters(lambda y=FixedTensorDef((2,)): y)] == ["y"]  # noqa: B008
    assert parse_parameters(lambda: None) == []


P = tp.Numpy.Placeholder((2,))


def _listed(x: typing.List[P]): ...  # noqa: UP006
def _bare(x: tp.Numpy): ...
def _endless(x: typing.Tuple[P, ...]): ...  # noqa: UP006
def _nothing(x): ...
def _plain(x=3): ...
def _star(*x: P): ...
def _keyword(*, x: P): ...
def _hole(x=(FixedTensorDef((2,)), None)): ...  # noqa: B008


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (_listed, "invalid parameter annotation"), (_bare, r"try .*x: tp.Numpy.Placeholder\("),
        (_endless, "a Tuple names its elements"), (_nothing, "no annotation and no default"),
        (_plain, "invalid parameter default 3.*allowed    flow.FixedTensorDef.*try        leave 'x' out"),
        (_star, "ordinary positional"),
        (_keyword, "ordinary positional"), (_hole, r"\[1\] is None"),
    ],
)  # fmt: skip
def test_parameters_that_are_refused(job: typing.Callable[..., object], text: str) -> None:
    with pytest.raises(AnnotationError, match=f"(?s)parameter 'x' of job '{job.__name__}'.*{text}") as error:
        parse_parameters(job)
    assert "test_typing.py" in str(error.value)
    assert isinstance(error.value, NotImplementedError)


def test_a_method_is_told_where_to_define_its_job() -> None:
    class Network:
        def infer(self, x: P): ...

    with pytest.raises(AnnotationError, match="parameter 'self' of job 'infer'.*\n(.*\n)*.*try .*define the job inside a method"):
        parse_parameters(Network.infer)


def test_annotations_can_be_required() -> None:
    require_annotations(True)
    try:
        with pytest.raises(AnnotationError, match="it has no annotation"):
            parse_parameters(lambda x=FixedTensorDef((2,)): None)  # noqa: B008
        with pytest.raises(AnnotationError, match="no return annotation"):
            parse_return(inspect.Signature.empty, _plain)
    finally:
        require_annotations(False)


# --- return annotations

N, L = tp.Numpy, tp.ListNumpy


@pytest.mark.parametrize(
    "annotation",
    [
        N, L, tp.ListListNumpy, None, tp.Tuple[N, L], tuple[N, N], tp.List[N], list[tp.Tuple[N]], tp.Dict[str, N],
        dict[int, list[N]],
        tp.Bundle[N], tp.Callback[N], tp.Callback[tp.Tuple[N, N]], tp.Callback[tp.Bundle[L]], tp.Callback[None], "tp.Numpy",
        "tp.Callback[typing.Tuple[tp.Numpy, tp.Numpy]]", tp.Tuple["tp.Numpy", "L"],
    ],
)  # fmt: skip
def test_return_annotations(annotation: object) -> None:
    spec = parse_return(annotation, _plain)
    assert spec.annotated
    assert spec.callback is ("Callback" in str(annotation))


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "invalid return annotation int found"), (np.ndarray, "tp.Numpy, which stands for one ndarray"),
        (tp.Tuple[N, ...], "one entry per element"), (tuple, "one entry per element"),
        (tp.List, "invalid return"), (list, "invalid return"),
        (tp.Dict, "invalid return"), (tp.Bundle, r"tp.Bundle\[tp.Numpy\]"), (tp.Callback, r"tp.Callback\[tp.Numpy\]"),
        (tp.Tuple[N, tp.Bundle[N]], "cannot be inside a container"), (tp.Bundle[tp.Tuple[N]], "one of the three array types"),
        (tp.Callback[tp.Callback[N]], "invalid return"), (tp.Tuple[N, int], r"annotation int found in typing.Tuple\["),
        (P, "invalid return"), ("tq.Numpy", "cannot be evaluated"),
    ],
)  # fmt: skip
def test_return_annotations_that_are_refused(annotation: object, text: str) -> None:
    with pytest.raises(AnnotationError, match=f"(?s)job '_plain'.*{text}") as error:
        parse_return(annotation, _plain)
    assert "test_typing.py" in str(error.value)


# --- what a body returned


def _round_trip(annotation: object, returned: object) -> tuple[object, list[str]]:
    """The result of a call when every leaf's value is the name of its op."""
    spec = parse_return(annotation, _plain)
    leaves, rebuild, kinds = match_return(spec, returned, "train_job")
    return rebuild([blob.op_name for blob in leaves]), kinds


def test_structures_are_rebuilt(blobs: list[Blob]) -> None:
    a, b, c, d, dynamic, ragged = blobs
    A, B, C, D = (x.op_name for x in (a, b, c, d))
    free = inspect.Signature.empty
    Pair = namedtuple("Pair", "x y")
    assert _round_trip(N, a) == (A, ["Numpy"])
    assert _round_trip(None, None) == (None, [])
    assert _round_trip(L, dynamic) == (dynamic.op_name, ["ListNumpy"])
    assert _round_trip(tp.ListListNumpy, ragged) == (ragged.op_name, ["ListListNumpy"])
    assert _round_trip(tp.Tuple[N, L], (a, b)) == ((A, B), ["Numpy", "ListNumpy"])
    assert _round_trip(tp.List[N], [a, a, b]) == ([A, A, B], ["Numpy"] * 3)
    assert _round_trip(tp.List[N], []) == ([], [])
    assert _round_trip(tp.Dict[str, N], {"z": a, "y": b}) == ({"z": A, "y": B}, ["Numpy"] * 2)
    nested = tp.Tuple[N, tp.List[tp.Dict[int, N]], tp.Tuple[N]]
    assert _round_trip(nested, (a, [{1: b}, {2: c}], (d,))) == ((A, [{1: B}, {2: C}], (D,)), ["Numpy"] * 4)
    assert _round_trip(tp.Tuple[tp.Tuple[N, N], N], ((a, b), c))[0] == ((A, B), C)
    assert _round_trip(tp.Bundle[N], {"x": [a, (b,)]}) == ({"x": [A, (B,)]}, ["Numpy"] * 2)
    assert _round_trip(tp.Callback[tp.Bundle[N]], a) == (A, ["Numpy"])
    assert _round_trip(free, [a, {"k": (b, None)}, None]) == ([A, {"k": (B, None)}, None], ["local"] * 2)
    assert _round_trip(free, None) == (None, [])
    kept, _ = _round_trip(tp.Tuple[N, N], Pair(a, b))
    assert isinstance(kept, Pair) and kept == Pair(A, B)
    deep, _ = _round_trip(free, {"p": Pair(a, [b])})
    assert isinstance(deep, dict) and deep["p"] == Pair(A, [B])


def test_a_single_result_is_handed_over_as_it_is(blobs: list[Blob]) -> None:
    value = np.zeros(3)
    assert match_return(parse_return(N, _plain), blobs[0], "j").rebuild([value]) is value


@pytest.mark.parametrize(
    ("annotation", "make", "text"),
    [
        (N, lambda b: (b[0],), "found .*tuple.*expected .*a Blob"),
        (N, lambda b: (b[0], b[1]), r"try +annotate the job with -> tp.Tuple\[tp.Numpy, tp.Numpy\]"),
        (N, lambda b: {"loss": b[0]}, r"try +annotate the job with -> tp.Dict\[str, tp.Numpy\]"),
        (tp.Dict[str, N], lambda b: [b[0]], r"try +annotate the job with -> tp.List\[tp.Numpy\]"),
        (tp.Callback[N], lambda b: (b[0],), r"try +annotate the job with -> tp.Callback\[tp.Tuple\[tp.Numpy\]\]"),
        (tp.Callback[N], lambda b: None, r"annotate it with -> tp.Callback\[None\]"),
        (tp.Tuple[N, N], lambda b: b[0], "expected +a tuple of 2.*try +annotate the job with -> tp.Numpy"),
        (tp.Tuple[N, N], lambda b: None, "expected +a tuple of 2.*try +end the body with a return statement"),
        (N, lambda b: 3.0, "3.0 does not match return annotation oneflow.typing.Numpy of global_function train_job"),
        (N, lambda b: None, "None does not match return annotation.*try +end the body with a return statement"),
        (None, lambda b: b[0], "expected .*None"),
        (tp.Tuple[N, N], lambda b: (b[0],), r"\(1 v.s. 2\).*annotate the job with -> tp.Tuple\[tp.Numpy\]"),
        (N, lambda b: namedtuple("Pair", "left right")(b[0], b[1]), r"annotate the job with -> tp.Tuple\[tp.Numpy, tp.Numpy\]"),
        (N, lambda b: {1: b[0], 2: b[1]}, r"annotate the job with -> tp.Dict\[int, tp.Numpy\]"),
        (N, lambda b: (b[0], [b[1], b[2]]), r"annotate the job with -> tp.Tuple\[tp.Numpy, tp.List\[tp.Numpy\]\]"),
        (
            tp.Tuple[N, N],
            lambda b: (b[0], {"a": b[1]}),
            r"annotate the job with -> tp.Tuple\[tp.Numpy, tp.Dict\[str, tp.Numpy\]\]",
        ),
        (N, lambda b: {"loss": b[0], "all": [b[1]]}, r"annotate the job with -> tp.Bundle\[tp.Numpy\]"),
        (tp.List[L], lambda b: (b[0], b[1]), r"annotate the job with -> tp.Tuple\[tp.ListNumpy, tp.ListNumpy\]"),
        (N, lambda b: (b[0], b[4]), r"annotate the job with -> tp.Tuple\[tp.Numpy, tp.ListNumpy\]"),
        (N, lambda b: (b[0], 7), "try +make a constant Blob"),
        (tp.Tuple[N, N], lambda b: [b[0], b[1]], "a tuple of 2"),
        (tp.List[N], lambda b: (b[0],), "expected .*a list"),
        (tp.Dict[str, N], lambda b: {1: b[0]}, r"key 1 of type int.*annotate the job with -> tp.Dict\[int, tp.Numpy\]"),
        (tp.Dict[str, N], lambda b: [b[0]], "expected .*a dict"),
        (tp.Tuple[N, tp.List[N]], lambda b: (b[0], [b[1], 7]), r"at result\[1\]\[1\]: int 7"),
        (tp.Bundle[N], lambda b: [b[0], "s"], r"at result\[1\]: str 's'"),
        (N, lambda b: b[4], "tp.ListNumpy"),
        (L, lambda b: b[5], "tp.ListListNumpy"),
        (tp.ListListNumpy, lambda b: b[0], "a list of tensors"),
        (inspect.Signature.empty, lambda b: [b[0], np.zeros(2)], r"cannot be returned .*at result\[1\]: ndarray"),
    ],
)
def test_results_that_do_not_match(
    annotation: object, make: typing.Callable[[list[Blob]], object], text: str, blobs: list[Blob]
) -> None:
    with pytest.raises(ReturnError, match=f"(?s){text}") as error:
        match_return(parse_return(annotation, _plain), make(blobs), "train_job")
    assert "test_typing.py" in str(error.value)
    assert isinstance(error.value, AssertionError)


NESTED = st.recursive(
    st.integers(0, 3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(NESTED)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_nesting_comes_back(blobs: list[Blob], nested: object) -> None:
    """A call returns the same nesting as the body, each leaf with its own value."""
    returned = map_structure(lambda _, i: blobs[i], nested)
    for annotation in (inspect.Signature.empty, tp.Bundle[N]):
        leaves, rebuild, kinds = match_return(parse_return(annotation, _plain), returned, "job")
        assert rebuild([int(leaf.op_name.removeprefix("Input_")) for leaf in leaves]) == nested
        assert len(kinds) == len(leaves)


@given(NESTED | st.dictionaries(st.integers(), NESTED, min_size=1, max_size=3), st.sampled_from([N, L]))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_annotation_that_an_error_proposes_fits(blobs: list[Blob], nested: object, kind: object) -> None:
    returned = map_structure(lambda _, i: blobs[i], {"result": nested})["result"]
    annotation = tp.Tuple[(kind,) * 9]
    with pytest.raises(ReturnError) as error:
        match_return(parse_return(annotation, _plain), returned, "job")
    proposed = re.search(r"annotate the job with -> (.*)", str(error.value))
    assert proposed is not None
    matched = match_return(parse_return(eval(proposed[1], {"tp": tp}), _plain), returned, "job")
    assert set(matched.kinds) <= {getattr(kind, "kind", "")}
