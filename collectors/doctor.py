"""Which signals a page gives, which it lacks, and what that costs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from collectors.adapter import HISTOGRAM_SUFFIXES, Adapter, Operator, Rule
from collectors.exposition import Page
from outrider.i18n import Language, translate

# What rests on a signal, as i18n keys of area ``collect``. Signals not named here are context.
_FEATURES: dict[str, tuple[str, ...]] = {
    "engine_generation_tokens_total": ("hung_engine", "capacity"),
    "engine_iterations_total": ("hung_engine",),
    "engine_requests_running": ("hung_engine", "saturation", "capacity"),
    "engine_requests_waiting": ("hung_engine", "saturation"),
    "engine_sleep_state": ("asleep_engine",),
    "engine_kv_cache_usage_ratio": ("saturation", "memory_rule"),
    "engine_memory_reserved_ratio": ("memory_rule",),
    "engine_ttft_seconds": ("ttft_alert", "slo"),
    "engine_tpot_seconds": ("kernel_regression", "slo"),
    "engine_e2e_seconds": ("slo",),
    "engine_http_requests_total": ("availability", "forecast"),
    "engine_http_failed_total": ("availability",),
    "engine_start_time_seconds": ("restarts",),
    "engine_open_files": ("hung_engine",),
    "hw_accel_present": ("gpu_lost",),
    "hw_accel_temperature_celsius": ("throttling", "gpu_lost"),
    "hw_accel_throttle_thermal_ratio": ("throttling",),
    "hw_accel_throttle_power_ratio": ("throttling",),
    "hw_accel_fault_code": ("xid",),
    "hw_accel_fault_events": ("repeated_xid",),
    "hw_accel_ecc_uncorrectable_total": ("ecc",),
    "hw_accel_ecc_correctable_total": ("ecc",),
    "hw_accel_row_remap_failed": ("ecc",),
    "hw_accel_memory_used_ratio": ("memory_rule",),
    "hw_accel_interconnect_errors_total": ("link_faults",),
    "node_accel_capacity": ("gpu_lost",),
    "node_ready": ("node_lost",),
    "node_filesystem_available_ratio": ("disk_full",),
    "pod_phase": ("crash_loop",),
    "pod_restarts": ("crash_loop",),
}


@dataclass(frozen=True, slots=True)
class Missing:
    """A signal the page does not give. ``expected`` are metric names, the newest spelling first."""

    signal: str
    expected: tuple[str, ...]
    disables: tuple[str, ...]
    fix: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``old_spellings`` maps a signal to the outdated name the page uses for it."""

    present: tuple[str, ...]
    missing: tuple[Missing, ...]
    old_spellings: dict[str, str]
    unknown_metrics: int

    def as_dict(self, language: Language = "en") -> dict[str, Any]:
        """The JSON of ``outrider doctor`` for one target; features and fixes in the reader's language."""
        return {
            "present": list(self.present),
            "missing": [
                {
                    "signal": one.signal,
                    "expected": list(one.expected),
                    "disables": [translate(f"collect.feature.{name}", language) for name in one.disables],
                    "fix": translate(one.fix, language, metrics=", ".join(one.expected)),
                }
                for one in self.missing
            ],
            "old_spellings": dict(self.old_spellings),
            "unknown_metrics": self.unknown_metrics,
        }


def examine(adapter: Adapter, page: Page) -> Diagnosis:
    """Compare a page with what its adapter can read. Signals of the scrape itself are left out."""
    present, missing, old = [], [], {}
    for signal, rules in adapter.rules.items():
        served = next((rule for rule in rules if _served(rule, page)), None)
        if served is None:
            expected = tuple(dict.fromkeys(name for rule in rules for name in rule.names))
            missing.append(Missing(signal, expected, _FEATURES.get(signal, ()), f"collect.fix.{adapter.name}"))
            continue
        present.append(signal)
        outdated = _outdated(served, rules[0], page)
        if outdated:
            old[signal] = outdated
    families = {_family(name, page) for name in page.names}
    known = {_family(name, page) for name in adapter.metric_names} | adapter.metric_names
    unknown = {name for name in families - known if not name.endswith("_created")}
    return Diagnosis(tuple(present), tuple(missing), old, len(unknown))


def _served(rule: Rule, page: Page) -> bool:
    suffix = "_bucket" if rule.operator is Operator.HISTOGRAM else ""
    return all(term.metrics.on(page.names, suffix) or term.beside.on(page.names) for term in rule.terms) and (
        rule.type is None or all(page.types.get(name) == rule.type for name in rule.names if name in page.names)
    )


def _outdated(served: Rule, newest: Rule, page: Page) -> str | None:
    """The old name in use: a later spelling of a list, or a later alternative of the signal."""
    suffix = "_bucket" if served.operator is Operator.HISTOGRAM else ""
    for term in served.terms:
        used = term.metrics.on(page.names, suffix)
        if term.metrics.first and used and used[0] != term.metrics.first[0] and not _exporters(term.metrics.first):
            return used[0]
    return served.names[0] if served is not newest and served.type is None and newest.type is None else None


def _exporters(names: tuple[str, ...]) -> bool:
    """True where a list names stand-ins, any of which will do, rather than spellings of one metric."""
    return len(names) > 3


def _family(name: str, page: Page) -> str:
    for suffix in HISTOGRAM_SUFFIXES:
        if name.endswith(suffix) and page.types.get(name.removesuffix(suffix)) in {"histogram", "summary"}:
            return name.removesuffix(suffix)
    return name
