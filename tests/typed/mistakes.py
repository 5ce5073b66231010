"""Mistakes that type checkers report: on every line that ends with ``# wrong``, and on no other. Checked, not run."""

from typing import Annotated

import numpy as np

import oneflow as flow
import oneflow.typing as tp

X = Annotated[tp.Numpy, tp.Numpy.Placeholder((2, 3))]
array = np.zeros((2, 3), np.float32)


@flow.global_function("tain")  # wrong
def misspelled(x: X) -> tp.Numpy:
    return x


@flow.global_function("predict")
def job(x: X, y: X) -> tp.Numpy:
    flow.nn.relu(array)  # wrong
    flow.nn.rellu(x)  # wrong
    flow.reshape(x, "3")  # wrong
    flow.layers.dense(x, units="3")  # wrong
    x.sum()  # wrong
    float(x)  # wrong
    len(x)  # wrong
    return flow.nn.softmax(x + y, axis=1)


@flow.global_function("predict")
def number(x: X) -> tp.Numpy:
    return 3  # wrong


@flow.global_function("predict")
def one_of_two(x: X) -> tp.Tuple[tp.Numpy, tp.Numpy]:
    return x  # wrong


@flow.global_function("train")
def later(x: X) -> tp.Callback[tp.Numpy]:
    flow.optimizer.SGD("fast").minimize(x)  # wrong
    flow.optimizer.Adam(0.1).minimize(3)  # wrong
    flow.optimizer.Adam(0.1, momentum=0.9).minimize(x)  # wrong
    return x


@flow.global_function("predict")
def ragged(x: Annotated[tp.ListNumpy, tp.ListNumpy.Placeholder((4,))]) -> tp.ListNumpy:
    return x


job(array)  # wrong
job("x", array)  # wrong
job(array, 3)  # wrong
job(array, array, array)  # wrong
job(array, z=array)  # wrong
job(array, array).means()  # wrong
job.submit(array)  # wrong
ragged(["x"])  # wrong
ragged(3)  # wrong


def without_value() -> None:
    pass


def of_text(value: str) -> None:
    print(value)


later(array)(without_value)  # wrong
later(array)(of_text)  # wrong
later(array).means()  # wrong
later(array).result().means()  # wrong

flow.FunctionConfig().default_data_type("float")  # wrong
flow.FunctionConfig().default_data_typ(flow.float)  # wrong
flow.Trainer(max_epoch=3)  # wrong
flow.Trainer(max_epochs="3")  # wrong
flow.Trainer(max_epochs=3).fit(array, (array,))  # wrong
flow.callbacks.EarlyStopping("val_loss", patients=3)  # wrong
flow.data.ArrayLoader((array,), batch_size="3")  # wrong
flow.checkpoint.save(3)  # wrong
tp.Numpy.Placeholder(3)  # wrong
tp.Numpy.Placeholder((2, 3), dtype="float")  # wrong
