"""``flow.sysconfig``: what the library was built with. It is pure Python over JAX, so there is little to tell."""

from __future__ import annotations

from pathlib import Path as _Path

from .runtime import devices as _devices

_HERE = str(_Path(__file__).resolve().parent)


def get_include() -> str:
    """The package's directory. There are no headers in it: ops are Python functions (docs/adding-an-op.md)."""
    return _HERE


def get_lib() -> str:
    """The package's directory. There is no library in it to link with."""
    return _HERE


def get_compile_flags() -> list[str]:
    """``-I`` and the package's directory."""
    return [f"-I{_HERE}"]


def get_link_flags() -> list[str]:
    """``-L`` and the package's directory."""
    return [f"-L{_HERE}"]


def with_cuda() -> bool:
    """Whether JAX has a GPU here. Initialises JAX's backends."""
    return _devices.has_gpu()


def get_cuda_version() -> int:
    """0: the CUDA version is JAX's matter."""
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
    """False: processes talk through JAX's own runtime."""
    return False


def has_rpc_backend_local() -> bool:
    """True: one process is enough."""
    return True
