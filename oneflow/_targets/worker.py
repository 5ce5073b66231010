"""The process that compiles for one target: requests come on its standard input, results go to its standard output.

It imports JAX and nothing of this library. A message is a length (8 bytes), a JSON header, a length, and bytes.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from typing import Any, BinaryIO

_MEMORY = ("argument", "output", "alias", "temp", "generated_code")


def write(stream: BinaryIO, header: Any, payload: bytes = b"") -> None:
    """Writes one message."""
    text = json.dumps(header).encode()
    stream.write(struct.pack("<Q", len(text)) + text + struct.pack("<Q", len(payload)) + payload)
    stream.flush()


def read(stream: BinaryIO) -> tuple[Any, bytes] | None:
    """Reads one message; None at the end."""

    def part() -> bytes | None:
        size = stream.read(8)
        return stream.read(struct.unpack("<Q", size)[0]) if len(size) == 8 else None

    text, payload = part(), part()
    return None if text is None or payload is None else (json.loads(text), payload)


def topology_of(description: Any) -> Any:
    """The devices that a request names, which are only there to compile for."""
    from jax.experimental import topologies

    if description["platform"] == "tpu":
        return topologies.get_topology_desc(
            platform="tpu", topology_name=description["name"], chips_per_host_bounds=tuple(description["host_bounds"])
        )
    return topologies.get_topology_desc(
        platform="cuda", topology=description["topology"], target_config=description["target_config"]
    )


def compiled(request: Any, program: bytes, topologies: dict[str, Any]) -> dict[str, Any]:
    """Compiles an exported program for the devices of a topology."""
    import jax
    import numpy as np
    from jax import export
    from jax.sharding import Mesh

    key = json.dumps(request["topology"])
    if key not in topologies:
        topologies[key] = topology_of(request["topology"])
    sizes = request["sizes"]
    count = int(np.prod(sizes))
    mesh = Mesh(np.array(topologies[key].devices[:count]).reshape(sizes), tuple(request["axes"]))
    exported = export.deserialize(bytearray(program))

    def sharding(spec: list[list[str]] | None) -> Any:
        parts = [tuple(axes) if axes else None for axes in spec or ()]
        return None if spec is None else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*parts))

    def step(*arrays: Any) -> tuple[Any, ...]:
        return tuple(exported.call(*arrays))

    step.__name__ = step.__qualname__ = exported.fun_name
    inputs = zip(exported.in_avals, map(sharding, request["inputs"]), strict=True)
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a, s in inputs]
    outputs = tuple(map(sharding, request["outputs"]))
    with jax.enable_x64(True):
        lowered = jax.jit(step, out_shardings=outputs, donate_argnums=tuple(request["donated"])).lower(*structs)
        made = lowered.compile(compiler_options=request["options"] or None)
    memory = made.memory_analysis()
    cost = made.cost_analysis() or {}
    return {
        "text": made.as_text(),
        "memory": {name: getattr(memory, f"{name}_size_in_bytes") for name in _MEMORY},
        "cost": {name: cost[name] for name in ("flops", "bytes accessed", "optimal_seconds") if name in cost},
        "outputs": [_spec(s) for s in made.output_shardings],
    }  # fmt: skip


def _spec(sharding: Any) -> list[list[str]] | None:
    """The mesh axes that split each axis of an output; None where XLA chose a layout that no spec says."""
    spec = getattr(sharding, "spec", None)
    if spec is None:
        return [] if sharding.is_fully_replicated else None
    return [[] if names is None else [names] if isinstance(names, str) else list(names) for names in spec]


def main() -> None:
    """Serves requests until the input ends."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is not part of the protocol
    topologies: dict[str, Any] = {}
    while (message := read(sys.stdin.buffer)) is not None:
        try:
            write(out, compiled(*message, topologies))
        except Exception as error:
            write(out, {"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
