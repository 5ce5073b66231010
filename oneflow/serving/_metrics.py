"""What a server counts, for Prometheus at ``/metrics`` and for the protocol's statistics."""

from __future__ import annotations

import itertools
import time
import weakref
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .._base.extras import need
from .._base.jax import jax

_LATENCIES = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_COMPILED = "/jax/core/compile/backend_compile_duration"
_NANOSECONDS = 1_000_000_000


class _Histogram:
    """Counts values by size. Prometheus's own locks and looks up more than a request has time for; one thread counts here."""

    def __init__(self, bounds: Sequence[float]):
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_to(self, family: Any, labels: list[str]) -> None:
        """Adds itself to a metric family of Prometheus's client."""
        names = [*(repr(float(bound)) for bound in self._bounds), "+Inf"]
        family.add_metric(labels, list(zip(names, itertools.accumulate(self._counts), strict=True)), sum_value=self._sum)


class _OfModel:
    """The metrics of one model, over all of its versions."""

    def __init__(self) -> None:
        self.request_seconds, self.queue_seconds, self.batch_seconds = (_Histogram(_LATENCIES) for _ in range(3))
        self.batch_rows, self.batch_requests = (_Histogram(_ROWS) for _ in range(2))
        self.statuses: Counter[int] = Counter()
        self.padding = 0


class _Durations:
    """How often something happened, and how long it took altogether."""

    def __init__(self) -> None:
        self.count, self.seconds = 0, 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += count * seconds

    def described(self) -> dict[str, int]:
        return {"count": self.count, "ns": int(self.seconds * _NANOSECONDS)}


class Counts:
    """What is counted of one version of a model, for the protocol's statistics, and with it for its model's metrics."""

    def __init__(self, model: str, version: str, metrics: _OfModel):
        self._model, self._version, self._metrics = model, version, metrics
        self._success, self._fail, self._queue, self._compute = (_Durations() for _ in range(4))
        self._batches: dict[int, _Durations] = {}  # by their size
        self._rows = 0
        self._last = 0  # when the last request was answered, in milliseconds since 1970

    def waited(self, seconds: float) -> None:
        """A request waited so long for its batch."""
        self._metrics.queue_seconds.observe(seconds)
        self._queue.add(seconds)

    def ran(self, requests: int, rows: int, padded: int, seconds: float) -> None:
        """A batch ran."""
        of = self._metrics
        of.batch_seconds.observe(seconds)
        of.batch_rows.observe(rows)
        of.batch_requests.observe(requests)
        of.padding += padded - rows
        self._compute.add(seconds, requests)
        self._batches.setdefault(padded, _Durations()).add(seconds)
        self._rows += rows
        self._last = int(time.time() * 1000)

    def answered(self, status: int, seconds: float) -> None:
        """An inference request was answered."""
        self._metrics.statuses[status] += 1
        if status == 200:
            self._metrics.request_seconds.observe(seconds)
            self._success.add(seconds)
        else:
            self._fail.add(seconds)

    def statistics(self) -> dict[str, Any]:
        """The protocol's statistics. As with Triton, each request has all of the time of its batch."""
        nothing = _Durations().described()
        return {
            "name": self._model, "version": self._version, "last_inference": self._last, "inference_count": self._rows,
            "execution_count": sum(batches.count for batches in self._batches.values()),
            "inference_stats": {
                "success": self._success.described(), "fail": self._fail.described(), "queue": self._queue.described(),
                "compute_input": nothing, "compute_infer": self._compute.described(), "compute_output": nothing,
                "cache_hit": nothing, "cache_miss": nothing,
            },
            "batch_stats": [{"batch_size": size, "compute_input": nothing, "compute_infer": batches.described(),
                             "compute_output": nothing} for size, batches in sorted(self._batches.items())],
        }  # fmt: skip


_HISTOGRAMS: tuple[tuple[str, str, Callable[[_OfModel], _Histogram]], ...] = (
    ("oneflow_request_seconds", "From an inference request's headers to its answer.", lambda m: m.request_seconds),
    ("oneflow_queue_seconds", "How long requests waited for their batch.", lambda m: m.queue_seconds),
    ("oneflow_batch_seconds", "How long batches ran.", lambda m: m.batch_seconds),
    ("oneflow_batch_rows", "Rows per batch, without padding.", lambda m: m.batch_rows),
    ("oneflow_batch_requests", "Requests per batch.", lambda m: m.batch_requests),
)


class Metrics:
    """The counters of one server. All methods but ``compiled`` belong to the event loop's thread."""

    def __init__(self) -> None:
        client = need("prometheus_client", "oneflow.serving")
        self._client = client
        self._registry = client.CollectorRegistry()
        for collector in (client.ProcessCollector, client.PlatformCollector, client.GCCollector):
            collector(registry=self._registry)
        self._models: dict[str, _OfModel] = {}
        self._counts: dict[tuple[str, str], Counts] = {}
        self._statuses: Counter[int] = Counter()  # of all responses
        self._registry.register(self)
        self.loads = self._made("Counter", "oneflow_loads", "Versions that were loaded, or could not be.", ["model", "result"])
        self._gauges = self._made("Gauge", "oneflow_queue_length", "Requests that wait for their batch.", ["model"])
        self._versions = self._made("Gauge", "oneflow_versions", "Versions that are being served.", ["model"])
        self._compilations = self._made("Counter", "oneflow_compilations", "Programs that XLA compiled in this process since "
                                        "the server was made.", [])  # fmt: skip
        jax.monitoring.register_event_duration_secs_listener(_listener(weakref.ref(self)))

    def collect(self) -> Iterator[Any]:
        """What is counted here, as Prometheus's client asks for it."""
        core = need("prometheus_client.core", "oneflow.serving")
        for name, text, of in _HISTOGRAMS:
            family = core.HistogramMetricFamily(name, text, labels=["model"])
            for model, metrics in self._models.items():
                of(metrics).add_to(family, [model])
            yield family
        requests = core.CounterMetricFamily(
            "oneflow_requests", "Inference requests by their HTTP status.", labels=["model", "status"]
        )
        padding = core.CounterMetricFamily("oneflow_padding_rows", "Rows that were computed as padding.", labels=["model"])
        for model, metrics in self._models.items():
            for status, count in sorted(metrics.statuses.items()):
                requests.add_metric([model, str(status)], count)
            padding.add_metric([model], metrics.padding)
        responses = core.CounterMetricFamily("oneflow_http_responses", "All HTTP responses by their status.", labels=["status"])
        for status, count in sorted(self._statuses.items()):
            responses.add_metric([str(status)], count)
        yield from (requests, padding, responses)

    def _made(self, kind: str, name: str, text: str, labels: list[str], **options: Any) -> Any:
        return getattr(self._client, kind)(name, text, labels, registry=self._registry, **options)

    def compiled(self) -> None:
        """Counts a compilation."""
        self._compilations.inc()

    def of(self, model: str, version: str) -> Counts:
        """The counters of a version that exists. They go on when it is replaced."""
        found = self._counts.get((model, version))
        if found is None:
            found = self._counts[model, version] = Counts(model, version, self._models.setdefault(model, _OfModel()))
        return found

    def responded(self, status: int) -> None:
        """A response of any kind was sent."""
        self._statuses[status] += 1

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


def _listener(metrics: weakref.ref[Metrics]) -> Callable[..., None]:
    """JAX keeps listeners for ever; this one does not keep the server alive."""

    def listen(event: str, duration: float, **_: Any) -> None:
        found = metrics() if event == _COMPILED else None
        if found is not None:
            found.compiled()

    return listen
