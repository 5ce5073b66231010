"""Annotations as Python itself evaluates them: where the function is defined, and from 3.14 on where they are read."""
# no `from __future__ import annotations` here, which makes strings of them

import traceback
import typing
from typing import TYPE_CHECKING

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

if TYPE_CHECKING:
    from nowhere import Image

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def _misnamed():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placehold((2, 3))) -> tp.Numpy:
        return x


def _unknown():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, width))) -> tp.Numpy:  # noqa: F821
        return x


def _unknown_result():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Array:
        return x


def _of_a_wrong_shape():
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, -3))) -> tp.Numpy:
        return x


@pytest.mark.parametrize(
    ("declare", "error", "text"),
    [
        (_misnamed, AttributeError, "'Placehold'"),
        (_unknown, NameError, "'width'"),
        (_unknown_result, AttributeError, "'Array'"),
        (_of_a_wrong_shape, flow.errors.ArgumentError, "-3"),
    ],
)
def test_an_error_in_an_annotation_is_raised_as_it_is_and_shows_the_line(declare, error, text):
    with pytest.raises(error, match=text) as caught:
        declare()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.filename == __file__ and "def job" in last.line


def test_annotations_see_the_names_around_the_function():
    jobs = []
    for rows in (2, 3):

        @flow.global_function("predict")
        def job(x: tp.Numpy.Placeholder((rows, 3))) -> tuple[tp.Numpy, tp.Numpy]:
            return x, x + rows  # noqa: B023

        jobs.append(job)
    for rows, job in zip((2, 3), jobs, strict=True):
        assert typing.get_type_hints(job)["return"] == tuple[tp.Numpy, tp.Numpy]
        assert job.__annotations__["x"].definition.shape == (rows, 3)


def test_a_class_body_names_its_own_values():
    class Model:
        width = 3

        @flow.global_function("predict")
        def infer(x: tp.Numpy.Placeholder((2, width))) -> tp.Numpy:
            return x * 2.0

    np.testing.assert_array_equal(Model.infer(X), X * 2)


def test_a_handler_may_name_what_type_checkers_alone_import():
    seen = []

    def keep(value: "tp.Numpy"):
        seen.append(value)

    def draw(value: "Image"):
        seen.append(value)

    def job_with(handler):
        @flow.global_function("predict")
        def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
            flow.watch(x, handler)
            return x

        return job

    job_with(keep)(X)
    np.testing.assert_array_equal(seen[0], X)
    flow.clear_default_session()
    with pytest.raises(flow.errors.ArgumentError, match="annotated '?Image"):
        job_with(draw)(X)
