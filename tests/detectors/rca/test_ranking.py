from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_for_correlation import (  # type: ignore[import-not-found]
    CHAT,
    Desk,
    alert,
    at,
    change,
    finding,
    fleet,
    gpu,
    node,
    pod,
    replica,
)

from detectors.rca import explanation, explanation_text, fault_catalogue, ranking
from detectors.rca.hypotheses import FaultHypothesis
from outrider.model import EntityKind, EntityRef, Event, EventKind, Interval
from outrider.topology import Topology


def rank(alerts, findings=(), events=(), candidates=(), topology=None):
    return ranking.rank(candidates, alerts, findings, events, topology or fleet(), fault_catalogue.load(), at(120))


def test_no_alerts_give_no_hypothesis():
    assert rank([]) == ((), ())
    assert rank([alert(CHAT, None)]) == ((), ())


def test_confidences_are_ordered_and_sum_below_one():
    hypotheses, _ = rank([alert(replica(0), "engine-dead"), alert(gpu(0), "gpu-lost"), alert(CHAT, None)])
    values = [one.confidence for one in hypotheses]
    assert values == sorted(values, reverse=True)
    assert 0 < sum(values) < 1
    assert hypotheses[0].fault == "gpu-lost"


def test_two_equal_candidates_share_the_confidence():
    hypotheses, _ = rank([alert(replica(0), "engine-hung"), alert(replica(2), "engine-hung")])
    assert hypotheses[0].confidence == hypotheses[1].confidence < 0.5


def test_a_stronger_finding_gives_more_confidence():
    alerts = [alert(replica(0), "engine-hung")]
    sure, _ = rank(alerts, [finding(replica(0), "engine-hung", score=0.95)])
    unsure, _ = rank(alerts, [finding(replica(0), "engine-hung", score=0.55)])
    assert sure[0].confidence > unsure[0].confidence + 0.2


def test_a_signal_supports_only_in_the_direction_of_the_sign():
    alerts = [alert(gpu(0), "gpu-thermal-throttle")]
    throttled = finding(gpu(0), "gpu-thermal-throttle", score=0.7)
    usual = Interval(30.0, 60.0)

    def with_temperature(value):
        hot = finding(gpu(0), None, signal="hw_accel_temperature_celsius", observed=value, expected=usual)
        return rank(alerts, [throttled, hot])[0][0]

    plain = rank(alerts, [throttled])[0][0]
    assert with_temperature(95.0).confidence > plain.confidence
    assert with_temperature(10.0).confidence == plain.confidence
    assert any(item.text == "incidents.evidence.supports" for item in with_temperature(95.0).evidence)


def test_evidence_names_explained_alerts_and_their_cause():
    hypotheses, _ = rank([alert(gpu(0), "gpu-lost"), alert(replica(0), "engine-dead"), alert(CHAT, None)])
    spoken = {one.fault: {item.text: item.arguments for item in one.evidence} for one in hypotheses}
    assert spoken["gpu-lost"]["incidents.evidence.explains"] == {"count": "2", "total": "2"}
    assert spoken["engine-dead"]["incidents.evidence.explained_by"]["fault"] == "gpu-lost"


def test_an_xid_event_is_evidence_for_its_gpu():
    xid = Event("x", EventKind.XID, gpu(0), at(0), "dcgm", "79")
    hypotheses, _ = rank([alert(gpu(0), "gpu-lost")], events=[xid])
    assert any(item.observed == 79.0 for item in hypotheses[0].evidence)


def test_a_cause_much_later_than_its_symptom_scores_less():
    symptom = alert(replica(0), "engine-dead")
    early, _ = rank([symptom, alert(gpu(0), "gpu-lost", since=60)])
    late, _ = rank([symptom, alert(gpu(0), "gpu-lost", since=780)])
    assert early[0].fault == late[0].fault == "gpu-lost"
    assert early[0].confidence > late[0].confidence


def test_candidates_without_alerts_are_ranked():
    guess = FaultHypothesis(gpu(0), "gpu-thermal-throttle", at(0), 0.9, firing=False)
    hypotheses, _ = rank([alert(CHAT, None)], candidates=[guess])
    assert (hypotheses[0].entity, hypotheses[0].fault) == (gpu(0), "gpu-thermal-throttle")


def test_slower_tokens_after_a_change_are_a_regression_not_a_bad_rollout():
    desk = Desk()
    slow = finding(CHAT, None, signal="svc_tpot_seconds", observed=0.2, expected=Interval(None, 0.05))
    desk.step(15, [alert(CHAT, None)], [slow], [change(CHAT, -300)])
    assert desk.cause() == (CHAT, "kernel-regression")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("alerts", [[alert(CHAT, None)], [alert(replica(0), "engine-dead")]])
def test_the_summary_names_entity_and_service(language, alerts):
    desk = Desk()
    desk.step(15, alerts)
    summary = explanation_text.sections(explanation.explain(desk.only, desk.knowledge), language)[0].lines[0]
    assert alerts[0].entity.name in summary
    assert "chat" in summary
    assert "{" not in summary


def test_no_look_alike_is_ruled_out_by_an_unknown_node():
    alone = Topology.build([(replica(0), CHAT)])
    _, rejected = rank([alert(replica(0), "engine-dead")], topology=alone)
    assert {item.fault for item in rejected} == {"exporter-down", "engine-starting"}


def test_a_condition_on_a_value_needs_that_value():
    text = """
engine-hung:
  signs: [{signal: engine_iterations_total, moves: still}]
  hurts: [service]
  explains: {path: []}
  look_alikes: {engine-idle: {why: work_is_waiting, when: [{signal: engine_requests_waiting, above: 0}]}}
  checks: []
  remedy: []
  runbook: docs/runbooks/engine-hung.md
"""
    known = fault_catalogue.read({"x.yaml": text})

    def rejected(value):
        waiting = finding(replica(0), "engine-hung", signal="engine_requests_waiting", observed=value)
        return ranking.rank([], [alert(replica(0), "engine-hung")], [waiting], [], fleet(), known, at(60))[1]

    assert [item.fault for item in rejected(3.0)] == ["engine-idle"]
    assert rejected(0.0) == ()
    assert rejected(None) == ()


def test_a_resolved_cause_explains_load_on_peers():
    full = [alert(replica(number), "kv-pressure", since=60 + number) for number in (0, 1, 2)]
    over = FaultHypothesis(replica(3), "engine-dead", at(0), 0.75, firing=False)
    hypotheses, _ = rank(full, candidates=(over,))
    assert (hypotheses[0].entity, hypotheses[0].fault) == (replica(3), "engine-dead")


def test_a_pod_and_the_replica_in_it_are_one_component_that_fails_after_a_change():
    alerts = [alert(pod(0), "crash-loop"), alert(replica(0), "model-load-failed")]
    hypotheses, _ = rank(
        alerts,
        [finding(replica(0), "model-load-failed", score=0.9)],
        [change(CHAT, -60)],
        [FaultHypothesis(CHAT, "bad-rollout", at(-60), 0.55, firing=False)],
    )
    assert hypotheses[0].fault == "model-load-failed"


def test_a_slowly_confirmed_cause_starts_with_its_finding():
    desk, surge = Desk(), alert(CHAT, "traffic-surge", since=60)
    desk.step(60, [surge])
    late = alert(replica(0), "slow-start", since=600)
    desk.step(600, [surge, late], [finding(replica(0), "slow-start", score=0.8)])
    assert desk.cause() == (replica(0), "slow-start")
    apart = Desk()
    apart.step(60, [surge])
    apart.step(600, [surge, late])
    assert len(apart.open) == 2


@pytest.mark.parametrize("holds_first", [True, False])
def test_a_fault_with_one_firing_alert_is_not_over_in_any_order(holds_first):
    holds = FaultHypothesis(node(0), "ib-link-down", at(0), alerts=("one",))
    clears = FaultHypothesis(node(0), "ib-link-down", at(0), alerts=("other",), over=at(420))
    later = FaultHypothesis(node(0), "network-loss", at(600), alerts=("lossy",))
    candidates = (holds, clears) if holds_first else (clears, holds)
    hypotheses, _ = rank([], candidates=(*candidates, later))
    assert [one.fault for one in hypotheses[:2]] == ["ib-link-down", "network-loss"]
    assert "incidents.evidence.explains" in [item.text for item in hypotheses[0].evidence]
    assert "incidents.evidence.explained_by" in [item.text for item in hypotheses[1].evidence]


def test_a_fault_is_over_with_its_last_alert():
    later = FaultHypothesis(node(0), "network-loss", at(600), alerts=("lossy",))
    for ends, explained in (((420, 300), False), ((300, 500), True)):
        candidates = [FaultHypothesis(node(0), "ib-link-down", at(0), alerts=(str(end),), over=at(end)) for end in ends]
        texts = [item.text for one in rank([], candidates=(*candidates, later))[0] for item in one.evidence]
        assert ("incidents.evidence.explained_by" in texts) is explained


@pytest.mark.parametrize(
    ("surge_since", "cause"), [(200.0, "traffic-surge"), (700.0, "traffic-surge"), (960.0, "pods-pending")]
)
def test_pending_replicas_ordered_by_a_surge_do_not_explain_it(surge_since, cause):
    """Each may cause the other: the earlier one is the cause, or the deeper one if both start together."""
    pool = EntityRef(CHAT.cluster, EntityKind.POOL, None, "h100")
    placed = Topology.build([*fleet().edges, (pool, node(0)), (pool, node(1))], at=fleet().at)
    alerts = [
        alert(CHAT, "traffic-surge", since=surge_since),
        alert(pool, "pods-pending", since=1020.0),
        alert(replica(1), "kv-pressure", since=1000.0),
        alert(CHAT, None, since=1000.0),
    ]
    hypotheses, _ = rank(alerts, topology=placed)
    assert hypotheses[0].fault == cause
