from __future__ import annotations

import numpy as np
import pytest

from detectors.engine.prefix_cache import PrefixCacheDetector
from outrider.model import EntityKind, EntityRef, NoVerdictReason
from outrider.topology import Topology
from outrider.vocabulary.catalog import signal

START = 1_800_000_000.0
LENGTH, FAULT = 90, 66
R, SVC = EntityKind.REPLICA, EntityRef("lab", EntityKind.SERVICE, "default", "chat")
NAMES = ("r0", "r1", "r2", "r3")
TOPOLOGY = Topology.build([(EntityRef("lab", R, "default", name), SVC) for name in NAMES])
LATE = ((0.5, 0.1), (20_000.0, 100_000.0))  # hit ratio and prompt tokens before and after the change
FIRSTS = len(signal("engine_ttft_seconds").bounds) + 1
BUCKETS = len(signal("engine_prompt_length_tokens").bounds) + 1


def replica(after=0.5, *, before=0.5, prompt=1000.0, longer=1.0, started=-9000.0, length=LENGTH):
    """Hit ratio and mean prompt length; ``after`` and ``longer`` apply from FAULT on."""
    lengths = [prompt if column < FAULT else prompt * longer for column in range(length)]
    return {
        "engine_prefix_cache_hit_ratio": [before if column < FAULT else after for column in range(length)],
        "engine_start_time_seconds": [START + started] * length,
        **{f"engine_prompt_length_tokens#{i}": [20.0 if i == 3 else 0.0] * length for i in range(BUCKETS)},
        "engine_prompt_length_tokens#-1": [20.0 * value for value in lengths],
    }


@pytest.fixture
def find(window_of, findings_of):
    def run(verdicts=None, **rows):
        rows = {name: rows.get(name, replica()) for name in NAMES}
        findings = findings_of(PrefixCacheDetector(), window_of(R, rows), TOPOLOGY, verdicts=verdicts)
        return [(item.fault, item.entity) for item in findings]

    return run


def test_a_steady_hit_ratio_has_no_finding(find):
    assert find() == []


def test_a_low_hit_ratio_of_all_caches_is_reported(find):
    assert find(**{name: replica(0.05) for name in NAMES}) == [("prefix-cache-collapse", SVC)]


def test_one_cache_alone_is_not_the_service(find):
    assert find(r0=replica(0.05)) == []


def test_longer_prompts_with_the_same_prefix_are_a_different_mix(find):
    assert find(**{name: replica(0.2, longer=5.0) for name in NAMES}) == []


def test_prompts_that_have_just_become_longer_are_not_a_collapse(find):
    """The requests that ended so far are those with short prompts: their length does not show the change yet."""
    begins = LENGTH - 10
    ratio, tokens = ([first if column < begins else later for column in range(LENGTH)] for first, later in LATE)
    row = {
        **replica(),
        "engine_prefix_cache_hit_ratio": ratio,
        "engine_prompt_tokens_total": tokens,
        **{f"engine_ttft_seconds#{i}": [20.0 if i == 3 else 0.0] * LENGTH for i in range(FIRSTS)},
    }
    assert find(**dict.fromkeys(NAMES, row)) == []


def test_an_always_low_hit_ratio_has_no_finding(find):
    assert find(**{name: replica(0.0, before=0.05) for name in NAMES}) == []


def test_new_processes_have_cold_caches(find):
    assert find(**{name: replica(0.05, started=5.0 * FAULT) for name in NAMES}) == []


def test_without_prompt_lengths_the_ratio_decides(find):
    rows = {name: {k: v for k, v in replica(0.05).items() if "prompt" not in k} for name in NAMES}
    assert find(**rows) == [("prefix-cache-collapse", SVC)]


@pytest.mark.parametrize("values", [[None] * LENGTH, [0.0] * LENGTH])
def test_no_baseline_gives_no_finding(find, values):
    verdicts = []
    rows = {name: {**replica(), "engine_prefix_cache_hit_ratio": values} for name in NAMES}
    assert find(verdicts, **rows) == []
    assert [item.reason for item in verdicts] == [NoVerdictReason.WARMING_UP]


@pytest.mark.parametrize("length", [1, 2])
def test_the_first_scrapes_give_no_finding(find, length):
    assert find(**{name: replica(0.0, length=length) for name in NAMES}) == []


def test_a_dip_of_two_scrapes_has_no_finding(find):
    ratio = np.full(LENGTH, 0.5)
    ratio[-2:] = 0.0
    rows = {name: {**replica(), "engine_prefix_cache_hit_ratio": ratio.tolist()} for name in NAMES}
    assert find(**rows) == []
