# Written by scripts/write_stubs.py: the names of oneflow.sysconfig, some of them as 0.6 has them.
# ruff: noqa
# fmt: off

from oneflow.sysconfig import get_compile_flags as get_compile_flags
from oneflow.sysconfig import get_cuda_version as get_cuda_version
from oneflow.sysconfig import get_include as get_include
from oneflow.sysconfig import get_lib as get_lib
from oneflow.sysconfig import get_link_flags as get_link_flags
from oneflow.sysconfig import has_rpc_backend_grpc as has_rpc_backend_grpc
from oneflow.sysconfig import has_rpc_backend_local as has_rpc_backend_local
from oneflow.sysconfig import with_cuda as with_cuda
from oneflow.sysconfig import with_mlir as with_mlir
from oneflow.sysconfig import with_mlir_cuda_codegen as with_mlir_cuda_codegen
from oneflow.sysconfig import with_xla as with_xla
