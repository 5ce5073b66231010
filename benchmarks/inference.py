"""``python -m benchmarks.inference MODEL BATCH [ROUNDS]``: a predict job in float32, 16 bits and 8, and PyTorch, in turns.

Prints, in milliseconds per call, CPU time of all threads (the least, and the least tenth) and elapsed time. PyTorch runs eager
in float32. CPU time says most on a busy machine; set OMP_NUM_THREADS=1 for it, since PyTorch's threads wait by spinning.
Elapsed time is the least, too.
"""

import sys
import time
from typing import Any

import numpy as np

import oneflow as flow
import oneflow.typing as tp

from .models.architectures import MODELS
from .models.in_oneflow import Layers


def jobs(model: str, batch: int) -> tuple[np.ndarray, dict[str, Any]]:
    """A batch of inputs, and the same network as jobs over the same variables."""
    about = MODELS[model]
    inputs, _ = about.data(batch)
    kind = flow.int32 if about.vocabulary else flow.float32
    layers = Layers(False)

    def job(name: str, mixed: bool) -> Any:
        config = flow.FunctionConfig()
        config.enable_auto_mixed_precision(mixed)

        def body(x: tp.Numpy.Placeholder(inputs.shape, kind)) -> tp.Numpy:
            return about.build(layers, x)

        body.__name__ = name
        return flow.global_function(type="predict", function_config=config)(body)

    made = {"float32": job("plain", False), "mixed precision": job("mixed", True)}
    flow.train.CheckPoint().init()
    flow.get_all_variables()  # traces the jobs, so that the layers know their weights
    flow.load_variables(layers.values())
    made["int8"] = flow.quantization.calibrate(made["float32"], [inputs])
    return inputs, made


def main() -> int:
    if len(sys.argv) not in (3, 4):
        print(__doc__)
        return 2
    model, batch = sys.argv[1], int(sys.argv[2])
    rounds = int(sys.argv[3]) if len(sys.argv) == 4 else 30
    inputs, made = jobs(model, batch)
    runs: dict[str, Any] = {name: lambda job=job: job(inputs) for name, job in made.items()}
    try:
        from .models import in_pytorch
    except ImportError:
        print("PyTorch is not installed: it does not take part")
    else:
        by_pytorch, _ = in_pytorch.make(model, "predict", batch)
        runs["PyTorch eager"] = lambda: by_pytorch(1)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            cpu, wall = time.process_time(), time.perf_counter()
            run()
            spent[name].append(((time.process_time() - cpu) * 1e3, (time.perf_counter() - wall) * 1e3))
            time.sleep(0.03)  # PyTorch's threads spin for a while behind a call, and what follows would seem slower
    print(f"{model}, inference, batch of {batch}; milliseconds per call")
    for name, pairs in spent.items():
        cpu, wall = np.array(pairs).T
        print(f"{name:16} CPU {cpu.min():8.2f} {np.quantile(cpu, 0.1):8.2f}   elapsed {wall.min():8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
