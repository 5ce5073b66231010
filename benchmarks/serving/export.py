"""``python -m benchmarks.serving.export DIR``: the models as StableHLO.

No ``from __future__ import annotations`` here: a job's annotations are values.
"""

import sys
from pathlib import Path

import oneflow as flow
import oneflow.typing as tp

from ..models.in_oneflow import Layers
from .served import SERVED, Served


def export(name: str, served: Served, folder: Path) -> None:
    kind = flow.int32 if served.dtype == "int32" else flow.float32
    nn = Layers(False)

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((4, *served.shape), kind)) -> tp.Dict[str, tp.Numpy]:
        y = served.build(nn, x)
        return {"y": flow.reshape(y, (x.shape[0], *served.result))}

    flow.train.CheckPoint().init()
    flow.get_all_variables()  # traces the job, so that nn knows its weights
    flow.load_variables(nn.values())
    flow.export.stablehlo(job, folder / f"{name}.stablehlo", external_data=True)


if __name__ == "__main__":
    for name, served in SERVED.items():
        export(name, served, Path(sys.argv[1]))
        flow.clear_default_session()
