"""SLOs: read and checked here, evaluated by ``detectors.rules.burn_rate``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from outrider.errors import ConfigProblem
from outrider.model import EntityKind, EntityRef, Priority, SignalKey
from outrider.text import yaml_file
from outrider.vocabulary import catalog
from outrider.vocabulary.request_class import RequestClass
from outrider.vocabulary.slo import BURNS, Slo
from outrider.vocabulary.units import format_duration
from service.config.settings_base import Duration, Section

LATENCIES = {"ttft": "svc_ttft_seconds", "tpot": "svc_tpot_seconds", "latency": "svc_latency_seconds"}
SUCCESS = "success"
OF_REPLICAS = {
    "ttft": "engine_ttft_seconds",
    "tpot": "engine_tpot_seconds",
    "latency": "engine_e2e_seconds",
}
"""Latencies of replicas, with the bounds of those of services."""
OF_TENANTS = {"ttft": "tenant_ttft_seconds", "latency": "tenant_latency_seconds"}
"""Latencies of tenants, with the bounds of those of services."""
_FAILED_TENANTS = (("tenant_failed_total",), ("tenant_requests_total",))
_FAILED_REPLICAS = (("engine_http_failed_total",), ("engine_http_requests_total",))
_FAILED_ENGINES = (("engine_requests_failed_total",), ("engine_requests_finished_total",))  # without an HTTP server
COUNTED = {
    SUCCESS: (("svc_failed_total",), ("svc_requests_total",)),
    "abort": (("svc_abandoned_total",), ("svc_requests_total",)),
    "validity": (("svc_invalid_answers_total",), ("svc_answers_total",)),
    "feedback": (("svc_feedback_down_total",), ("svc_feedback_down_total", "svc_feedback_up_total")),
}
"""SLIs without a limit: the signals of their bad events and of all events."""
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_LONGEST = timedelta(days=90)
_SHORTEST = max(burn.long for burn in BURNS)
Urgency = Literal["P0", "P1", "P2", "P3"]


class SloSettings(Section):
    """Objective of a service, and the burn rates that alert."""

    name: str = Field(description="Name in messages: lowercase letters, digits and hyphens.")
    service: str | None = Field(None, description="Service. Default: every service on its own.")
    namespace: str | None = Field(None, description="Kubernetes namespace of the service.")
    cluster: str | None = Field(None, description="Cluster of the service. Default: the configured one.")
    where: dict[str, list[str]] = Field(
        {},
        description=(
            "Only requests to replicas with these facts, for example {request_class: [vip]} or {tenant: [acme]}, for "
            "replicas that serve one class or tenant alone."
        ),
    )
    tenant: str | None = Field(
        None,
        description="Tenant whose requests count; * for each one on its own. LiteLLM or outrider-sdk counts them.",
        min_length=1,
    )
    sli: Literal["success", "ttft", "tpot", "latency", "abort", "validity", "feedback"] = Field(
        "success",
        description=(
            "Bad events: failed requests, requests slower than the limit, requests aborted by clients, invalid "
            "answers, thumbs down."
        ),
    )
    limit: Duration | None = Field(
        None,
        description=(
            "Limit of ttft, tpot and latency: a histogram bound, for example 1s. Values between bounds "
            "are not possible."
        ),
    )
    objective: Annotated[float, Field(gt=0, lt=1)] = Field(0.999, description="Objective, as a ratio.")
    window: Duration = Field(timedelta(days=30), description="Window of the error budget, 3d to 90d.")
    least_events: Annotated[int, Field(ge=1)] = Field(
        100, description="Minimum events in 1h, 6h or 3d; with fewer the window raises no alert."
    )
    least_bad: Annotated[int, Field(ge=1)] = Field(5, description="Minimum bad events per window.")
    page: Urgency = Field("P1", description="Alert on 2 % of the budget in 1h, or 5 % in 6h (factors 14.4 and 6).")
    ticket: Urgency = Field("P2", description="Alert on 10 % of the budget in 3d (factor 1).")
    routes: list[Literal["phone", "sms", "im", "mail", "report"]] = Field(
        [], description="Channel groups. Default: those of the priority."
    )

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError("expected a name of lowercase letters, digits and hyphens")
        return value

    @field_validator("where", mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: [text] if isinstance(text, str) else text for key, text in value.items()}

    @property
    def is_part(self) -> bool:
        """True if only some requests of a service count."""
        return bool(self.where) or self.tenant is not None

    @property
    def ladder(self) -> tuple[float, ...]:
        """Possible limits in seconds; none for successes."""
        return catalog.signal(LATENCIES[self.sli]).bounds if self.sli in LATENCIES else ()

    def slo(self, cluster: str) -> Slo:
        """The SLO, for detectors. Not usable if ``slo_problems`` reports a problem."""
        kind = EntityKind.SERVICE
        if self.where or self.tenant is not None:
            kind = EntityKind.REPLICA if self.where else EntityKind.TENANT
        bad, total = _events(self.sli, self.ladder, self.limit, kind)
        without_http = bool(self.where) and self.sli == SUCCESS
        return Slo(
            name=self.name,
            objective=self.objective,
            bad=bad,
            total=total,
            service=self._service_entity(cluster),
            window=self.window,
            least_events=self.least_events,
            least_bad=self.least_bad,
            page=Priority(self.page),
            ticket=Priority(self.ticket),
            routes=tuple(self.routes),
            limit_seconds=self.limit.total_seconds() if self.limit is not None else None,
            kind=kind,
            otherwise=(_keys(_FAILED_ENGINES[0]), _keys(_FAILED_ENGINES[1])) if without_http else None,
            where={key: tuple(values) for key, values in self.where.items()},
            tenant=self.tenant,
        )

    def _service_entity(self, cluster: str) -> EntityRef | None:
        if self.service is None:
            return None
        return EntityRef(self.cluster or cluster, EntityKind.SERVICE, self.namespace, self.service)


def _events(
    sli: str, ladder: Sequence[float], limit: timedelta | None, kind: EntityKind
) -> tuple[tuple[SignalKey, ...], tuple[SignalKey, ...]]:
    """Columns of bad events and of all events; slow requests are in the buckets above the limit."""
    if sli in COUNTED or limit is None:
        failed = {EntityKind.REPLICA: _FAILED_REPLICAS, EntityKind.TENANT: _FAILED_TENANTS}
        bad, total = failed.get(kind, COUNTED.get(sli, COUNTED[SUCCESS]))
        return _keys(bad), _keys(total)
    names = {EntityKind.REPLICA: OF_REPLICAS, EntityKind.TENANT: OF_TENANTS}.get(kind, LATENCIES)
    name = names.get(sli, LATENCIES[sli])
    buckets = tuple(SignalKey(name, bucket=index) for index in range(len(ladder) + 1))
    within = sum(bound <= limit.total_seconds() * (1.0 + 1e-9) for bound in ladder)
    return buckets[within:], buckets


def _keys(names: Sequence[str]) -> tuple[SignalKey, ...]:
    return tuple(map(SignalKey, names))


def ttft_limits(slos: Sequence[SloSettings]) -> dict[str | None, timedelta]:
    """Returns the shortest TTFT limit of each service; that of None applies to every service without one.

    SLOs on a part of a service do not count.
    """
    limits: dict[str | None, timedelta] = {}
    for slo in slos:
        if slo.sli == "ttft" and slo.limit is not None and not slo.is_part:
            limits[slo.service] = min(limits.get(slo.service, slo.limit), slo.limit)
    return limits


def slo_problems(slos: Sequence[SloSettings], document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Checks that each SLO has a unique name, a limit if its SLI needs one, and a window above the burn windows."""
    seen: set[str] = set()
    for index, slo in enumerate(slos):
        path: tuple[str | int, ...] = ("slos", index)
        if slo.name in seen:
            yield document.problem((*path, "name"), f"duplicate SLO name {slo.name!r}")
        seen.add(slo.name)
        yield from _limit(slo, path, document)
        yield from _where(slo, path, document)
        if not _SHORTEST <= slo.window <= _LONGEST:
            allowed = f"{format_duration(_SHORTEST)} to {format_duration(_LONGEST)}"
            yield document.problem((*path, "window"), f"is out of range; expected {allowed}")
        for key in ("namespace", "cluster"):
            if getattr(slo, key) is not None and slo.service is None:
                yield document.problem((*path, key), "requires service")


def _where(slo: SloSettings, path: tuple[str | int, ...], document: yaml_file.Document) -> Iterator[ConfigProblem]:
    if slo.tenant is not None and slo.where:
        yield document.problem((*path, "tenant"), "cannot be combined with where")
    elif slo.tenant is not None and slo.sli not in (SUCCESS, *OF_TENANTS):
        known = ", ".join((SUCCESS, *OF_TENANTS))
        yield document.problem((*path, "tenant"), f"applies to {known} only: {slo.sli} is not counted by tenant")
    if slo.where and slo.sli not in (SUCCESS, *LATENCIES):
        known = ", ".join((SUCCESS, *LATENCIES))
        yield document.problem((*path, "where"), f"applies to {known} only: engines do not count {slo.sli}")
    for key, values in slo.where.items():
        if not values or not all(values):
            yield document.problem((*path, "where", key), "expected a text or a list of texts")
        elif key == "request_class" and not all(str(RequestClass.parse(text)) for text in values):
            yield document.problem((*path, "where", key), "expected words such as vip, online or long")


def _limit(slo: SloSettings, path: tuple[str | int, ...], document: yaml_file.Document) -> Iterator[ConfigProblem]:
    if slo.sli in COUNTED:
        if slo.limit is not None:
            yield document.problem((*path, "limit"), "applies to ttft, tpot and latency only")
        return
    bounds = ", ".join(f"{bound:g}" for bound in slo.ladder)
    if slo.limit is None:
        yield document.problem((*path, "limit"), f"is missing; expected one of {bounds} seconds")
    elif not any(abs(slo.limit.total_seconds() - bound) <= 1e-9 * bound for bound in slo.ladder):
        message = f"{slo.limit.total_seconds():g} s is between two bounds of {LATENCIES[slo.sli]}"
        yield document.problem((*path, "limit"), f"{message}; expected one of {bounds}")
