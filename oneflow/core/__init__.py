"""``oneflow.core``: OneFlow's protobuf modules, those that public programs import. Messages are built with the protobuf library.

``from oneflow.core.record import record_pb2`` needs the extra ``oneflow-jax[data]``;
enum values such as ``op_conf_pb2.kNone`` do not.
"""
