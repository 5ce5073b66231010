"""``python -m benchmarks.serving.fastapi_torch``: the same models by FastAPI and eager PyTorch, as one writes it in an afternoon.

It takes the same requests as ours, one input as binary data, computes each in FastAPI's thread pool, and gives the same answers.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from ..models.in_pytorch import Layers
from .served import SERVED

torch.set_grad_enabled(False)
app = FastAPI()
weights: dict[str, dict[str, torch.Tensor]] = {name: {} for name in SERVED}


def predict(name: str, x: np.ndarray) -> np.ndarray:
    served = SERVED[name]
    with torch.inference_mode():
        return served.build(Layers(weights[name], False), torch.from_numpy(x)).numpy().reshape(len(x), *served.result)


@app.post("/v2/models/{name}/infer")
async def infer(name: str, request: Request) -> Response:
    body = await request.body()
    length = int(request.headers["inference-header-content-length"])
    entry = json.loads(body[:length])["inputs"][0]
    x = np.frombuffer(body, SERVED[name].dtype, offset=length).reshape(entry["shape"]).copy()
    y = await run_in_threadpool(predict, name, x)
    output: dict[str, Any] = {"name": "y", "datatype": "FP32", "shape": list(y.shape)}
    output["parameters"] = {"binary_data_size": y.nbytes}
    head = json.dumps({"model_name": name, "model_version": "1", "outputs": [output]}).encode()
    headers = {"inference-header-content-length": str(len(head))}
    return Response(head + y.tobytes(), media_type="application/octet-stream", headers=headers)


if __name__ == "__main__":
    for name, served in SERVED.items():
        predict(name, served.rows(1))
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"serving at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).run([listener])
