"""Patterns of weight decay that match nothing are told."""

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import JobWarning


def built(**options):
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = flow.layers.dense(x, 1, name="head")
        flow.optimizer.AdamW(0.1, weight_decay=0.1, **options).minimize(loss)
        return loss

    train(np.ones((2, 3), np.float32))


@pytest.mark.parametrize("argument", ["weight_decay_includes", "weight_decay_excludes"])
def test_patterns_that_match_no_variable(argument):
    with pytest.warns(JobWarning, match=rf"{argument}=\['biass'\] matches no variable.*head-weight, head-bias"):
        built(**{argument: ["biass"]})


def test_patterns_of_which_one_matches():
    built(weight_decay_excludes=["bias", "norm"])
