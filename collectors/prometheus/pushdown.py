"""Computes signals of large fleets in Prometheus, instead of fetching every raw sample.

The server answers one query per signal, for all targets of an adapter at once. The results are assembled to pages
whose metrics are the signals themselves, and take the path of any other page. Entities, edges, statuses and health
are computed in one place. Differences to raw samples are listed in ``query_builder``. Histograms arrive as
quantiles and means of each entity, without buckets, so merged buckets (latencies of a service over its replicas)
are not available in this mode.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from collectors.mapping import registry
from collectors.mapping.model import Adapter, Aggregate, EntitySpec, Metrics, Operator, Rule, Section, Statistic, Term
from collectors.prometheus.client import PrometheusApi, RawSeries
from collectors.prometheus.pages import added_labels, own_labels
from collectors.prometheus.query_builder import Dialect, Query, named_by, queries
from outrider import log
from outrider.model import SignalKey, SignalKind
from outrider.vocabulary import catalog

AT_ONCE = 8  # concurrent queries
TARGET = ("job", "instance", "metrics_path")
_PREFIX, _MEAN = "outrider:", ":mean"  # some exporters have metrics with the names of signals


@dataclass(frozen=True, slots=True)
class PushdownPlan:
    """An adapter for pages of signals, and the queries for them."""

    adapter: Adapter
    queries: tuple[Query, ...]
    left_out: Mapping[str, str]


def pushdown_plan(adapter: Adapter, dialect: Dialect) -> PushdownPlan:
    """The adapter of the pages that ``query_signals`` gives."""
    planned, left_out = queries(adapter, dialect)
    rules: dict[str, list[Rule]] = {}
    for query in planned:
        rules.setdefault(query.key.name, [])
        rule = _rule(query.key, adapter.rules[query.key.name])
        if rule not in rules[query.key.name]:
            rules[query.key.name].append(rule)
    entities = {kind: _renamed(spec) for kind, spec in adapter.entities.items()}
    signal_adapter = replace(
        adapter,
        rules={name: tuple(alternatives) for name, alternatives in rules.items()},
        entities=entities,
        start_time=None,
        no_value=None,
    )
    return PushdownPlan(signal_adapter, tuple(planned), left_out)


def _rule(key: SignalKey, of: Sequence[Rule]) -> Rule:
    """The rule that reads a signal from a page of signals."""
    if key.quantile is not None:
        return Rule(key.name, Operator.SUMMARY, (_gauge(key.name),), statistic=Statistic.QUANTILES)
    if catalog.signal(key.name).kind is SignalKind.HISTOGRAM:
        return Rule(key.name, Operator.TERM, (_gauge(key.name + _MEAN),), statistic=Statistic.MEAN)
    first = of[0]
    aggregate = first.aggregate if first.per or first.operator is not Operator.TERM else first.terms[0].aggregate
    return Rule(key.name, Operator.TERM, (replace(_gauge(key.name), aggregate=aggregate),), aggregate=aggregate)


def _gauge(name: str) -> Term:
    return Term(Section.GAUGE, Metrics(first=(_PREFIX + name,)), aggregate=Aggregate.MAX)


def _renamed(spec: EntitySpec) -> EntitySpec:
    """Adds the labels of results to those of the pages, from which edges and facts are read."""
    labels = list(named_by(spec, exported=True).items())
    parts = tuple(_with(part, labels) for part in spec.parts)
    return replace(spec, parts=parts, namespace=_with(spec.namespace, labels))


def _with(part: tuple[str, ...], labels: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[str, ...]:
    own = tuple(label for label, spellings in labels if set(part) & set(spellings) and label not in part)
    return (*own, *part)


class Pushdown:
    """Queries a server for the signals of one adapter's targets at a time."""

    def __init__(self, api: PrometheusApi, window: timedelta, interval: timedelta) -> None:
        """``window`` is the range of rates, increases and quantiles, ``interval`` the time between queries."""
        self._api, self._window, self._interval = api, window, interval
        self._left_out_logged: set[str] = set()
        every = (pushdown_plan(registry.adapter(name), self._dialect("")) for name in registry.ADAPTERS)
        self.adapters: Mapping[str, Adapter] = {plan.adapter.name: plan.adapter for plan in every}

    def _dialect(self, select: str) -> Dialect:
        seconds = self._interval.total_seconds()
        return Dialect(f"{int(self._window.total_seconds())}s", select, TARGET, delta_seconds=seconds, exported=True)

    async def query_signals(self, name: str, select: str, at: datetime) -> list[RawSeries]:
        """Results of all queries for the targets matched by ``select``, named after their signals.

        Series with edges, facts and events are unchanged. Raises CollectError.
        """
        plan = pushdown_plan(registry.adapter(name), self._dialect(select))
        if plan.left_out and name not in self._left_out_logged:
            self._left_out_logged.add(name)
            log.get("collect").info("not_worked_out_by_server", adapter=name, signals=sorted(plan.left_out))
        gate, stamp = asyncio.Semaphore(AT_ONCE), round(at.timestamp() * 1000)

        async def put(text: str, more: Mapping[str, str]) -> list[RawSeries]:
            async with gate:
                result = await self._api.values(text, at)
            return [RawSeries({**labels, **more}, (stamp,), (value,)) for labels, value in result]

        signals = [put(query.text, _named(query.key)) for query in plan.queries]
        raw = [put(f"{metric}{{{select}}}", {"__name__": metric}) for metric in _described(plan.adapter)]
        answers = await asyncio.gather(*signals, *raw)
        return [series for answer in answers for series in answer]

    @staticmethod
    def as_pages(series: Sequence[RawSeries], labels: Mapping[str, str]) -> list[RawSeries]:
        """The series of one target; unchanged ones with the labels of their exporter."""
        raw = {id(item) for item in series if not item.labels["__name__"].startswith(_PREFIX)}
        added = added_labels([item for item in series if id(item) in raw], labels) - set(TARGET)
        return [replace(item, labels=own_labels(item.labels, added)) if id(item) in raw else item for item in series]


def _named(key: SignalKey) -> dict[str, str]:
    if key.quantile is not None:
        return {"__name__": _PREFIX + key.name, "quantile": f"{key.quantile:g}"}
    is_mean = catalog.signal(key.name).kind is SignalKind.HISTOGRAM
    return {"__name__": _PREFIX + key.name + (_MEAN if is_mean else "")}


def _described(adapter: Adapter) -> list[str]:
    """Metrics that carry more than a value: edges, facts, events."""
    metrics = [*(spec.metrics for spec in adapter.edges), *(spec.metrics for spec in adapter.labels)]
    metrics += [spec.metrics for spec in adapter.events]
    return sorted({name for names in metrics for name in names if not name.startswith("~")})
