"""What a server counts, for Prometheus at ``/metrics`` and for the protocol's statistics."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from .._base.extras import need
from .._base.jax import jax

_LATENCIES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_COMPILED = "/jax/core/compile/backend_compile_duration"
_NANOSECONDS = 1_000_000_000


class _OfModel:
    """The metrics of one model, looked up once."""

    def __init__(self, metrics: Metrics, model: str):
        self.request_seconds = metrics.request_seconds.labels(model)
        self.queue_seconds = metrics.queue_seconds.labels(model)
        self.batch_seconds = metrics.batch_seconds.labels(model)
        self.batch_rows = metrics.batch_rows.labels(model)
        self.batch_requests = metrics.batch_requests.labels(model)
        self.padding = metrics.padding.labels(model)
        self.good = metrics.requests.labels(model, "200")
        self.statistics = {"success": 0, "fail": 0, "success_ns": 0, "fail_ns": 0, "queue_ns": 0, "compute_ns": 0, "rows": 0,
                           "executions": 0, "queued": 0}  # fmt: skip


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        client = need("prometheus_client", "oneflow.serving")
        self._client = client
        self._registry = client.CollectorRegistry()
        for collector in (client.ProcessCollector, client.PlatformCollector, client.GCCollector):
            collector(registry=self._registry)
        self.requests = self._made("Counter", "oneflow_requests", "Inference requests by their HTTP status.", ["model", "status"])
        self._responses = self._made("Counter", "oneflow_http_responses", "All HTTP responses by their status.", ["status"])
        self.request_seconds = self._made("Histogram", "oneflow_request_seconds", "From an inference request's headers to its "
                                          "answer.", ["model"], buckets=_LATENCIES)  # fmt: skip
        self.queue_seconds = self._made("Histogram", "oneflow_queue_seconds", "How long requests waited for their batch.",
                                        ["model"], buckets=_LATENCIES)  # fmt: skip
        self.batch_seconds = self._made("Histogram", "oneflow_batch_seconds", "How long batches ran.",
                                        ["model"], buckets=_LATENCIES)  # fmt: skip
        self.batch_rows = self._made("Histogram", "oneflow_batch_rows", "Rows per batch, without padding.",
                                     ["model"], buckets=_ROWS)  # fmt: skip
        self.batch_requests = self._made("Histogram", "oneflow_batch_requests", "Requests per batch.",
                                         ["model"], buckets=_ROWS)  # fmt: skip
        self.padding = self._made("Counter", "oneflow_padding_rows", "Rows that were computed as padding.", ["model"])
        self.loads = self._made("Counter", "oneflow_loads", "Versions that were loaded, or could not be.", ["model", "result"])
        self._gauges = self._made("Gauge", "oneflow_queue_length", "Requests that wait for their batch.", ["model"])
        self._versions = self._made("Gauge", "oneflow_versions", "Versions that are being served.", ["model"])
        self._compilations = self._made("Counter", "oneflow_compilations", "Programs that XLA compiled in this process since "
                                        "the server was made.", [])  # fmt: skip
        self._models: dict[str, _OfModel] = {}
        self._http: dict[int, Any] = {}  # by status
        jax.monitoring.register_event_duration_secs_listener(_listener(weakref.ref(self)))

    def _made(self, kind: str, name: str, text: str, labels: list[str], **options: Any) -> Any:
        return getattr(self._client, kind)(name, text, labels, registry=self._registry, **options)

    def compiled(self) -> None:
        """Counts a compilation."""
        self._compilations.inc()

    def of(self, model: str) -> _OfModel:
        """The metrics of a model that exists."""
        found = self._models.get(model)
        if found is None:
            found = self._models[model] = _OfModel(self, model)
        return found

    def responded(self, status: int) -> None:
        """A response of any kind was sent."""
        found = self._http.get(status)
        if found is None:
            found = self._http[status] = self._responses.labels(str(status))
        found.inc()

    def waited(self, model: str, seconds: float) -> None:
        """A request waited so long for its batch."""
        of = self.of(model)
        of.queue_seconds.observe(seconds)
        of.statistics["queue_ns"] += int(seconds * _NANOSECONDS)
        of.statistics["queued"] += 1

    def ran(self, model: str, requests: int, rows: int, padded: int, seconds: float) -> None:
        """A batch ran."""
        of = self.of(model)
        of.batch_seconds.observe(seconds)
        of.batch_rows.observe(rows)
        of.batch_requests.observe(requests)
        if padded > rows:
            of.padding.inc(padded - rows)
        of.statistics["compute_ns"] += int(seconds * _NANOSECONDS)
        of.statistics["rows"] += rows
        of.statistics["executions"] += 1

    def answered(self, model: str, status: int, seconds: float) -> None:
        """An inference request for a model that exists was answered."""
        of = self.of(model)
        if status == 200:
            of.good.inc()
            of.request_seconds.observe(seconds)
        else:
            self.requests.labels(model, str(status)).inc()
        kind = "success" if status == 200 else "fail"
        of.statistics[kind] += 1
        of.statistics[f"{kind}_ns"] += int(seconds * _NANOSECONDS)

    def text(self, queues: Iterable[tuple[str, int, int]]) -> tuple[bytes, str]:
        """The metrics for Prometheus, with their content type.

        Args:
          queues: of each model its name, how many requests wait, and how many versions are being served.
        """
        for model, waiting, versions in queues:
            self._gauges.labels(model).set(waiting)
            self._versions.labels(model).set(versions)
        exposition = need("prometheus_client.exposition", "oneflow.serving")
        return self._client.generate_latest(self._registry), exposition.CONTENT_TYPE_LATEST

    def statistics(self, model: str, version: str) -> dict[str, Any]:
        """The protocol's statistics of a model, over all of its versions."""
        s = self.of(model).statistics

        def duration(count: int, ns: int) -> dict[str, int]:
            return {"count": count, "ns": ns}

        return {
            "name": model, "version": version, "inference_count": s["rows"], "execution_count": s["executions"],
            "inference_stats": {
                "success": duration(s["success"], s["success_ns"]), "fail": duration(s["fail"], s["fail_ns"]),
                "queue": duration(s["queued"], s["queue_ns"]), "compute_input": duration(0, 0),
                "compute_infer": duration(s["executions"], s["compute_ns"]), "compute_output": duration(0, 0),
            },
            "batch_stats": [],
        }  # fmt: skip


def _listener(metrics: weakref.ref[Metrics]) -> Callable[..., None]:
    """JAX keeps listeners for ever; this one does not keep the server alive."""

    def listen(event: str, duration: float, **_: Any) -> None:
        found = metrics() if event == _COMPILED else None
        if found is not None:
            found.compiled()

    return listen
