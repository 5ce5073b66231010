"""The jobs of a session, for inspection."""

from __future__ import annotations

from types import SimpleNamespace

from ..runtime.session import default_session


def get_job_set() -> SimpleNamespace:
    """The declared jobs, under the names of OneFlow's ``JobSet``. Starts the session.

    Returns: an object with ``job``, a list; each has ``job_conf.job_name`` and ``net.op``, a list of objects with ``name``
      and ``op_type_name``.
    Example: >>> [job.job_conf.job_name for job in flow.experimental.get_job_set().job]
    """
    session = default_session()
    session.start()
    jobs = []
    for job in session.jobs.values():
        ops = [SimpleNamespace(name=node.name, op_type_name=node.op.name) for node in job.build().nodes]
        jobs.append(SimpleNamespace(job_conf=SimpleNamespace(job_name=job.name), net=SimpleNamespace(op=ops)))
    return SimpleNamespace(job=jobs)
