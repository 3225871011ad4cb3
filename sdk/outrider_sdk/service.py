"""The instrumented service: the one object of this package that users create."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, Callable, Optional, TypeVar, Union

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from outrider_sdk.metrics import in_several_processes, metrics_of
from outrider_sdk.names import OTHER, BusiestNames
from outrider_sdk.quiet import quiet
from outrider_sdk.request import Request
from outrider_sdk.watch import LabelSource, Text, watched

F = TypeVar("F", bound=Callable[..., Any])
_MOST_MODELS = 50


class ModelService:
    """Counts the requests of one model service. Create one per process; threads and tasks may share it.

    ``name`` is the service's name; ``model`` is the default model of requests. ``tenants`` is the number of tenants
    that keep their names (the busiest; the rest is ``other``), or the names themselves. Raises ValueError for an empty
    name, or for a second name on one registry: a page belongs to one service.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(
        self,
        name: str,
        *,
        registry: CollectorRegistry = REGISTRY,
        model: str = "default",
        tenants: Union[int, Collection[str]] = 20,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not name:
            message = "a service needs a name"
            raise ValueError(message)
        self.name = name
        self.now = now
        self._registry = registry
        self._model = model
        self.metrics = metrics_of(name, registry)
        # Series of several processes are in files and cannot be removed.
        fixed = in_several_processes()
        self._known = None if isinstance(tenants, int) else frozenset(tenants)
        most = tenants if isinstance(tenants, int) else len(self._known or ())
        self._tenants = BusiestNames(most, self._forget_tenant, fixed=fixed)
        self._models = BusiestNames(_MOST_MODELS, lambda _: None, fixed=True)

    def request(self, *, model: object = None, tenant: object = None) -> Request:
        """A request to enter: ``with service.request(model="m", tenant="t") as r``."""
        return Request(self, model, tenant)

    def watch(self, *, model: LabelSource = None, tenant: LabelSource = None, text: Text = None) -> Callable[[F], F]:
        """A decorator for functions, coroutines, generators and asynchronous generators.

        ``model`` and ``tenant``: a name, or a function of the call's arguments; ``text``: a function that extracts the
        answer's text from a returned or yielded value, needed if that is not text itself.
        """

        def decorate(function: F) -> F:
            return watched(self, function, model, tenant, text)

        return decorate

    @quiet
    def feedback(self, *, up: bool) -> None:
        """Records a user's vote on an answer."""
        self.metrics.feedback.labels("up" if up else "down").inc()

    @quiet
    def kpi(self, name: str, value: float) -> None:
        """Sets the current value of a business KPI."""
        self.metrics.kpi.labels(str(name)[:64]).set(value)

    def page(self) -> bytes:
        """The page for ``GET /metrics``, of all processes if there are several."""
        if in_several_processes():
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
            return generate_latest(registry)
        return generate_latest(self._registry)

    def labels(self, model: object, tenant: object) -> tuple[str, str]:
        """The label values of a request; never raises."""
        return self._label_of(self._models, model, self._model) or OTHER, self._tenant_of(tenant) or OTHER

    @quiet
    def _label_of(self, names: BusiestNames, value: object, otherwise: str) -> Optional[str]:
        return names.name(otherwise if value is None else value)

    @quiet
    def _tenant_of(self, tenant: object) -> Optional[str]:
        if tenant is None:
            return "none"
        if self._known is not None:
            return str(tenant) if str(tenant) in self._known else OTHER
        return self._tenants.name(tenant)

    @quiet
    def _forget_tenant(self, tenant: str) -> None:
        """Removes the series of a tenant that is no longer among the busiest."""
        for family in self.metrics.of_tenants:
            for labels in [labels for labels in list(family._metrics) if labels[1] == tenant]:  # noqa: SLF001
                family.remove(*labels)
