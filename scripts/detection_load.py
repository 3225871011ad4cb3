"""Pictures of docs/explanation/detection/load.md and rules.md: load, the way in, and objectives."""

from __future__ import annotations

from pathlib import Path

from detection_lives import RECORDED, Planned, Series, of_fleet, of_recording, recorded
from detection_panels import Panel, grid, struck
from matplotlib.figure import Figure

from detectors.rules.burn_rate import compile_slos
from outrider.model import EntityKind, SignalKey
from outrider.vocabulary import catalog
from outrider.vocabulary.slo import Slo


def saturation(_: Path | None) -> Figure:
    """A ramp beyond what the engine can do: a queue, a full cache, and late first tokens."""
    ramp = recorded("c_ramp.metrics.jsonl.gz")
    said = ramp.spans("saturation", "surge")
    return grid(
        [
            Panel(
                "requests, with a ramp of the load (c_ramp)",
                {"waiting": ramp.series("engine_requests_waiting"), "running": ramp.series("engine_requests_running")},
                found=said,
            ),
            Panel("TTFT, 90 % (s)", {"": ramp.series("engine_ttft_seconds:0.9")}, found=said, limit=2.0),
            Panel("KV cache in use", {"": ramp.series("engine_kv_cache_usage_ratio")}, found=said, limit=0.95),
            Panel("tokens / scrape: they flow", {"": ramp.series("engine_generation_tokens_total")}, found=said),
        ],
        2,
    )


def services(_: Path | None) -> Figure:
    """Traffic, routing, the way in, answers and business, each struck alone in one afternoon of one fleet."""
    plan = [
        Planned("traffic-surge", 12, 8, "code-14b"),
        Planned("garbled-output", 12, 8, None),
        Planned("gateway-fault", 28, 8, "code-14b"),
        Planned("kpi-drop", 28, 8, "chat-70b"),
        Planned("traffic-skew", 44, 8, None),
        Planned("gpu-slow-peer", 60, 10, None),
    ]
    names = ("saturation", "surge", "validity", "entry", "kpi", "skew", "slowness", "outcomes")
    life = of_fleet(plan, 74, names)
    return grid(
        [
            struck(life, "requests of a service, a scrape", "traffic-surge", "svc_requests_total"),
            struck(life, "share of answers that are garbled", "garbled-output", "svc_output_invalid_ratio"),
            struck(life, "probe from outside (1 = success)", "gateway-fault", "probe_success"),
            struck(life, "business figure", "kpi-drop", "svc_kpi_value"),
            struck(life, "requests running at a replica", "traffic-skew", "engine_requests_running"),
            struck(life, "time between tokens of a slow replica (s)", "gpu-slow-peer", "engine_itl_seconds:0.5"),
        ],
        3,
    )


def burnrate(_: Path | None) -> Figure:
    """The error budget of an objective on first tokens while the engine is overloaded."""
    bounds = catalog.signal("svc_ttft_seconds").bounds
    within = sum(bound <= 1.0 for bound in bounds)
    buckets = tuple(SignalKey("svc_ttft_seconds", bucket=place) for place in range(len(bounds) + 1))
    slo = Slo("first-token", 0.995, bad=buckets[within:], total=buckets)
    life = of_recording(RECORDED / "c_ramp.metrics.jsonl.gz", compile_slos([slo]))
    times, share = life.series("svc_ttft_seconds:0.5")
    late = life.series("svc_ttft_seconds:0.99")
    return grid(
        [
            Panel(
                "TTFT of the service, median and 99 % (s); the objective is 99.5 % within 1 s (c_ramp)",
                {"median": (times, share), "99 %": late},
                found=life.spans(slo.detector),
                limit=1.0,
                log=True,
            )
        ],
        1,
    )


def outside(_: Path | None) -> Figure:
    """A certificate that ran out at one entry, and a cluster that answers nobody."""
    plan = [Planned("cert-or-dns", 6, 8, "code-14b"), Planned("cluster-lost", 20, 8, None)]
    life = of_fleet(plan, 30, ("outside",))
    shut, lost = (life.truths[fault][1] for fault in ("cert-or-dns", "cluster-lost"))
    shut_said, lost_said = life.spans("cert-or-dns"), life.spans("cluster-lost")
    held = life.truths["cert-or-dns"][0]
    other = next(one for one in life.topology.of_kind(EntityKind.SERVICE) if one != held)
    requests = "svc_requests_total"
    return grid(
        [
            Panel(f"probe of {held.name}: no certificate, then no cluster",
                  {"": life.series("probe_success", [held])}, [shut, lost], [*shut_said, *lost_said]),
            Panel(f"probe of {other.name}: it fails with the cluster",
                  {"": life.series("probe_success", [other])}, [lost], lost_said),
            Panel("days until the certificate is over, by the handshake",
                  {one.name: _days(life.series("probe_cert_expiry_seconds", [one])) for one in (held, other)},
                  [shut, lost], shut_said, limit=0.0, legend="lower left"),
            Panel("requests a scrape, by our own view of the services",
                  {one.name: life.series(requests, [one]) for one in (held, other)}, [shut, lost], lost_said,
                  from_zero=True, legend="lower left"),
        ],
        2,
    )  # fmt: skip


def _days(seconds: Series) -> Series:
    return seconds[0], seconds[1] / 86400.0


FIGURES = {"outside": outside, "saturation": saturation, "services": services, "burnrate": burnrate}
