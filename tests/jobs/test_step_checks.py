"""Warnings of labels that are not classes, and of losses that are not finite, in loops written by hand."""

import logging
import time

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

PAUSE = 0.03  # longer than between two looks


def declared(reduced=False, dtype=flow.int32):
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4, 3)), labels: tp.Numpy.Placeholder((4,), dtype=dtype)) -> tp.Numpy:
        logits = flow.layers.dense(x, 5, name="line")
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(labels, (4, 1)), logits)
        flow.optimizer.SGD(0.1).minimize(loss)
        return flow.math.reduce_mean(loss) if reduced else loss

    return train


def fed(labels=(0, 1, 2, 4), x=1.0):
    return np.full((4, 3), x, np.float32), np.array(labels, np.int32)


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize(
    ("labels", "told"), [((0, 1, 5, 7), "2 of 4 labels (0 to 7)"), ((-1, 1, 2, 3), "1 of 4 labels (-1 to 3)")]
)
def test_labels_that_are_not_classes(caplog, labels, told):
    train = declared()
    train(*fed())
    time.sleep(PAUSE)
    for _ in range(3):
        train(*fed(labels))
        time.sleep(PAUSE)
    (text,) = messages(caplog)
    assert told in text and "call 1 of job 'train'" in text and "[0, 5)" in text
    assert "test_step_checks.py" in text and "sparse_softmax_cross_entropy_with_logits(" in text


@pytest.mark.parametrize(("ids", "told"), [((0, 9, 10), "1 of 3 indices (0 to 10)"), ((-1, 5, 12), "2 of 3 indices (-1 to 12)")])
def test_indices_that_are_no_rows_of_a_table(caplog, ids, told):
    @flow.global_function("train")
    def train(ids: tp.Numpy.Placeholder((3,), dtype=flow.int64)) -> tp.Numpy:
        words = flow.layers.embedding(flow.cast(ids, flow.int32), 10, 4, name="words")
        flow.optimizer.SGD(0.1).minimize(words)
        return words

    train(np.array([0, 5, 9]))
    time.sleep(PAUSE)
    for _ in range(2):
        train(np.array(ids))
        time.sleep(PAUSE)
    (text,) = messages(caplog)
    assert told in text and "call 1 of job 'train' was fed are not in [0, 10): they read zeros" in text
    assert "flow.layers.embedding(" in text and "indices from 0 to 9" in text


def test_good_labels_of_all_dtypes(caplog):
    for dtype, kind in ((flow.int8, np.int8), (flow.uint8, np.uint8), (flow.int64, np.int64)):
        flow.clear_default_session()
        train = declared(dtype=dtype)
        train(fed()[0], np.array([0, 4, 3, 2], kind))
        time.sleep(PAUSE)
    assert not messages(caplog)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("submits", [False, True])
def test_a_loss_that_is_not_finite(caplog, reduced, submits):
    train = declared(reduced)
    call = (lambda *batch: train.submit(*batch).result()) if submits else train
    for step in range(6):
        call(*fed(x=np.nan if step >= 2 else 1.0))
    time.sleep(PAUSE)
    for _ in range(3):
        call(*fed())
        time.sleep(PAUSE)
    (text,) = messages(caplog)
    assert "the loss of job 'train' is not finite at call 2, for the first time" in text
    assert "test_step_checks.py" in text and "sparse_softmax_cross_entropy_with_logits(" in text


def test_the_trainer_tells_of_it_once(caplog):
    train = declared()
    x, labels = np.full((40, 3), 1.0, np.float32), np.zeros(40, np.int32)
    x[20:] = np.nan
    batches = [(x[i : i + 4], labels[i : i + 4]) for i in range(0, 40, 4)]
    flow.Trainer(max_epochs=1, enable_progress_bar=False).fit(train, batches)
    train(x[:4], labels[:4])
    (text,) = messages(caplog)
    assert "the loss is nan at step 5, for the first time" in text and "test_step_checks.py" in text
