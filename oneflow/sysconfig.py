"""``flow.sysconfig``: how the library was built. It is pure Python on top of JAX, so most answers are constants."""

from __future__ import annotations

import os as _os

from .runtime import devices as _devices

_HERE = _os.path.dirname(_os.path.realpath(__file__))


def get_include() -> str:
    """The package's directory. It contains no headers: ops are Python functions (docs/adding-an-op.md)."""
    return _HERE


def get_lib() -> str:
    """The package's directory. It contains no library to link with."""
    return _HERE


def get_compile_flags() -> list[str]:
    """A list with ``-I`` and the package's directory."""
    return [f"-I{_HERE}"]


def get_link_flags() -> list[str]:
    """A list with ``-L`` and the package's directory."""
    return [f"-L{_HERE}"]


def with_cuda() -> bool:
    """Whether JAX has a GPU here. Initialises JAX's backends."""
    return _devices.has_gpu()


def get_cuda_version() -> int:
    """0: this package is not built against CUDA; JAX is."""
    return 0


def with_xla() -> bool:
    """True: XLA compiles every job."""
    return True


def with_mlir() -> bool:
    """False: programs are lowered by JAX."""
    return False


def with_mlir_cuda_codegen() -> bool:
    """False: XLA generates the kernels."""
    return False


def has_rpc_backend_grpc() -> bool:
    """False: processes communicate through JAX's distributed runtime."""
    return False


def has_rpc_backend_local() -> bool:
    """True: a run may consist of one process."""
    return True
