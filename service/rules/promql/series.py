"""Series from which exported rules read signals: those that Outrider stores, or the metrics of one adapter. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from collectors.mapping.model import QUANTILES, Adapter
from collectors.prometheus.query_builder import Dialect, literal, observations, queries
from outrider.model import EntityKind, SignalKey, SignalKind
from outrider.vocabulary import catalog
from outrider.vocabulary.units import exact_duration
from outrider.wire.promql import PromqlError

FRESH = "1m"  # age at which a value still describes the present
_LABELS = {label: (label, "%s") for label in ("name", "namespace", "cluster")}
_OF_TENANTS = {"tenant": ("name", ".*/(%s)"), "service": ("name", "(%s)/[^/]*")}
_OVER = {"sum": "sum_over_time", "mean": "avg_over_time", "max": "max_over_time", "min": "min_over_time"}


class SignalSeries(Protocol):
    """Writes how one signal is read. Every method raises PromqlError if the series lack the signal."""

    def last(self, signal: str) -> str:
        """The newest value."""
        ...

    def over(self, function: str, signal: str, seconds: float) -> str:
        """``sum``, ``mean``, ``max`` or ``min`` of a window."""
        ...

    def quantile(self, share: float, signal: str, seconds: float, fewest: int) -> str:
        """A quantile of a histogram over a window with at least so many observations."""
        ...

    def present(self, signal: str) -> str:
        """A series while there is a value."""
        ...

    def every(self) -> str:
        """A series for each entity that is observed."""
        ...

    def absent(self, signal: str) -> str:
        """A series for each entity that had values within a day and has none now."""
        ...


class StoredSeries:
    """The series of ``store.metrics``: ``outrider_<signal>``, with cluster, kind, namespace and name of the entity."""

    def __init__(self, kind: EntityKind, where: Mapping[str, tuple[str, ...]]) -> None:
        """``where`` is that of the rule. Raises PromqlError if it names a fact, which the series do not have."""
        forms = _LABELS | (_OF_TENANTS if kind is EntityKind.TENANT else {})
        unknown = [key for key in where if key not in forms]
        if unknown:
            raise PromqlError(f"stored series do not have the fact {unknown[0]}")
        chosen = (text for key in where for text in _chosen(*forms[key], where[key]))
        self._matchers = ", ".join([f'kind="{kind.value}"', *chosen])

    def last(self, signal: str) -> str:
        """The newest value."""
        return f"last_over_time(outrider_{signal}{{{self._matchers}}}[{FRESH}])"

    def over(self, function: str, signal: str, seconds: float) -> str:
        """A statistic of a window."""
        return f"{_OVER[function]}(outrider_{signal}{{{self._matchers}}}[{exact_duration(seconds)}])"

    def quantile(self, share: float, signal: str, seconds: float, fewest: int) -> str:
        """A quantile of a histogram over a window with at least so many observations."""
        window = exact_duration(seconds)
        buckets = f"sum_over_time(outrider_{signal}_bucket{{{self._matchers}}}[{window}])"
        last = f'sum_over_time(outrider_{signal}_bucket{{{self._matchers}, le="+Inf"}}[{window}])'
        return f"(histogram_quantile({share:.12g}, {buckets}) and sum without (le) ({last}) >= {fewest})"

    def present(self, signal: str) -> str:
        """A series while there is a value."""
        if catalog.signal(signal).kind is SignalKind.HISTOGRAM:
            return f'last_over_time(outrider_{signal}_bucket{{{self._matchers}, le="+Inf"}}[{FRESH}])'
        return self.last(signal)

    def every(self) -> str:
        """A series for each entity that is observed."""
        entity = "cluster, kind, namespace, name, outrider"
        return f'group by ({entity}) (last_over_time({{__name__=~"outrider_.+", {self._matchers}}}[5m]))'

    def absent(self, signal: str) -> str:
        """A series for each entity whose values ended within a day."""
        now = self.present(signal)
        return f"({now.replace(f'[{FRESH}]', '[1d]')} unless {now.replace(f'[{FRESH}]', '[2m]')})"


def _chosen(label: str, form: str, values: Sequence[str]) -> Iterator[str]:
    """Matchers of the values, and of those excluded by ``!``. The form of a label's text has the values at ``%s``."""
    wanted = [literal(value) for value in values if not value.startswith("!")]
    excluded = [literal(value[1:]) for value in values if value.startswith("!")]
    if wanted:
        yield f'{label}=~"{form % "|".join(wanted)}"'
    if excluded:
        yield f'{label}!~"{form % "|".join(excluded)}"'


class AdapterSeries:
    """The metrics that a Prometheus scrapes itself, read as an adapter reads them."""

    def __init__(self, adapter: Adapter, where: Mapping[str, tuple[str, ...]]) -> None:
        """Raises PromqlError if the rule covers only some entities: their names are those of Outrider."""
        if where:
            raise PromqlError("where names entities of Outrider, which metrics do not have")
        self._adapter = adapter

    def last(self, signal: str) -> str:
        """The newest value."""
        return self._query(SignalKey(signal), FRESH)

    def over(self, function: str, signal: str, seconds: float) -> str:
        """A statistic of a window."""
        window = exact_duration(seconds)
        if function == "sum":
            return self._query(SignalKey(signal), window)
        return f"{_OVER[function]}(({self._query(SignalKey(signal), FRESH)})[{window}:])"

    def quantile(self, share: float, signal: str, seconds: float, fewest: int) -> str:
        """A quantile of a histogram over a window with at least so many observations."""
        if share not in QUANTILES:
            raise PromqlError(f"the quantile {share:g} is not one of {', '.join(f'{known:g}' for known in QUANTILES)}")
        window = exact_duration(seconds)
        quantile = self._query(SignalKey(signal, quantile=share), window)
        counted = observations(self._adapter, signal, Dialect(window))
        return f"({quantile} and ({counted}) * {seconds:.12g} >= {fewest})"

    def present(self, signal: str) -> str:
        """A series while there is a value."""
        if catalog.signal(signal).kind is SignalKind.HISTOGRAM:
            return self._query(SignalKey(signal, quantile=0.5), FRESH)
        return self.last(signal)

    def every(self) -> str:
        """A series for each entity that is observed."""
        raise PromqlError("metrics do not list the entities without a value")

    def absent(self, signal: str) -> str:
        """A series for each entity whose values ended within a day."""
        raise PromqlError(f"metrics do not list the entities without {signal}")

    def _query(self, key: SignalKey, window: str) -> str:
        text = self._queries(window).get(key)
        if text is None:
            raise PromqlError(f"the adapter {self._adapter.name} does not read {key.name} from metrics")
        return f"({text})"

    def _queries(self, window: str) -> Mapping[SignalKey, str]:
        if window not in self._by_window:
            supported, _ = queries(self._adapter, Dialect(window))
            self._by_window[window] = {query.key: query.text for query in supported}
        return self._by_window[window]

    @cached_property
    def _by_window(self) -> dict[str, Mapping[SignalKey, str]]:
        return {}
