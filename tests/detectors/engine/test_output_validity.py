from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from detectors.engine.output_validity import OutputValidityDetector
from outrider.model import EntityKind, NoVerdictReason
from outrider.topology import Topology

LENGTH = 50


def service(ratio, requests=100.0):
    return {"svc_output_invalid_ratio": ratio, "svc_requests_total": [requests] * len(ratio)}


@pytest.fixture
def find(window_of, findings_of):
    def run(verdicts=None, **rows):
        findings = findings_of(OutputValidityDetector(), window_of(EntityKind.SERVICE, rows), verdicts=verdicts)
        return [(item.fault, item.entity.name) for item in findings]

    return run


def test_a_usual_ratio_of_valid_output_has_no_finding(find):
    assert find(chat=service([0.0002] * LENGTH), code=service([0.0] * LENGTH)) == []


def test_a_high_ratio_of_invalid_output_is_reported(find):
    rows = {"chat": service([0.0] * 40 + [0.05] * 10), "code": service([0.0] * LENGTH)}
    assert find(**rows) == [("garbled-output", "chat")]


def test_few_invalid_answers_of_a_quiet_service_have_no_finding(find):
    assert find(chat=service([0.0] * 40 + [0.3] * 10, requests=1.0)) == []


def test_one_scrape_with_invalid_output_has_no_finding(find):
    assert find(chat=service([0.0] * 49 + [0.5])) == []


def test_a_finding_ends_when_output_is_valid_again(find):
    assert find(chat=service([0.0] * 30 + [0.05] * 10 + [0.0] * 10)) == []


def test_a_service_is_judged_by_its_usual_ratio_of_invalid_output(find):
    assert find(chat=service([0.009] * 30 + [0.012] * 20)) == []


@pytest.mark.parametrize("ratio", [[None] * LENGTH, [None]])
def test_a_missing_counter_gives_no_verdict(find, ratio):
    verdicts = []
    assert find(verdicts, chat=service(ratio)) == []
    assert [item.reason for item in verdicts] == [NoVerdictReason.NO_VALUES]


CHAT_REPLICAS = 4


@pytest.fixture
def final_verdicts(window_of, now_of, ref):
    """Runs a service of four replicas cycle by cycle and returns the last verdicts.

    ``spoilt`` gives for every scrape what share of its answers each replica spoils, ``answered`` what it answers.
    """

    def run(spoilt, answered, started=None):
        whole = answered.sum(axis=0)
        ratio = np.divide((answered * spoilt).sum(axis=0), whole, out=np.zeros_like(whole), where=whole > 0)
        row = {"svc_output_invalid_ratio": ratio.tolist(), "svc_requests_total": whole.tolist()}
        window = window_of(EntityKind.SERVICE, {"chat": row})
        names = [f"chat-{number}" for number in range(CHAT_REPLICAS)]
        begun = np.zeros(answered.shape) if started is None else started
        rows = {
            name: {
                "engine_requests_finished_total": answered[n].tolist(),
                "engine_start_time_seconds": begun[n].tolist(),
            }
            for n, name in enumerate(names)
        }
        beside = window_of(EntityKind.REPLICA, {"other-0": rows["chat-0"], **rows})
        chat = ref(EntityKind.SERVICE, "chat")
        topology = Topology.build([(ref(EntityKind.REPLICA, name), chat) for name in names], at=now_of(window))
        detector = OutputValidityDetector()
        state, verdicts = detector.initial(), ()
        for length in range(1, window.times.size + 1):
            part, there = cut(window, length), cut(beside, length)
            state, verdicts = detector.detect(state, part, topology, now_of(part))
            if detector.wants_beside(state, verdicts):
                state, verdicts = detector.placed(state, verdicts, part, there, topology, now_of(part))
        return verdicts

    return run


def cut(window, length):
    """The ten minutes that end with a scrape."""
    shown = slice(max(0, length - 120), length)
    return replace(window, times=window.times[shown], values=window.values[:, shown], status=window.status[:, shown])


def answers(scrapes=LENGTH):
    return np.random.default_rng(3).poisson(30.0, (CHAT_REPLICAS, scrapes)).astype(float)


def spoilt_by(*shares, scrapes=LENGTH, until=None):
    """Invalid-output ratios from the twentieth scrape on."""
    findings = np.zeros((CHAT_REPLICAS, scrapes))
    findings[:, 20:until] = np.array(shares)[:, None]
    return findings


def test_the_replica_with_invalid_output_is_reported_with_its_service(final_verdicts):
    whole, part = final_verdicts(spoilt_by(0.0, 0.0, 0.6, 0.0), answers())
    assert (whole.entity.name, part.entity.name) == ("chat", "chat-2")
    assert part.fault == "garbled-output"
    assert part.evidence[0].text == "findings.answers_of_replica"
    assert part.evidence[0].observed == pytest.approx(0.6)
    assert part.window.start == whole.window.start
    assert whole.score == part.score == 0.9


def test_invalid_output_of_all_replicas_blames_no_replica(final_verdicts):
    (whole,) = final_verdicts(spoilt_by(0.06, 0.06, 0.06, 0.06), answers())
    assert whole.entity.name == "chat"
    assert whole.score == 0.5


def test_a_finding_starts_with_the_first_invalid_output(final_verdicts):
    whole, _ = final_verdicts(spoilt_by(0.6, 0.0, 0.0, 0.0), answers())
    assert (whole.window.end - whole.window.start).total_seconds() == 5.0 * 29


def test_a_finding_lasts_while_output_recovers(final_verdicts):
    spoilt = spoilt_by(0.06, 0.06, 0.06, 0.06)
    spoilt[:, -4:] /= 6.0
    (whole,) = final_verdicts(spoilt, answers())
    assert whole.score == 0.5


def test_the_health_of_a_replica_without_traffic_is_unknown(final_verdicts):
    answered = answers(120)
    answered[2, 50:] = 0.0
    (silent,) = final_verdicts(spoilt_by(0.0, 0.0, 0.6, 0.0, scrapes=120), answered)
    assert silent.entity.name == "chat-2"
    assert silent.reason is NoVerdictReason.NO_VALUES


def test_a_replica_with_valid_output_again_is_cleared(final_verdicts):
    answered = answers(120)
    answered[2, 50:70] = 0.0
    assert final_verdicts(spoilt_by(0.0, 0.0, 0.6, 0.0, scrapes=120, until=60), answered) == ()


def test_answers_of_a_quiet_replica_accumulate_beyond_the_window(final_verdicts):
    """With 15 answers in ten minutes, a replica is proven healthy after a quarter of an hour."""
    answered = answers(360)
    answered[2, 50:] = 0.0
    answered[2, 56::8] = 1.0
    (silent,) = final_verdicts(spoilt_by(0.0, 0.0, 0.6, 0.0, scrapes=360, until=50)[:, :180], answered[:, :180])
    assert silent.entity.name == "chat-2"
    assert final_verdicts(spoilt_by(0.0, 0.0, 0.6, 0.0, scrapes=360, until=50), answered) == ()


def test_a_new_process_is_not_blamed_for_the_one_before(final_verdicts):
    answered = answers(120)
    answered[2, 50:] = 0.0
    started = np.zeros(answered.shape)
    started[2, 110:] = 1_800_000_000.0 + 5.0 * 109
    assert final_verdicts(spoilt_by(0.0, 0.0, 0.6, 0.0, scrapes=120), answered, started) == ()
