from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from detector_events import log_event  # type: ignore[import-not-found]

from detectors.engine.engine_logs import EngineLogDetector
from outrider.model import EntityKind, EntityRef
from outrider.text.i18n import LANGUAGES, translate

REPLICA = EntityRef("lab", EntityKind.REPLICA, "default", "r0")


@pytest.fixture
def find(window_of, findings_of):
    def run(events, length=12):
        window = window_of(EntityKind.REPLICA, {"r0": {"engine_up": [1.0] * length}}, events=events)
        return findings_of(EngineLogDetector(), window)

    return run


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("cuda_oom", "gpu-oom"),
        ("memory_fragmented", "gpu-memory-fragmentation"),
        ("nccl_timeout", "nccl-timeout"),
        ("weights_corrupt", "model-load-failed"),
        ("weights_missing", "model-load-failed"),
        ("kv_cache_too_small", "model-load-failed"),
    ],
)
def test_each_log_pattern_maps_to_a_fault(find, code, fault):
    assert [(item.fault, item.entity) for item in find([log_event(REPLICA, code, 20, "a line")])] == [(fault, REPLICA)]


@pytest.mark.parametrize("code", ["engine_dead", "cuda_error", "wake", "nccl_error", "worker_died"])
def test_log_lines_without_a_cause_give_no_finding(find, code):
    assert find([log_event(REPLICA, code, 20)]) == []


def test_a_log_line_is_reported_and_counted(find):
    (finding,) = find(
        [log_event(REPLICA, "cuda_oom", 20, "one"), log_event(REPLICA, "cuda_oom", 50, "two", lines_before="3")]
    )
    assert finding.observed == 5.0
    for language in LANGUAGES:
        assert "two" in translate(finding.evidence[0].text, language, **finding.evidence[0].arguments)


def test_past_and_future_log_lines_are_ignored(find):
    assert find([log_event(REPLICA, "cuda_oom", 10)], length=240) == []
    assert find([log_event(REPLICA, "cuda_oom", 900)]) == []
