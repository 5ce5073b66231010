"""``oneflow.core``: OneFlow's protobuf modules, those that public programs import. Messages are built with the protobuf library.

``from oneflow.core.record import record_pb2`` needs the extra ``oneflow-jax[data]``; enum values such as
``op_conf_pb2.kNone`` do not.
"""

from . import common as common
from . import framework as framework
from . import job as job
from . import operator as operator
from . import record as record
from . import register as register
from . import serving as serving


def __getattr__(name: str) -> object:
    known = (
        "common.data_type_pb2, common.shape_pb2, framework.user_op_attr_pb2, framework.user_op_conf_pb2, "
        "job.initializer_conf_pb2, job.job_conf_pb2, job.regularizer_conf_pb2, job.sbp_parallel_pb2, "
        "operator.interface_blob_conf_pb2, operator.op_conf_pb2, record.record_pb2, register.logical_blob_id_pb2, "
        "serving.saved_model_pb2"
    )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {known}")
