"""The screen of pages that are read early."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from collectors.mapping import registry
from collectors.mapping.target import Target
from collectors.pipeline.early_screen import EarlyScreen
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef

AT = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
NODE = Target("dcgm/a", "dcgm", "http://a/metrics", EntityRef("c", EntityKind.NODE, None, "a"))
ENGINE = Target("vllm/a", "vllm", "http://a/metrics", EntityRef("c", EntityKind.REPLICA, "llm", "a"))
PAGE = (
    b'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 0\nDCGM_FI_DEV_XID_ERRORS{gpu="1"} 0\n'
    b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 50\nDCGM_FI_DEV_XID_ERRORS_OTHER{gpu="0"} 1\n'
    b'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0"} 0'
)


def scrape(body: bytes | None, target: Target = NODE, **more: object) -> Scrape:
    return Scrape(target, AT, body, None, 0.01, **more)  # type: ignore[arg-type]


@pytest.fixture
def screen() -> EarlyScreen:
    made = EarlyScreen(registry.adapter)
    assert not made.selects(scrape(PAGE)), "the first page is a baseline"
    return made


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'XID_ERRORS{gpu="1"} 0', b'XID_ERRORS{gpu="1"} 79'),
        (b'DCGM_FI_DEV_XID_ERRORS{gpu="0"} 0\n', b""),
        (b'VOL_TOTAL{gpu="0"} 0', b'VOL_TOTAL{gpu="0"} 1'),
    ],
    ids=["first line", "missing device", "last line"],
)
def test_a_change_that_hard_fault_rules_read_is_selected_once(screen: EarlyScreen, old: bytes, new: bytes) -> None:
    changed = PAGE.replace(old, new)
    assert changed != PAGE
    assert screen.selects(scrape(changed))
    assert not screen.selects(scrape(changed))


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'GPU_TEMP{gpu="0"} 50', b'GPU_TEMP{gpu="0"} 51'), (b'ERRORS_OTHER{gpu="0"} 1', b'ERRORS_OTHER{gpu="0"} 2')],
    ids=["temperature", "longer name"],
)
def test_any_other_change_waits_for_the_round(screen: EarlyScreen, old: bytes, new: bytes) -> None:
    assert not screen.selects(scrape(PAGE.replace(old, new)))


def test_a_failed_scrape_keeps_the_baseline(screen: EarlyScreen) -> None:
    error = CollectError("refused", reason=CollectReason.REFUSED)
    assert not screen.selects(replace(scrape(None), error=error)), "an exporter that is away says nothing about a GPU"
    assert not screen.selects(scrape(PAGE))


def test_a_forgotten_target_starts_over(screen: EarlyScreen) -> None:
    screen.forget(NODE.name)
    assert not screen.selects(scrape(PAGE.replace(b'gpu="1"} 0', b'gpu="1"} 79')))


def test_an_engine_is_selected_when_it_refuses_or_reports_itself_unhealthy(screen: EarlyScreen) -> None:
    refused = CollectError("refused", reason=CollectReason.REFUSED)
    late = CollectError("late", reason=CollectReason.TIMEOUT)
    assert screen.selects(replace(scrape(None, ENGINE), error=refused))
    assert not screen.selects(replace(scrape(None, ENGINE), error=late))
    assert screen.selects(scrape(b"vllm:num_requests_running 1\n", ENGINE, probed=True, health=503))
    assert not screen.selects(scrape(b"vllm:num_requests_running 1\n", ENGINE, probed=True, health=200))
