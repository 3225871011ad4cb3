"""Signals of each adapter equal the results of a real Prometheus on the same two pages.

``expressions.yaml`` defines each signal of each system in PromQL. ``as`` is set if our entity differs from the one
of the expression, or if one page cannot contain what Prometheus joins; ``why`` is the reason.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from two_pages import INTERVAL_SECONDS, pages, prometheus_with, stamped  # type: ignore[import-not-found]

from collectors.mapping.model import QUANTILES, Statistic
from collectors.mapping.registry import adapter
from outrider.model import CellStatus, SignalKey, SignalKind
from outrider.vocabulary import catalog

HERE = Path(__file__).parent.parent
EXPRESSIONS = yaml.safe_load((HERE / "expressions.yaml").read_text(encoding="utf-8"))
FILES = {system: HERE / "pages" / f"{system}.txt" for system in EXPRESSIONS}
# A millisecond more than the interval, so that both samples are inside whether or not the left end counts.
WINDOW = f"{INTERVAL_SECONDS}001ms"
SOURCES = [(system, signal) for system, case in EXPRESSIONS.items() for signal in case["signals"]]


@pytest.fixture(scope="module")
def requested(tmp_path_factory):
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("missing: prometheus and promtool (Debian package prometheus)")
    with prometheus_with(tmp_path_factory.mktemp("prometheus"), FILES) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def any_value():
    """Random numbers such that no terms cancel out; ratios may exceed 1."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog.Signal, "plausible", (-np.inf, np.inf))
        yield


@pytest.fixture(scope="module")
def benches(bench):
    """Every system after its second scrape."""
    found = {}
    for system, path in FILES.items():
        case = EXPRESSIONS[system]
        target = bench(system, **({"entity": case["entity"]} if "entity" in case else {}))
        for page in pages(path):
            at = target.at.timestamp() + INTERVAL_SECONDS
            target.scrape(stamped(page, at) if case.get("stamped") else page)
        found[system] = target
    return found


def expression(system: str, signal: str, quantile: float | None = None, *, since_start: bool = False) -> str:
    case = EXPRESSIONS[system]["signals"][signal]
    text = case if isinstance(case, str) else case["as"]
    if since_start:
        text = re.sub(r"rate\(([^()]*)\[\$w\]\)", r"\1", text)
    text = text.replace("$w", WINDOW).replace("$by", ", ".join(EXPRESSIONS[system].get("by", ())))
    return text if quantile is None else text.replace("$q", f"{quantile}")


def ours(one, key: SignalKey) -> list[float]:
    kind = catalog.signal(key.name).entity
    batch = one.batch(kind)
    column = batch.keys.index(key)
    there = batch.status[:, column] == CellStatus.PRESENT
    return sorted(batch.values[there, column].tolist())


def agrees(found: list[float], wanted: list[float]) -> None:
    assert wanted, "Prometheus finds nothing: this page cannot show anything"
    assert found == pytest.approx(wanted, rel=2e-4, abs=1e-9)


@pytest.mark.live
@pytest.mark.parametrize(("system", "signal"), SOURCES, ids=lambda part: part)
def test_signals_equal_promql_results(system, signal, requested, benches) -> None:
    known, one = catalog.signal(signal), benches[system]
    reported = {rule.statistic for rule in adapter(system).rules[signal]}
    text = expression(system, signal)
    if known.kind is SignalKind.HISTOGRAM and "$q" in text:
        for quantile in QUANTILES:
            _quantiles_agree(one, signal, requested.values(system, expression(system, signal, quantile)), quantile)
            since_start = requested.values(system, expression(system, signal, quantile, since_start=True))
            _since_start_agrees(one, signal, quantile, since_start)
    elif known.kind is SignalKind.HISTOGRAM:
        assert Statistic.MEAN in reported
        agrees(ours(one, SignalKey(signal)), requested.values(system, text))
    elif known.kind is SignalKind.DELTA:
        now, then = requested.vector(system, text), requested.vector(system, text, before=True)
        agrees(ours(one, SignalKey(signal)), sorted(value - then[labels] for labels, value in now.items()))
    else:
        agrees(ours(one, SignalKey(signal)), requested.values(system, text))


def _quantiles_agree(one, signal: str, wanted: list[float], quantile: float) -> None:
    """After two scrapes: in the bucket of the Prometheus result, or in a neighboring one."""
    known = catalog.signal(signal)
    batch = one.batch(known.entity)
    columns = [batch.keys.index(key) for key in known.bucket_keys[:-1]]
    there = (batch.status[:, columns] == CellStatus.PRESENT).all(axis=1)
    values, _ = catalog.bucket_quantile(batch.values[there][:, columns], known.bounds, quantile)
    found = sorted(values[np.isfinite(values)].tolist())
    assert len(found) == len(wanted)
    assert wanted
    bounds = (0.0, *known.bounds, known.bounds[-1])
    for mine, theirs in zip(found, wanted, strict=True):
        place = sum(bound < theirs for bound in known.bounds)
        assert bounds[max(place - 1, 0)] <= mine <= bounds[min(place + 2, len(bounds) - 1)], (mine, theirs)


def _since_start_agrees(one, signal: str, quantile: float, wanted: list[float]) -> None:
    """From a single page: the exact number, unless it is below the first bound."""
    found = one.normaliser.since_start(one.target, one.page)
    rows = sorted((row.value, row.below) for row in found if (row.signal, row.quantile) == (signal, quantile))
    assert len(rows) == len(wanted)
    for (mine, below), theirs in zip(rows, wanted, strict=True):
        assert theirs <= mine if below else mine == pytest.approx(theirs, rel=1e-6)


def test_every_difference_has_a_reason() -> None:
    for system, case in EXPRESSIONS.items():
        for signal, one in case["signals"].items():
            if not isinstance(one, str):
                assert one.keys() == {"expr", "as", "why"}, (system, signal)
                assert one["why"]
        assert set(case["signals"]) <= set(adapter(system).rules), system
