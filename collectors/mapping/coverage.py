"""Signals that a page provides and lacks, and the features affected. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from collectors.exposition.parser import Page
from collectors.mapping.entity_binding import LayoutEntities
from collectors.mapping.model import HISTOGRAM_SUFFIXES, Adapter, Operator, Rule, Statistic, matching_names
from outrider.model import EntityKind, Layer
from outrider.text.i18n import Language, translate
from outrider.vocabulary import catalog

# Features that depend on a signal, as i18n keys of area ``collect``. Signals not listed are context.
_FEATURES: dict[str, tuple[str, ...]] = {
    "engine_generation_tokens_total": ("hung_engine", "capacity"),
    "engine_generation_tokens_per_second": ("capacity",),
    "engine_iterations_total": ("hung_engine",),
    "engine_requests_running": ("hung_engine", "saturation", "capacity"),
    "engine_requests_waiting": ("hung_engine", "saturation"),
    "engine_preemptions_per_second": ("saturation",),
    "engine_queue_seconds": ("saturation",),
    "engine_sleep_state": ("asleep_engine",),
    "engine_kv_cache_usage_ratio": ("saturation", "memory_rule"),
    "engine_kv_cache_capacity_tokens": ("capacity",),
    "engine_memory_reserved_ratio": ("memory_rule",),
    "engine_prefix_cache_hit_ratio": ("prefix_cache",),
    "engine_ttft_seconds": ("ttft_alert", "slo"),
    "engine_itl_seconds": ("kernel_regression",),
    "engine_tpot_seconds": ("kernel_regression", "slo"),
    "engine_e2e_seconds": ("slo",),
    "engine_http_requests_total": ("availability", "forecast"),
    "engine_http_failed_total": ("availability",),
    "engine_requests_finished_total": ("availability", "forecast"),
    "engine_requests_failed_total": ("availability",),
    "engine_error_ratio": ("availability",),
    "engine_prompt_length_tokens": ("capacity",),
    "engine_output_length_tokens": ("capacity",),
    "engine_kv_transfer_failures_per_second": ("kv_transfer",),
    "engine_start_time_seconds": ("restarts",),
    "engine_open_files": ("hung_engine",),
    "hw_accel_present": ("gpu_lost",),
    "hw_accel_temperature_celsius": ("throttling", "gpu_lost"),
    "hw_accel_throttle_thermal_ratio": ("throttling",),
    "hw_accel_throttle_power_ratio": ("throttling",),
    "hw_accel_fault_code": ("xid",),
    "hw_accel_fault_events": ("repeated_xid",),
    "hw_accel_healthy": ("vendor_health",),
    "hw_accel_ecc_uncorrectable_total": ("ecc",),
    "hw_accel_ecc_correctable_total": ("ecc",),
    "hw_accel_memory_retired_total": ("ecc",),
    "hw_accel_row_remap_failed": ("ecc",),
    "hw_accel_row_remap_pending": ("ecc",),
    "hw_accel_memory_used_ratio": ("memory_rule",),
    "hw_accel_interconnect_errors_total": ("link_faults",),
    "hw_accel_pcie_replay_total": ("link_faults",),
    "hw_link_up": ("link_faults",),
    "hw_rdma_errors_total": ("link_faults",),
    "node_accel_capacity": ("gpu_lost",),
    "node_ready": ("node_lost",),
    "node_filesystem_available_ratio": ("disk_full",),
    "pod_phase": ("crash_loop",),
    "pod_restarts": ("crash_loop",),
    "workload_available_ratio": ("scaling",),
    "autoscaler_at_max": ("scaling",),
    "autoscaler_gap_replicas": ("scaling",),
    "autoscaler_errors_per_second": ("scaling",),
    "svc_requests_per_second": ("forecast", "capacity"),
    "svc_requests_total": ("availability",),
    "svc_failed_total": ("availability",),
    "svc_success_ratio": ("availability",),
    "svc_latency_seconds": ("slo",),
    "svc_ttft_seconds": ("ttft_alert", "slo"),
    "svc_tpot_seconds": ("slo",),
    "svc_queue_requests": ("saturation",),
    "svc_inflight_requests": ("hung_engine", "saturation"),
    "svc_ready_backends": ("scaling",),
    "probe_success": ("availability",),
}


# What does the work of a signal that a system does not publish.
_INSTEAD = {
    "engine_http_requests_total": "engine_requests_finished_total",
    "engine_http_failed_total": "engine_requests_failed_total",
    "engine_iterations_total": "engine_generation_tokens_total",
    "engine_itl_seconds": "engine_tpot_seconds",
}


@dataclass(frozen=True, slots=True)
class MissingSignal:
    """A signal that the page does not provide. ``expected`` are metric names, newest spelling first.

    ``lines`` are the lines of the exporter's configuration that would publish them, if known, or the name of the
    system if it never publishes the signal.
    """

    signal: str
    expected: tuple[str, ...]
    disables: tuple[str, ...]
    fix: str
    lines: tuple[str, ...] = ()

    def as_dict(self, language: Language) -> dict[str, Any]:
        """JSON of one missing signal."""
        return {
            "signal": self.signal,
            "expected": list(self.expected),
            "disables": [translate(f"collect.feature.{name}", language) for name in self.disables],
            "fix": translate(
                self.fix,
                language,
                metrics=", ".join(self.expected),
                lines="\n".join(self.lines or self.expected),
            ),
        }


@dataclass(frozen=True, slots=True)
class SignalCoverage:
    """Coverage of one target. ``old_spellings`` maps a signal to the deprecated name on the page.

    ``means_only`` are distributions of which the page gives only the mean, with the remedy.
    ``unknown_metrics`` is None if only the metrics that the adapter reads are available.
    """

    present: tuple[str, ...]
    missing: tuple[MissingSignal, ...]
    old_spellings: dict[str, str]
    unknown_metrics: int | None
    means_only: tuple[MissingSignal, ...] = ()

    def as_dict(self, language: Language = "en") -> dict[str, Any]:
        """JSON of ``outrider doctor`` for one target; features and fixes in the reader's language."""
        return {
            "present": list(self.present),
            "missing": [signal.as_dict(language) for signal in self.missing],
            "means_only": [signal.as_dict(language) for signal in self.means_only],
            "old_spellings": dict(self.old_spellings),
            "unknown_metrics": self.unknown_metrics,
        }


def check_coverage(adapter: Adapter, page: Page, names: Collection[str] | None = ()) -> SignalCoverage:
    """Compares a page with what its adapter can read. The page was read, so the target is up.

    ``names`` are all metric names, if the page is only a part of the target's; None: unknown.
    """
    present, missing, means, old = [adapter.up] if adapter.up else [], [], [], {}
    entities = LayoutEntities(adapter, page.layout)
    for signal, rules in adapter.rules.items():
        served = [rule for rule in rules if _served(rule, page, entities)]
        if not served:
            missing.append(_missing(adapter, signal, rules))
            continue
        present.append(signal)
        if {rule.statistic for rule in served} == {Statistic.MEAN}:
            better = tuple(rule for rule in rules if rule.statistic is not Statistic.MEAN)
            means.append(replace(_missing(adapter, signal, better), fix=f"collect.fix.{adapter.fixes.means}"))
        outdated = _outdated(served[0], page)
        if outdated:
            old[signal] = outdated
    missing.extend(_never(adapter))
    unknown = None if names is None else len(_unknown(adapter, page, names or page.names))
    return SignalCoverage(tuple(present), tuple(missing), old, unknown, tuple(means))


def _unknown(adapter: Adapter, page: Page, names: Collection[str]) -> set[str]:
    families = {_family(name, page) if page.types else _family_by_name(name, names) for name in names}
    return {name for name in families if not name.endswith("_created") and not _known(adapter, name)}


def _missing(adapter: Adapter, signal: str, rules: tuple[Rule, ...]) -> MissingSignal:
    """The missing metrics, with the configuration lines of the first rule that has some."""
    expected = tuple(dict.fromkeys(name for rule in rules for name in rule.shown))
    lines = ([adapter.fixes.lines[name] for name in rule.names if name in adapter.fixes.lines] for rule in rules)
    fix = adapter.fixes.signals.get(signal) or adapter.fixes.default or "own"
    chosen = tuple(dict.fromkeys(next((candidates for candidates in lines if candidates), [])))
    return MissingSignal(signal, expected, _FEATURES.get(signal, ()), f"collect.fix.{fix}", chosen)


def _never(adapter: Adapter) -> Iterator[MissingSignal]:
    """Core signals that features depend on and that this system publishes in no configuration."""
    layer = {EntityKind.REPLICA: Layer.ENGINE, EntityKind.NODE: Layer.HARDWARE}.get(adapter.target)
    provided = {*adapter.rules, *adapter.seen.values(), adapter.up, adapter.health, adapter.load} - {None}
    for name, signal in catalog.signals().items():
        core = signal.tier == "core" and signal.layer is layer and signal.entity in adapter.entities
        if (
            core
            and name in _FEATURES
            and not provided & {name, _INSTEAD.get(name)}
            and signal.entity is not EntityKind.NODE
        ):
            yield MissingSignal(name, (), _FEATURES[name], f"collect.fix.never_{layer}", (adapter.title,))


def _served(rule: Rule, page: Page, entities: LayoutEntities) -> bool:
    """True if the page has the metrics, and at least one of their series identifies an entity."""
    suffix = {Operator.HISTOGRAM: "_bucket"}.get(rule.operator, "")
    kind = catalog.signal(rule.signal).entity
    for term in rule.terms:
        names = tuple(name + suffix for name in term.metrics.on(page.names, suffix)) or term.beside.on(page.names)
        if not any(entities.of(kind, row) is not None for row in entities.matching(names)):
            return False
    return rule.type is None or all(page.types.get(name) == rule.type for name in rule.names if name in page.names)


def _outdated(served: Rule, page: Page) -> str | None:
    """The deprecated name in use: a later spelling of a list, or an alternative marked old."""
    suffix = {Operator.HISTOGRAM: "_bucket"}.get(served.operator, "")
    for term in served.terms if served.operator is not Operator.COUNT else ():  # for COUNT the names are alternatives
        used = term.metrics.on(page.names, suffix)
        newest = matching_names(term.metrics.first[0], page.names, suffix) if term.metrics.first else used
        if used and (served.old or used != newest):
            return used[0]
    return None


def _known(adapter: Adapter, family: str) -> bool:
    return adapter.reads(family) or any(adapter.reads(family + suffix) for suffix in HISTOGRAM_SUFFIXES)


def _family(name: str, page: Page) -> str:
    for suffix in HISTOGRAM_SUFFIXES:
        if name.endswith(suffix) and page.types.get(name.removesuffix(suffix)) in {"histogram", "summary"}:
            return name.removesuffix(suffix)
    return name


def _family_by_name(name: str, names: Collection[str]) -> str:
    """The same without metric types, as in a Prometheus."""
    for suffix in HISTOGRAM_SUFFIXES:
        family = name.removesuffix(suffix)
        if family != name and f"{family}_sum" in names and f"{family}_count" in names:
            return family
    return name
