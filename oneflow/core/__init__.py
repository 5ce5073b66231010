"""``oneflow.core``: OneFlow's protobuf modules, those that public programs import. Messages are built with the protobuf library.

``from oneflow.core.record import record_pb2`` needs the extra ``oneflow-jax[data]``; enum values such as
``op_conf_pb2.kNone`` do not.
"""

from . import common as common
from . import job as job
from . import operator as operator
from . import record as record


def __getattr__(name: str) -> object:
    known = "common.data_type_pb2, job.initializer_conf_pb2, job.regularizer_conf_pb2, operator.op_conf_pb2, record.record_pb2"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {known}")
