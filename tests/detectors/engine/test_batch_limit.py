from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from detectors.engine.batch_limit import BatchLimitDetector, limit_of
from outrider.model import EntityKind, Event, EventKind, Finding, NoVerdictReason, Window
from outrider.topology import Topology

LENGTH, CHANGED = 40, 25
START, STEP = 1_800_000_000.0, 5.0


@pytest.fixture
def find(window_of, findings_of, ref):
    """Findings of a service of three replicas after changes (scrape, code, before, after)."""

    def run(*changes, running=(50.0, 60.0, 55.0), verdicts=None):
        chat = ref(EntityKind.SERVICE, "chat")
        events = [
            Event(
                f"change-{number}",
                EventKind.CHANGE,
                chat,
                datetime.fromtimestamp(START + STEP * scrape, tz=UTC),
                "test",
                code,
                {"from": before, "to": after},
            )
            for number, (scrape, code, before, after) in enumerate(changes)
        ]
        column = [[value] * CHANGED + [min(value, 20.0)] * (LENGTH - CHANGED) for value in running]
        rows = {f"chat-{n}": {"engine_requests_running": values} for n, values in enumerate(column)}
        window = window_of(EntityKind.REPLICA, rows, events=events)
        topology = Topology.build(
            [(one, chat) for one in window.entities], at=events[0].at if events else datetime.now(UTC)
        )
        return findings_of(BatchLimitDetector(), window, topology, verdicts=verdicts)

    return run


LOWERED = (CHANGED, "flags", "--max-num-seqs=96", "--max-num-seqs=32")


def test_a_limit_below_past_batches_is_reported_before_requests_queue(find):
    (item,) = find(LOWERED)
    assert (item.fault, item.entity.name) == ("batch-misconfigured", "chat")
    assert item.evidence[0].text == "findings.batch_limit_lowered"
    assert dict(item.evidence[0].arguments) == {"needed": "55", "limit": "32", "before": "96"}
    assert item.window.start.timestamp() == START + STEP * CHANGED


@pytest.mark.parametrize(
    ("change", "running"),
    [
        ((CHANGED, "flags", "--max-num-seqs=96", "--max-num-seqs=64"), (50.0, 60.0, 55.0)),  # room is left
        ((CHANGED, "flags", "--max-num-seqs=16", "--max-num-seqs=32"), (50.0, 60.0, 55.0)),  # raised
        ((CHANGED, "flags", "--seed=1", "--seed=2"), (50.0, 60.0, 55.0)),
        ((CHANGED, "rollout", "--max-num-seqs=96", "--max-num-seqs=32"), (50.0, 60.0, 55.0)),
        (LOWERED, (10.0, 60.0, 12.0)),  # one replica had more for a moment
    ],
)
def test_a_sufficient_limit_is_not_reported(find, change, running):
    assert find(change, running=running) == []


@pytest.mark.parametrize(
    "back",
    [
        (35, "rollback", "", ""),
        (35, "flags", "--max-num-seqs=32", "--max-num-seqs=96"),
        (35, "flags", "--max-num-seqs=32", ""),
    ],
)
def test_a_finding_ends_when_the_limit_is_restored(find, back):
    assert find(LOWERED, back) == []


def test_a_later_change_of_another_flag_keeps_the_finding(find):
    (item,) = find(LOWERED, (35, "flags", "", "--seed=2"))
    assert item.window.start.timestamp() == START + STEP * CHANGED


@pytest.fixture
def rolled(window_of, now_of, ref):
    """Findings after the limit is lowered and the pods are replaced in steps."""

    def run(*generations, back=False, back_at=None):
        back_at = len(generations) - 1 if back else back_at
        chat, detector = ref(EntityKind.SERVICE, "chat"), BatchLimitDetector()
        state, verdicts = detector.initial(), ()
        for number, names in enumerate(generations):
            begun = START + 300.0 * number
            running = 55.0 if number == 0 else 20.0
            events = []
            if number >= 1:
                events.append(changed(chat, START + 290.0, "--max-num-seqs=96", "--max-num-seqs=32"))
            if number == back_at:
                events.append(changed(chat, begun, "--max-num-seqs=32", "--max-num-seqs=96"))
            rows = {name: {"engine_requests_running": [running] * 3} for name in names}
            window = window_of(EntityKind.REPLICA, rows, events=events, start=begun)
            window = window if names else none_there(window, begun)
            topology = Topology.build([(one, chat) for one in window.entities], (chat,), at=now_of(window))
            state, verdicts = detector.detect(state, window, topology, now_of(window))
        return [(one.fault, dict(one.evidence[0].arguments)) for one in verdicts if isinstance(one, Finding)]

    return run


def none_there(window, begun):
    """The same cycles without replicas."""
    times, keys = begun + STEP * np.arange(3), BatchLimitDetector.keys
    nothing = np.zeros((0, 3, len(keys)))
    return Window(window.kind, (), times, keys, nothing, nothing.astype(np.uint8), window.step, window.events)


def changed(entity, at, before, after):
    when = datetime.fromtimestamp(at, tz=UTC)
    return Event(f"change-{at}", EventKind.CHANGE, entity, when, "test", "flags", {"from": before, "to": after})


@pytest.mark.parametrize(
    "generations",
    [
        (("a-0", "a-1"), ("a-0", "a-1"), ("b-0", "b-1")),  # all at once
        (("a-0", "a-1"), ("b-0", "a-1"), ("b-0", "b-1"), ("b-0", "c-1")),
        (("a-0", "a-1"), ("b-0", "b-1")),  # they are there before the change is read
    ],
)
def test_a_rollout_does_not_end_the_finding(rolled, generations):
    assert rolled(*generations) == [("batch-misconfigured", {"needed": "55", "limit": "32", "before": "96"})]
    assert rolled(*generations, generations[-1], back=True) == []


EMPTY = ()


@pytest.mark.parametrize(
    "generations",
    [
        (("a-0", "a-1"), ("a-0", "a-1"), EMPTY, ("b-0", "b-1")),  # the change is read before they leave
        (("a-0", "a-1"), EMPTY, EMPTY, ("b-0", "b-1")),  # while none is there
        (("a-0", "a-1"), ("a-0", "a-1"), EMPTY, ("b-0", "b-1"), EMPTY, ("c-0",)),  # twice
    ],
)
def test_the_state_of_a_service_outlives_its_last_replica(rolled, generations):
    assert rolled(*generations) == [("batch-misconfigured", {"needed": "55", "limit": "32", "before": "96"})]
    assert rolled(*generations, generations[-1], back=True) == []


def test_a_limit_raised_without_replicas_ends_the_finding(rolled):
    assert rolled(("a-0", "a-1"), ("a-0", "a-1"), EMPTY, back=True) == []
    raised = rolled(("a-0", "a-1"), ("a-0", "a-1"), EMPTY, EMPTY, ("b-0",), back_at=3)
    assert raised == []


def test_a_day_after_its_last_replica_a_service_is_forgotten(window_of, now_of, ref):
    detector, chat = BatchLimitDetector(), ref(EntityKind.SERVICE, "chat")
    state = detector.initial()
    for begun, names in ((START, ("a-0",)), (START + 60.0, ()), (START + 2 * 86400.0, ())):
        rows = {name: {"engine_requests_running": [55.0] * 3} for name in names}
        window = window_of(EntityKind.REPLICA, rows or {"x": {}}, start=begun)
        window = window if names else none_there(window, begun)
        topology = Topology.build([(one, chat) for one in window.entities], (chat,), at=now_of(window))
        state, _ = detector.detect(state, window, topology, now_of(window))
        if begun == START + 60.0:
            assert state.arrays["kept_busiest"].tolist() == [55.0]
    assert state.arrays["kept_busiest"].size == 0


def test_a_replica_of_another_service_inherits_no_state(window_of, now_of, ref):
    detector = BatchLimitDetector()
    chat, code = ref(EntityKind.SERVICE, "chat"), ref(EntityKind.SERVICE, "code")
    lowered = changed(chat, START + 10.0, "--max-num-seqs=96", "--max-num-seqs=32")
    first = window_of(EntityKind.REPLICA, {"chat-0": {"engine_requests_running": [55.0] * 3}})
    state, _ = detector.detect(
        detector.initial(), first, Topology.build([(first.entities[0], chat)], at=now_of(first)), now_of(first)
    )
    rows = {name: {"engine_requests_running": [5.0] * 3} for name in ("chat-1", "code-0")}
    then = window_of(EntityKind.REPLICA, rows, events=[lowered], start=START + 20.0)
    topology = Topology.build(zip(then.entities, (chat, code), strict=True), at=now_of(then))
    state, verdicts = detector.detect(state, then, topology, now_of(then))
    assert [one.entity.name for one in verdicts] == ["chat"]
    assert state.arrays["busiest"][1] == 5.0
    assert np.isnan(state.arrays["limit"][1])


def test_engines_without_a_batch_metric_have_no_verdict(window_of, findings_of):
    verdicts = []
    window = window_of(EntityKind.REPLICA, {"chat-0": {"engine_up": [1.0] * 5}})
    assert findings_of(BatchLimitDetector(), window, verdicts=verdicts) == []
    assert verdicts[0].reason is NoVerdictReason.NO_VALUES


@pytest.mark.parametrize(
    ("flags", "limit"),
    [
        ("--max-num-seqs=32", 32.0),
        ("--max-num-seqs 32 --seed=1", 32.0),
        ("--max-running-requests=48", 48.0),
        ("max_batch_size: 16", 16.0),
        ("max_batch_size: 0", np.nan),
        ("--max-num-seqs -1", np.nan),
        ("--max-num-seqs=-1 --seed=1", np.nan),
        ('"maxBatchSize": 200', 200.0),
        ("--max-num-batched-tokens=8192", np.nan),
        ("--max-model-len=4096", np.nan),
        ("", np.nan),
    ],
)
def test_the_batch_limit_is_parsed_from_engine_flags(flags, limit):
    assert limit_of(flags) == pytest.approx(limit, nan_ok=True)
