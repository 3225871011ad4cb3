"""Metrics of one registry, with the names that Outrider's adapter ``sdk`` reads.

The histogram bounds are those of Outrider's catalog, so that buckets need no interpolation.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
PER_TOKEN = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
STAGES = ("queue", "preprocess", "copy", "compute", "postprocess")
OUTCOMES = ("ok", "error", "rejected", "cancelled")
REQUEST_LABELS = ("model", "tenant")


class Metrics:
    """All metric families, registered once."""

    def __init__(self, service: str, registry: CollectorRegistry) -> None:
        """``service`` is the value in ``service_info``. Raises ValueError if a family is already registered."""
        self.service = service
        options: dict[str, Any] = {"registry": registry}
        self.info = Gauge(
            "outrider_sdk_service_info", "Name of the service.", ["service"], multiprocess_mode="max", **options
        )
        self.requests = Counter(
            "outrider_sdk_requests", "Requests by outcome.", [*REQUEST_LABELS, "outcome"], **options
        )
        self.running = Gauge(
            "outrider_sdk_requests_in_progress",
            "Requests in progress.",
            ["model"],
            multiprocess_mode="livesum",
            **options,
        )
        self.seconds = Histogram(
            "outrider_sdk_request_seconds", "Duration of a request.", REQUEST_LABELS, buckets=REQUEST, **options
        )
        self.first_token = Histogram(
            "outrider_sdk_first_token_seconds",
            "Time from the request to its first token.",
            REQUEST_LABELS,
            buckets=FIRST_TOKEN,
            **options,
        )
        self.per_token = Histogram(
            "outrider_sdk_token_seconds",
            "Mean gap between the tokens of a request.",
            ["model"],
            buckets=PER_TOKEN,
            **options,
        )
        self.tokens = Counter(
            "outrider_sdk_tokens", "Tokens by kind: input, output.", [*REQUEST_LABELS, "kind"], **options
        )
        self.stage_seconds = Histogram(
            "outrider_sdk_stage_seconds", "Time in a stage.", ["model", "stage"], buckets=FIRST_TOKEN, **options
        )
        self.stage_running = Gauge(
            "outrider_sdk_stage_in_progress", "Requests in a stage.", ["model", "stage"],
            multiprocess_mode="livesum", **options,
        )  # fmt: skip
        self.answers = Counter("outrider_sdk_answers", "Checked answers.", REQUEST_LABELS, **options)
        self.invalid = Counter(
            "outrider_sdk_invalid_answers",
            "Empty, repeated or garbled answers.",
            [*REQUEST_LABELS, "reason"],
            **options,
        )
        self.feedback = Counter("outrider_sdk_feedback", "Votes of users on answers.", ["vote"], **options)
        self.kpi = Gauge("outrider_sdk_kpi", "A business KPI.", ["kpi"], multiprocess_mode="mostrecent", **options)
        self.faults = Counter("outrider_sdk_faults", "Errors of the SDK itself.", **options)
        self.info.labels(service).set(1)

    @property
    def of_tenants(self) -> tuple[Any, ...]:
        """The families with a tenant label."""
        return self.requests, self.seconds, self.first_token, self.tokens, self.answers, self.invalid


_known: WeakKeyDictionary[CollectorRegistry, Metrics] = WeakKeyDictionary()
_lock = threading.Lock()


def metrics_of(service: str, registry: CollectorRegistry) -> Metrics:
    """The metrics of a registry, created at its first service. Raises ValueError for a second name on one registry."""
    with _lock:
        match = _known.get(registry)
        if match is None:
            match = _known[registry] = Metrics(service, registry)
        elif match.service != service:
            message = f"this registry belongs to {match.service!r}; give {service!r} a registry of its own"
            raise ValueError(message)
        return match


def in_several_processes() -> bool:
    """True in the multiprocess mode of prometheus-client."""
    return "PROMETHEUS_MULTIPROC_DIR" in os.environ or "prometheus_multiproc_dir" in os.environ
