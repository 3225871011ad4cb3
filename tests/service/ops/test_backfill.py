"""Imported history of a real Prometheus equals collected history."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from datetime import timedelta

import kept_pages  # type: ignore[import-not-found]
import numpy as np
import pytest
import yaml
from kept_pages import STEP
from typer.testing import CliRunner

from collectors.mapping import registry
from collectors.prometheus import recording_rules, source
from outrider.clock import rfc3339
from outrider.errors import UnavailableError, UsageError
from outrider.model import EntityKind, SignalKey
from service.cli.tree import app
from service.config.settings import Settings, StoreSettings
from service.ops import backfill
from service.wiring import stores as wiring_stores

SERVERS = ("prometheus", "promtool")
RUNNING, TOKENS = SignalKey("engine_requests_running"), SignalKey("engine_generation_tokens_total")


def api_calls(url: str) -> float:
    """Returns the API calls that a Prometheus has counted."""
    page = urllib.request.urlopen(f"{url}/metrics", timeout=10).read().decode()
    return sum(
        float(line.split()[-1])
        for line in page.splitlines()
        if line.startswith("prometheus_http_requests_total") and "/api/v1/" in line
    )


@pytest.mark.slow
@pytest.mark.live
def test_a_repeated_import_writes_the_same_values(tmp_path, monkeypatch) -> None:
    reason = kept_pages.missing(SERVERS)
    if reason is not None:
        pytest.skip(reason)
    fleet = kept_pages.kept_fleet(rounds=50)
    start, until = fleet.instants[0] - STEP, fleet.instants[-1] + STEP
    jobs = {scrape.target.adapter: scrape.target.adapter for scrape in fleet.scrapes}
    shares: list[float] = []
    other_folder = tmp_path / "tight"
    other_folder.mkdir()
    with kept_pages.prometheus(tmp_path, fleet) as url:
        settings = Settings.model_validate(
            {
                "cluster": "c",
                "store": {"url": f"sqlite:///{tmp_path}/o.db"},
                "collect": {"prometheus": {"url": url, "jobs": jobs}},
            }
        )
        first = backfill.run(settings, start, until, lambda _, share: shares.append(share))
        again = backfill.run(settings, start, until, lambda *_: None)
        before = api_calls(url)
        longer = backfill.run(settings, until - timedelta(days=15), until, lambda *_: None)
        queries = api_calls(url) - before
        monkeypatch.setattr(source, "_MOST_SAMPLES", 10_000)  # many spans of a few minutes each
        other = settings.model_copy(update={"store": StoreSettings(url=f"sqlite:///{other_folder}/o.db")})
        in_short_spans = backfill.run(other, start, until, lambda *_: None)
    assert first == again == in_short_spans
    assert {**longer, "from": first["from"]} == first
    assert queries < 80  # empty days need few queries
    assert first["targets"] == len({scrape.target.name for scrape in fleet.scrapes})
    assert first["values"] > 50_000
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    with wiring_stores.stores(settings) as (_, store):
        window = store.read_windows(EntityKind.REPLICA, (RUNNING, TOKENS), start, until, STEP)
    assert len(window.entities) >= 4
    assert np.isfinite(window.column(RUNNING)).sum(axis=1).min() == 50
    assert np.isfinite(window.column(TOKENS)).sum(axis=1).min() == 49  # the first scrape has no increase
    engine = next(scrape for scrape in reversed(fleet.scrapes) if scrape.target.name == window.entities[0].name)
    assert engine.body is not None
    lines = [line for line in engine.body.decode().splitlines() if line.startswith("vllm:num_requests_running")]
    assert window.column(RUNNING)[0][np.isfinite(window.column(RUNNING)[0])][-1] == float(lines[0].split()[-1])


def test_import_requires_a_prometheus_and_a_span(tmp_path) -> None:
    at = kept_pages.START
    settings = Settings.model_validate({"store": {"url": f"sqlite:///{tmp_path}/o.db"}})
    with pytest.raises(UsageError, match="no Prometheus"):
        backfill.run(settings, at, at + STEP, lambda *_: None)
    configured = {
        "store": {"url": f"sqlite:///{tmp_path}/o.db"},
        "collect": {"prometheus": {"url": "http://127.0.0.1:9"}},
    }
    with pytest.raises(UsageError, match="empty"):
        backfill.run(Settings.model_validate(configured), at, at, lambda *_: None)
    with pytest.raises(UnavailableError, match="could not be read beyond"):
        backfill.run(Settings.model_validate(configured), at, at + timedelta(hours=1), lambda *_: None)


def test_the_command_requires_a_prometheus(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["collect", "backfill", "--since", rfc3339(kept_pages.START), "-o", "json"])
    assert isinstance(result.exception, UsageError)


@pytest.mark.live
def test_promtool_accepts_every_recording_rule(tmp_path) -> None:
    reason = kept_pages.missing(("promtool",))
    if reason is not None:
        pytest.skip(reason)
    document, left_out = recording_rules.rules(registry.ADAPTERS, jobs={"mindie": ["npu-serving", "it's"]})
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    result = subprocess.run(["promtool", "check", "rules", str(file)], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    rules = [rule for group in document["groups"] for rule in group["rules"]]
    assert f"SUCCESS: {len(rules)} rules found" in result.stdout
    recorded = {rule["record"].split(":")[1] for rule in rules}
    expected = {signal for name in registry.ADAPTERS for signal in registry.adapter(name).rules}
    assert expected - recorded == {signal for missing in left_out.values() for signal in missing} - recorded
    assert len(expected - recorded) <= 5
    (group,) = [group for group in document["groups"] if group["name"] == "outrider_mindie"]
    assert all('job=~"npu\\\\-serving|it\'s"' in rule["expr"] for rule in group["rules"])


def test_rules_are_printed_for_one_adapter(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["collect", "rules", "--adapter", "vllm", "--window", "2m", "-o", "json"])
    assert result.exit_code == 0, result.output
    (group,) = json.loads(result.stdout)["groups"]
    running = next(rule for rule in group["rules"] if rule["record"] == "outrider:engine_requests_running")
    assert "vllm:num_requests_running" in running["expr"]
    assert any("[2m]" in rule["expr"] for rule in group["rules"])
    wrong = CliRunner().invoke(app, ["collect", "rules", "--adapter", "vlm"])
    assert isinstance(wrong.exception, UsageError)
