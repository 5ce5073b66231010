"""The trainer in several processes that feed a part of each batch: what it logs is that of one process."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from test_processes import TWO

TRAINING = """
import json, typing
import numpy as np
import oneflow as flow, oneflow.typing as tp

count, rank = flow.distributed.get_world_size(), flow.distributed.get_rank()
config = flow.FunctionConfig()
config.feed_own_part(count > 1)
rng = np.random.default_rng(0)
data = {"x": rng.standard_normal((13, 4), np.float32), "labels": rng.integers(0, 3, 13).astype(np.int32)}
X, Labels, Weights = tp.Numpy.Placeholder((8, 4)), tp.Numpy.Placeholder((8,), dtype=flow.int32), tp.Numpy.Placeholder((8,))

def network(x, labels):
    logits = flow.layers.dense(x, 3, kernel_initializer=flow.random_normal_initializer(), name="d")
    return logits, flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

@flow.global_function(type="train", function_config=config)
def train(x: X, labels: Labels, sample_weight: Weights) -> tp.Numpy:
    loss = network(x, labels)[1]
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss * sample_weight)
    return loss

@flow.global_function(type="predict", function_config=config)
def test(x: X, labels: Labels, sample_weight: Weights) -> typing.Dict[str, tp.Numpy]:
    logits, loss = network(x, labels)
    return {"loss": loss, "logits": logits, "classes": labels + 0, "twice": flow.reshape(flow.math.square(logits), (24,))}

@flow.global_function(type="predict", function_config=config)
def predict(x: X) -> tp.Numpy:
    return flow.layers.dense(x, 3, name="d")

def shards():
    return flow.data.ArrayLoader(data, batch_size=8, last="pad", shard=(rank, count))

accuracy = flow.metrics.Accuracy("logits", "classes")
trainer = flow.Trainer(max_epochs=2, seed=1, metrics=[accuracy], enable_progress_bar=False)
history = trainer.fit(train, shards(), test, shards())
found = [history["loss"], history["val_loss"], history["val_accuracy"], history["val_twice"]]
found.append(trainer.predict(predict, data["x"][:8].reshape(2, 4, 4)[rank] if count > 1 else data["x"][:8]).tolist())
print(json.dumps(found), flush=True)
if count > 1:
    try:
        flow.Trainer(metrics=[flow.metrics.Accuracy("logits", "labels")], enable_progress_bar=False).test(test, shards())
    except flow.errors.ArgumentError as error:
        print(error, flush=True)
"""


def test_what_is_logged_is_that_of_one_process(program: Any) -> None:
    alone, together = program(TRAINING), program(TRAINING, *TWO, "--all-output")
    assert (alone.returncode, together.returncode) == (0, 0), alone.stderr + together.stderr
    expected = json.loads(alone.stdout)
    found, at, read = [], 0, json.JSONDecoder().raw_decode
    while (at := together.stdout.find("[[", at)) >= 0:  # not by lines: those of two processes may be joined
        value, at = read(together.stdout, at)
        found.append(value)
    assert len(found) == 2  # of both processes
    for value in found:
        for got, want in zip(value, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
    text = "metric 'accuracy' is computed of 'labels', of which each process feeds its own part to job 'test'"
    assert together.stdout.count(text) == 2 and "return 'labels' from the job, too" in together.stdout
