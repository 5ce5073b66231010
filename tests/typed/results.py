"""What calls give, as type checkers see it. Checked, not run."""

from concurrent.futures import Future
from typing import Annotated, Any, assert_type

import numpy as np
from numpy.typing import NDArray

import oneflow as flow
import oneflow.typing as tp

X = Annotated[tp.Numpy, tp.Numpy.Placeholder((2, 3))]
Array = np.ndarray[Any, np.dtype[Any]]
array = np.zeros((2, 3), np.float32)


@flow.global_function("predict")
def one(x: X, scale: Annotated[tp.Numpy, tp.Numpy.Placeholder((1,))]) -> tp.Numpy:
    assert_type(x.shape, tuple[int, ...])
    assert_type(x * 2.0 + scale, flow.Blob)
    assert_type(x[0:1], flow.Blob)
    assert_type(x > 0, flow.Blob)
    assert_type(-x @ x, flow.Blob)
    assert_type(2 / x, flow.Blob)
    return flow.nn.relu(x) * scale


assert_type(one(array, array), Array)
assert_type(one(array, scale=array), Array)
assert_type(one.submit(array, array).result(), Array)
assert_type(one(np.float64(1), array), Array)


@flow.global_function("predict")
def pair(both: tp.Tuple[X, X]) -> tp.Tuple[tp.Numpy, tp.Numpy]:
    x, y = both
    return y, x + y


first, second = pair((array, array))
assert_type(first, Array)
assert_type(second, Array)


@flow.global_function("predict")
def named(x: X) -> tp.Dict[str, tp.Numpy]:
    return {"x": x, "twice": x + x}


assert_type(named(array), dict[str, Array])
assert_type(named.submit(array).result()["x"], Array)


@flow.global_function("predict")
def several(x: X) -> tp.List[tp.Numpy]:
    return [x, x + x]


assert_type(several(array), list[Array])


@flow.global_function("predict")
def ragged(x: Annotated[tp.ListNumpy, tp.ListNumpy.Placeholder((4,))]) -> tp.ListNumpy:
    return flow.math.exp(x)


assert_type(ragged([array, array]), list[Array])


@flow.global_function("predict")
def lists(x: Annotated[tp.ListListNumpy, tp.ListListNumpy.Placeholder((4,))]) -> tp.ListListNumpy:
    return x


assert_type(lists([[array], [array]]), list[list[Array]])


@flow.global_function()
def nothing() -> None:
    pass


nothing()


@flow.global_function("train")
def later(x: X) -> tp.Callback[tp.Numpy]:
    loss = flow.math.reduce_mean(flow.layers.dense(x, 1))
    flow.optimizer.SGD(flow.optimizer.CosineScheduler(0.1, 100), momentum=0.9).minimize(loss)
    return loss


def show(value: NDArray[np.float32]) -> None:
    print(value.mean())


later(array)(show)
later(array).async_get(lambda value: print(value.shape))
assert_type(later(array).result(), Array)
future: Future[Any] = later.submit(array)


@flow.global_function("predict")
def later_pair(x: X) -> tp.Callback[tp.Tuple[tp.Numpy, tp.Numpy]]:
    return x, x


later_pair(array)(lambda values: print(values[0].shape, values[1].shape))


@flow.global_function("predict")
def bundled(x: X) -> tp.Bundle[tp.Numpy]:
    return {"x": [x, (x, x)]}


bundled(array)["x"]

# the other parts of a program
with flow.name_scope("outer"), flow.scope.placement("cpu", "0:0"), flow.fixed_placement("cpu", "0:0"):
    print(flow.load("saved"), flow.int32)
settings: flow.ExecutionConfig = flow.ExecutionConfig()


@flow.global_function("predict")
def second_names(x: X) -> tp.Numpy:
    return flow.clip(flow.clamp(x, 0, 1), 0, 1)


config = flow.FunctionConfig()
config.default_data_type(flow.float)
config.enable_auto_mixed_precision(True)


@flow.global_function("train", config)
def configured(x: X) -> tp.Numpy:
    return x


class Prints(flow.callbacks.Callback):
    def on_train_batch_end(self, step: int, logs: dict[str, float]) -> None:
        print(step, logs["loss"])


trainer = flow.Trainer(max_epochs=1, callbacks=[Prints(), flow.callbacks.ModelCheckpoint("checkpoints")])
history = trainer.fit(later, (array,), one, (array, array), ckpt_path="last")
assert_type(history.rows[0]["loss"], Any)
flow.checkpoint.save("saved")
flow.load_variables(flow.checkpoint.get("saved"))
print(
    flow.get_all_variables()["weight"].numpy().mean(), later.learning_rate, repr(later.summary()), later.profile(array, steps=3)
)
