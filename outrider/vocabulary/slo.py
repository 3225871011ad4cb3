"""Service level objectives over events, and burn-rate alerts on their error budgets.

The windows and factors are those of the Site Reliability Workbook (Google, 2018, chapter 5, table 5-8): with a budget
of 30 days, 14.4 spends 2 % of it in an hour, 6 spends 5 % in six hours, 1 spends 10 % in three days. The short window,
a twelfth of the long one, ends an alert soon after the burn ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from outrider.model import EntityKind, EntityRef, Priority, SignalKey
from outrider.vocabulary.tenants import UNNAMED, name_of, service_of

EACH_TENANT = "*"
PREFIX = "slo:"
RULE_PREFIX = "slo-"


@dataclass(frozen=True, slots=True)
class Burn:
    """A burn-rate threshold that must be exceeded over both windows; ``pages`` False: a ticket is enough."""

    factor: float
    long: timedelta
    short: timedelta
    pages: bool


BURNS = (
    Burn(14.4, timedelta(hours=1), timedelta(minutes=5), pages=True),
    Burn(6.0, timedelta(hours=6), timedelta(minutes=30), pages=True),
    Burn(1.0, timedelta(days=3), timedelta(hours=6), pages=False),
)


@dataclass(frozen=True, slots=True)
class Slo:
    """Objective: of the events in ``total``, at least the share ``objective`` is not in ``bad``.

    ``bad`` and ``total`` are columns of counts (deltas or buckets) of entities of ``kind``, each summed. ``service``
    None: applies to each service separately. ``objective`` is in (0, 1); ``window`` is the period of its error budget.
    A long window with fewer events than ``least_events``, or fewer bad ones than ``least_bad``, raises nothing: one
    error at five requests an hour is not an outage. ``otherwise`` are the columns (bad, total) of entities that lack
    those of ``total``. With ``where``, events are those of the replicas of a service with these facts, summed. With
    ``tenant``, entities are tenants: the one of that name, or each named one.
    """

    name: str
    objective: float
    bad: tuple[SignalKey, ...]
    total: tuple[SignalKey, ...]
    service: EntityRef | None = None
    window: timedelta = timedelta(days=30)
    least_events: int = 100
    least_bad: int = 5
    page: Priority = Priority.P1
    ticket: Priority = Priority.P2
    routes: tuple[str, ...] = ()
    limit_seconds: float | None = None
    kind: EntityKind = EntityKind.SERVICE
    otherwise: tuple[tuple[SignalKey, ...], tuple[SignalKey, ...]] | None = None
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tenant: str | None = None

    @property
    def keys(self) -> tuple[SignalKey, ...]:
        """Every column it needs, without duplicates."""
        other = () if self.otherwise is None else (*self.otherwise[1], *self.otherwise[0])
        return tuple(dict.fromkeys((*self.total, *self.bad, *other)))

    @property
    def detector(self) -> str:
        """The name of its detector."""
        return PREFIX + self.name

    @property
    def rule(self) -> str:
        """The name of its alert rule."""
        return RULE_PREFIX + self.name

    def about(self, entity: EntityRef) -> bool:
        """True if it applies to an entity."""
        if entity.kind is not EntityKind.TENANT:
            return self.service is None or entity == self.service
        name, named = name_of(entity), self.tenant == EACH_TENANT
        wanted = name not in UNNAMED if named else name == self.tenant
        return wanted and self.service in (None, service_of(entity))
