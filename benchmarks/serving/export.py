"""``python -m benchmarks.serving.export DIR``: the models as saved models, ``DIR/saved``, and as StableHLO, ``DIR/stablehlo``.

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
    lbn: dict[str, str] = {}

    def body(x: tp.Numpy.Placeholder((4, *served.shape), kind)) -> tp.Dict[str, tp.Numpy]:
        y = flow.reshape(served.build(nn, x), (x.shape[0], *served.result))
        lbn.update(x=x.logical_blob_name, y=y.logical_blob_name)
        return {"y": y}

    body.__name__ = name
    job = flow.global_function(type="predict")(body)
    flow.train.CheckPoint().init()
    flow.get_all_variables()  # traces the job, so that nn knows its weights
    flow.load_variables(nn.values())
    (folder / "stablehlo").mkdir(parents=True, exist_ok=True)
    flow.export.stablehlo(job, folder / "stablehlo" / f"{name}.stablehlo", external_data=True)
    model = flow.saved_model.ModelBuilder(str(folder / "saved" / name)).ModelName(name).Version(1)
    model.AddFunction(job).AddSignature("predict").Input("x", lbn["x"]).Output("y", lbn["y"])
    model.Save()


if __name__ == "__main__":
    for name, served in SERVED.items():
        export(name, served, Path(sys.argv[1]))
        flow.clear_default_session()
