from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from fleet_for_correlation import (  # type: ignore[import-not-found]
    CHAT,
    CODE,
    Desk,
    alert,
    at,
    finding,
    fleet,
    gpu,
    node,
    pod,
    ref,
    replica,
)

from detectors.base.changes import CHANGE_TEXT, ChangeKind, sort_of
from detectors.rca import change_evidence, explanation_text, fault_catalogue
from detectors.rca.hypotheses import Reach
from outrider.model import EntityKind, Event, EventKind, Interval
from outrider.records.change_log import CHANGE_CODES
from outrider.text.i18n import LANGUAGES, texts
from outrider.vocabulary.faults import faults


def changed(entity, code, seconds=-300.0, **attributes):
    attributes = {{"before": "from"}.get(name, name): value for name, value in attributes.items()}
    return Event(f"{code}-{seconds}-{entity}", EventKind.CHANGE, entity, at(seconds), "test", code, attributes)


def line(entity, code, text, seconds=-60.0):
    return Event(f"{code}-{seconds}-{entity}", EventKind.LOG, entity, at(seconds), "log", code, {"text": text})


def slow(entity, signal="engine_tpot_seconds"):
    return finding(entity, None, signal=signal, observed=0.2, expected=Interval(None, 0.05))


def evidence_lines(hypothesis, language="en"):
    return [explanation_text.evidence_line(item, language) for item in hypothesis.evidence]


def named(desk):
    return {(one.entity, one.fault): one for one in desk.only.hypotheses}


def test_every_change_code_has_a_kind():
    assert {code for code in CHANGE_CODES if sort_of(code) is None} == {
        "rollback",
        "restart",
        "push",
        "release",
    }
    assert sort_of("model-revision") is ChangeKind.MODEL
    assert sort_of("kubelet") is sort_of("cuda") is ChangeKind.DRIVER
    assert sort_of("a code of tomorrow") is ChangeKind.ROLLOUT


def test_every_fault_of_change_evidence_is_in_the_vocabulary():
    spoken = set().union(*change_evidence.FAULTS_OF_CHANGE.values()) | set(change_evidence.FAULT_OF_LINE.values())
    assert spoken <= set(faults())
    assert set(change_evidence.FAULTS_OF_CHANGE) == set(ChangeKind)


@pytest.mark.parametrize("code", ["driver", "kernel", "network", "scale", "restart"])
def test_changes_without_a_new_revision_are_not_bad_rollouts(code):
    desk = Desk()
    where = CHAT if code in ("scale", "restart") else node(0)
    desk.step(15, [alert(CHAT, None)], events=[changed(where, code)])
    assert "bad-rollout" not in {fault for _, fault in named(desk)}


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("rollout", "ada rolled out a new revision at 08:00:00 UTC (rollout), from v1 to v2."),
        ("flags", "ada changed engine flags at 08:00:00 UTC, from v1 to v2."),
        ("model-revision", "ada changed the model revision at 08:00:00 UTC, from v1 to v2."),
        ("configmap", "ada changed the configuration at 08:00:00 UTC (configmap), from v1 to v2."),
    ],
)
def test_change_evidence_names_change_time_and_actor(code, text):
    desk = Desk()
    desk.step(15, [alert(CHAT, None)], events=[changed(CHAT, code, actor="ada", before="v1", to="v2")])
    assert desk.cause() == (CHAT, "bad-rollout")
    assert text in evidence_lines(desk.only.hypotheses[0])


def test_change_evidence_without_actor_or_versions_falls_back_to_the_rest():
    desk = Desk()
    desk.step(15, [alert(CHAT, None)], events=[changed(CHAT, "image", before="a:1", to="a:2")])
    assert "New revision rolled out at 08:00:00 UTC (image), from a:1 to a:2." in evidence_lines(
        desk.only.hypotheses[0]
    )
    other = Desk()
    other.step(15, [alert(CHAT, None)], events=[changed(CHAT, "image")])
    assert "New revision rolled out at 08:00:00 UTC (image)." in evidence_lines(other.only.hypotheses[0])


def test_a_flag_change_before_slower_tokens_suggests_batch_limit_and_kernel_regression():
    desk = Desk()
    desk.step(15, [alert(CHAT, None)], [slow(CHAT, "svc_tpot_seconds")], [changed(CHAT, "flags")])
    assert desk.cause() == (CHAT, "kernel-regression")
    assert (CHAT, "batch-misconfigured") in named(desk)
    plain = Desk()
    plain.step(15, [alert(CHAT, None)], [slow(CHAT, "svc_tpot_seconds")], [changed(CHAT, "rollout")])
    assert (CHAT, "batch-misconfigured") not in named(plain)


def test_a_driver_change_on_one_node_suggests_its_gpus_if_replicas_are_slower():
    desk = Desk()
    desk.step(15, [alert(replica(0), None)], [slow(replica(0))], [changed(node(0), "driver", before="550", to="570")])
    hypotheses = named(desk)
    assert set(hypotheses) == {(gpu(0), "gpu-slow-peer")}
    assert "Node software changed at 08:00:00 UTC (driver), from 550 to 570." in evidence_lines(
        hypotheses[gpu(0), "gpu-slow-peer"]
    )


def test_a_driver_change_on_most_nodes_suggests_the_service():
    everywhere = [changed(node(number), "driver") for number in (0, 1)]
    desk = Desk()
    desk.step(15, [alert(CHAT, None)], [slow(CHAT, "svc_tpot_seconds")], everywhere)
    assert desk.cause() == (CHAT, "kernel-regression")
    assert any("Node software changed" in one for one in evidence_lines(desk.only.hypotheses[0]))
    one = Desk()
    one.step(15, [alert(CHAT, None)], [slow(CHAT, "svc_tpot_seconds")], everywhere[:1])
    assert (CHAT, "kernel-regression") not in named(one)


def test_a_network_change_suggests_only_its_node():
    desk = Desk()
    desk.step(15, [alert(CHAT, None)], events=[changed(node(0), "network"), changed(node(2), "network")])
    assert set(named(desk)) == {(node(0), "network-loss")}


def test_scaling_is_evidence_for_the_pressure_after_it():
    desk = Desk()
    desk.step(15, [alert(replica(0), "kv-pressure")], events=[changed(CHAT, "scale", before="8", to="4")])
    assert "Scaled at 08:00:00 UTC, from 8 to 4." in evidence_lines(desk.only.hypotheses[0])


def test_a_scale_out_that_answers_the_load_is_no_evidence_of_it():
    desk = Desk()
    desk.step(15, [alert(CHAT, "traffic-surge")], events=[changed(CHAT, "scale", before="8", to="12")])
    assert not any("Scaled" in one for one in evidence_lines(desk.only.hypotheses[0]))
    waiting = Desk()
    waiting.step(15, [alert(pod(0), "pods-pending")], events=[changed(CHAT, "scale", before="8", to="12")])
    assert "Scaled at 08:00:00 UTC, from 8 to 12." in evidence_lines(waiting.only.hypotheses[0])


def test_a_rollout_is_evidence_for_the_crash_loop_after_it():
    desk = Desk()
    loop = alert(ref(EntityKind.POD, "pod-0"), "crash-loop")
    desk.step(15, [loop], [finding(loop.entity, "crash-loop")], [changed(CHAT, "rollout", actor="argocd")])
    assert any("argocd rolled out a new revision" in one for one in evidence_lines(desk.only.hypotheses[0]))


def test_an_engine_log_line_gives_a_candidate_and_its_evidence():
    desk = Desk()
    log_line = line(replica(0), "kv_transfer_failed", "NIXL transfer failed for request: remote agent is unreachable")
    desk.step(15, [alert(CHAT, None)], events=[log_line])
    assert desk.cause() == (replica(0), "kv-transfer-fail")
    assert "Log at 08:04:00 UTC: NIXL transfer failed" in " ".join(evidence_lines(desk.only.hypotheses[0]))
    assert desk.only.unknown_confidence > 0.3, "a line alone is a weak guess"


def test_a_lost_gpu_log_line_suggests_the_gpu_of_its_replica():
    desk = Desk()
    desk.step(15, [alert(replica(1), None)], events=[line(replica(1), "gpu_missing", "CUDA unknown error")])
    assert desk.cause() == (gpu(1), "gpu-lost")


def test_a_log_line_of_another_service_suggests_nothing():
    desk = Desk()
    desk.step(15, [alert(CODE, None)], events=[line(replica(0), "engine_dead", "EngineDeadError")])
    assert desk.only.suspected_cause is None


def test_an_old_log_line_suggests_nothing():
    desk = Desk()
    desk.step(15, [alert(CHAT, None)], events=[line(replica(0), "engine_dead", "EngineDeadError", -1200)])
    assert desk.only.suspected_cause is None


def test_a_log_line_with_a_finding_is_not_repeated():
    desk = Desk()
    dead = alert(replica(0), "nccl-timeout")
    log_line = line(replica(0), "nccl_timeout", "Watchdog caught collective operation timeout")
    desk.step(15, [dead], [finding(replica(0), "nccl-timeout")], [log_line])
    assert not any("Log at" in one for one in evidence_lines(desk.only.hypotheses[0]))


def test_hints_open_no_incident_and_yield_to_alerts():
    desk = Desk()
    events = [changed(node(0), "network"), line(replica(0), "engine_dead", "EngineDeadError")]
    desk.step(15, [], events=events)
    assert desk.open == []
    desk.step(30, [alert(CHAT, None)], events=events)
    desk.step(45, [alert(CHAT, None), alert(gpu(0), "gpu-lost", since=40)], [finding(gpu(0), "gpu-lost")], events)
    assert desk.cause() == (gpu(0), "gpu-lost")


def test_a_change_of_an_unknown_entity_is_ignored():
    gathered = change_evidence.gather([changed(ref(EntityKind.WORKLOAD, "stranger"), "rollout")], Reach(fleet()), at(0))
    assert [hint.sort for held in gathered.values() for hint in held] == [ChangeKind.ROLLOUT]
    desk = Desk()
    desk.step(15, [alert(CHAT, None)], events=[changed(ref(EntityKind.NODE, "stranger"), "driver")])
    assert desk.only.suspected_cause is None


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("sort", list(ChangeKind))
def test_every_change_kind_has_its_texts(language, sort):
    for text in (CHANGE_TEXT, change_evidence.CHANGE_BY_TEXT, change_evidence.CHANGE_FROM_TEXT):
        assert "{at}" in texts(language)[f"{text}.{sort}"]


def test_every_fault_of_change_evidence_is_in_the_fault_catalogue():
    assert set(change_evidence.FAULT_OF_LINE.values()) <= set(fault_catalogue.load())
