"""``collect once`` and ``doctor`` report the same for a Prometheus as for the metrics pages themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import kept_pages  # type: ignore[import-not-found]
import pytest

from collectors.exposition.parser import Parser
from collectors.mapping import registry
from collectors.mapping.coverage import check_coverage
from outrider.clock import ManualClock
from outrider.errors import UnavailableError
from service.cli.ops.collect import _doctor_table
from service.config.settings import Settings
from service.ops import one_off_collect

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def kept() -> Any:
    return kept_pages.kept_fleet(rounds=4)


@pytest.fixture(scope="module")
def url(kept: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    why = kept_pages.missing(("prometheus", "promtool"))
    if why is not None:
        pytest.skip(why)
    with kept_pages.prometheus(tmp_path_factory.mktemp("prometheus"), kept) as found:
        yield found


def settings_of(url: str, **more: Any) -> Settings:
    return Settings.model_validate({"cluster": "c", "collect": {"prometheus": {"url": url, **more}}})


@pytest.mark.slow
def test_doctor_reports_the_same_as_for_metrics_pages(kept: Any, url: str) -> None:
    last = kept.instants[-1]
    jobs = {one.target.adapter: one.target.adapter for one in kept.scrapes}
    found = asyncio.run(
        one_off_collect.doctor(settings_of(url, jobs=jobs), (), ManualClock(last + kept_pages.STEP / 3))
    )
    by_name = {one["target"]: one for one in found["targets"]}
    assert len(by_name) == len(kept.round(last))
    for scrape in kept.round(last):
        page = Parser().parse(scrape.body)
        mine = check_coverage(registry.adapter(scrape.target.adapter), page).as_dict()
        theirs = by_name[f"{scrape.target.adapter}/{scrape.target.name}"]
        assert theirs["error"] is None
        for key in ("present", "missing", "means_only", "old_spellings", "unknown_metrics"):
            assert theirs[key] == mine[key], (scrape.target.name, key)
    assert found["jobs_without_adapter"] == []
    shown = _doctor_table(found)
    assert "similar targets" in shown
    assert len([line for line in shown.splitlines() if "signals present" in line]) < len(by_name)


@pytest.mark.slow
def test_adapters_of_jobs_are_detected_and_the_rest_is_listed(kept: Any, url: str) -> None:
    clock = ManualClock(kept.instants[-1] + kept_pages.STEP / 3)
    found = asyncio.run(one_off_collect.doctor(settings_of(url, jobs={"vllm": "vllm"}), (), clock))
    adapters = {one["target"].split("/")[0] for one in found["targets"]}
    every = {one.target.adapter for one in kept.scrapes}
    assert {"vllm", "dcgm", "node_exporter"} <= adapters
    assert set(found["jobs_without_adapter"]) == every - adapters


def test_one_collection_is_the_newest_scrape_only(kept: Any, url: str) -> None:
    clock = ManualClock(kept.instants[-1] + kept_pages.STEP / 3)
    found = asyncio.run(one_off_collect.once(settings_of(url), (), clock))
    answers = [
        (str(one["entity"]), one["signal"], one.get("quantile"), one.get("statistic"))
        for one in found["signals"]
        if one["entity"]["kind"] == "replica"
    ]
    assert len(answers) > 100
    assert len(answers) == len(set(answers))


def test_an_unreachable_prometheus_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="unreachable"):
        asyncio.run(one_off_collect.doctor(settings_of("http://127.0.0.1:9"), (), ManualClock(kept_pages.START)))
