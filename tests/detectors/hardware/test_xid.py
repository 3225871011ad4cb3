"""XID codes: fault and action for single, combined and recurring codes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from detectors.hardware.xid import codes, named, xid_findings, xids
from detectors.hardware.xid_patterns import occurrences, repeats
from outrider.model import EntityKind, EntityRef, Event, EventKind, Priority
from outrider.text.i18n import translate
from outrider.topology import Topology
from outrider.vocabulary.faults import faults

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOLD = timedelta(minutes=10)
GPUS = [EntityRef("lab", EntityKind.GPU, None, f"GPU-{number}") for number in range(2)]
PODS = [EntityRef("lab", EntityKind.POD, "default", f"pod-{number}") for number in range(2)]
TABLE = Path(__file__).parents[2] / "recordings" / "xid_catalogue.txt"


def xid(code, ago=30.0, gpu=GPUS[0], **attributes):
    at = NOW - timedelta(seconds=ago)
    return Event(f"{gpu.name}{code}{ago}{attributes}", EventKind.XID, gpu, at, "kernel_log", str(code), attributes)


def find(*events, topology=None):
    return xid_findings("gpu-faults", events, topology or Topology(), NOW, HOLD)


def evidence_texts(finding):
    return [translate(one.text, "en", **one.arguments) for one in finding.evidence]


def faults_of(*events, **more):
    return [(item.fault, item.entity.name) for item in find(*events, **more)]


# --- the table ------------------------------------------------------------------------------------


def catalogue():
    """code -> (immediate action, description, class) of the published table."""
    rows = (line.split("|") for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {int(code): (immediate, text, kind) for code, immediate, text, kind in rows}


def test_every_code_of_the_nvidia_catalogue_has_an_action() -> None:
    wanted = catalogue()
    assert len(wanted) > 100
    assert set(xids()) == set(wanted)
    for code, (immediate, text, kind) in wanted.items():
        known = xids()[code]
        assert (known.immediate, known.name) == (immediate, kind), code
        assert text.startswith(known.text), code


def test_every_code_of_a_table_has_an_action() -> None:
    for known in codes().values():
        assert known.fault is None or known.fault in faults()
        assert known.until == "" or int(known.until) in xids()
        assert {int(other) for other in known.beside} <= set(xids())
        if known.fault is not None:
            assert known.step or known.immediate or known.text


# --- solo, beside others ----------------------------------------------------------------------------


def test_a_double_bit_error_alone_and_with_a_remapped_row_need_different_actions() -> None:
    (alone,) = find(xid(48))
    assert "First step: no other XID: stop scheduling on the GPU and reset it" in evidence_texts(alone)[0]
    (beside,) = find(xid(48, 30), xid(63, 28))
    assert "First step: drain the node, then reset the GPU (a row was remapped)" in evidence_texts(beside)[0]
    (failed,) = find(xid(48, 30), xid(64, 28))
    assert "a row could not be remapped" in evidence_texts(failed)[0]
    (far,) = find(xid(48, 30), xid(63, 500))
    assert "no other XID" in evidence_texts(far)[0]


def test_a_cleanup_after_another_code_has_no_finding() -> None:
    assert faults_of(xid(45)) == [("gpu-xid-application", "GPU-0")]
    assert "restart Fabric Manager" in evidence_texts(find(xid(45))[0])[0]
    (wake,) = find(xid(79, 31), xid(45, 30))
    assert (wake.fault, len(wake.evidence)) == ("gpu-lost", 1)
    assert faults_of(xid(45, 30), xid(154, 29, text="")) == [("gpu-xid-application", "GPU-0")]
    assert {fault for fault, _ in faults_of(xid(79, 300), xid(45, 30))} == {"gpu-lost", "gpu-xid-application"}


def test_details_of_a_double_bit_error_are_not_a_second_finding() -> None:
    (finding,) = find(xid(48, 30), xid(171, 30))
    assert [item.observed for item in finding.evidence] == [48.0]
    assert faults_of(xid(172)) == [("gpu-xid-hardware", "GPU-0")]


def test_the_recovery_action_of_the_driver_replaces_the_step() -> None:
    verdict = xid(154, 20, text="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    (finding,) = find(xid(119, 25), verdict)
    assert evidence_texts(finding)[0].endswith("First step: Node Reboot Required")
    assert faults_of(verdict) == [("gpu-xid-hardware", "GPU-0")]  # no source reported a cause
    over = xid(154, 10, text="GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)")
    assert faults_of(verdict, over) == []


def test_a_state_code_lasts_until_its_counterpart() -> None:
    (finding,) = find(xid(163))
    assert (finding.fault, finding.severity, finding.entity) == (None, Priority.P3, GPUS[0])
    assert find(xid(163, 60), xid(162, 30)) == []
    assert len(find(xid(162, 60), xid(163, 30))) == 1
    assert len(find(xid(163, 60), xid(162, 30, GPUS[1]))) == 1
    assert find(xid(162)) == []


# --- bursts and repeats -------------------------------------------------------------------------------


def test_a_burst_is_one_occurrence() -> None:
    burst = [xid(31, 200 - number, pid="7") for number in range(20)]
    (finding,) = find(*burst)
    assert len(finding.evidence) == 1
    assert "(seen 20×)" in evidence_texts(finding)[0]


def test_a_recurring_code_is_reported_with_a_stronger_action() -> None:
    (finding,) = find(xid(119, 400), xid(119, 30))
    assert "power-cycle the node" in evidence_texts(finding)[0]
    assert "occurred 2 times" in evidence_texts(finding)[1]
    (old,) = find(xid(79, 3600), xid(79, 30))  # the first one is no longer held, and counts as history
    assert "(seen 1×)" in evidence_texts(old)[0]
    assert "reseat the board" in evidence_texts(old)[0]


def test_another_process_is_another_occurrence() -> None:
    groups = occurrences([xid(31, 30, pid="1"), xid(31, 29, pid="2"), xid(31, 28)])
    assert [(one.count, one.process) for one in groups] == [(1, "1"), (2, "2")]
    assert repeats([]) == []


def test_exceptions_recur_only_at_the_same_location_of_the_chip() -> None:
    (finding,) = find(xid(13, 400, unit="GPC 1, TPC 2"), xid(13, 30, unit="GPC 1, TPC 2"))
    assert "same location of the chip (GPC 1, TPC 2)" in evidence_texts(finding)[1]
    assert "run the DCGM EUD" in evidence_texts(finding)[0]
    (other,) = find(xid(13, 400, unit="GPC 0, TPC 0"), xid(13, 30, unit="GPC 1, TPC 2"))
    assert len(other.evidence) == 1


def test_an_application_code_under_several_pods_suspects_the_device() -> None:
    assert faults_of(xid(31, 400, pod="a"), xid(31, 30, pod="a")) == [("gpu-xid-application", "GPU-0")]
    (finding,) = find(xid(31, 400, pod="a"), xid(31, 30, pod="b"))
    assert (finding.fault, finding.entity, finding.score) == ("gpu-xid-hardware", GPUS[0], 0.7)
    assert "under 2 different pods" in evidence_texts(finding)[1]
    brought_along = [xid(31, 395, GPUS[1], pod="a"), xid(31, 25, GPUS[1], pod="b")]
    groups = faults_of(xid(31, 400, pod="a"), xid(31, 30, pod="b"), *brought_along)
    assert {fault for fault, _ in groups} == {"gpu-xid-application"}


# --- components ---------------------------------------------------------------------------------------


def test_one_pod_on_several_devices_is_one_finding() -> None:
    topology = Topology.build([(gpu, PODS[0]) for gpu in GPUS])
    (finding,) = find(xid(43, 30), xid(43, 29, GPUS[1]), topology=topology)
    assert (finding.entity, len(finding.evidence)) == (PODS[0], 1)
    assert "(seen 2×)" in evidence_texts(finding)[0]


def test_a_code_of_a_mig_instance_is_reported_on_its_pod() -> None:
    parts = [EntityRef("lab", EntityKind.GPU, None, f"GPU-0/{number}") for number in (7, 8)]
    edges = [(GPUS[0], part) for part in parts] + list(zip(parts, PODS, strict=True))
    topology = Topology.build(edges)
    assert faults_of(xid(31, gpu_instance="8"), topology=topology) == [("gpu-xid-application", "pod-1")]
    assert faults_of(xid(95, gpu_instance="8"), topology=topology) == [("gpu-xid-hardware", "GPU-0")]


def test_the_source_of_a_code_is_evidence() -> None:
    (finding,) = find(xid(79, sources="kernel_log, nvml, dcgm-node-1"))
    assert evidence_texts(finding)[1] == "XID 79 was reported by: kernel_log, nvml, dcgm-node-1."


# --- other vendors ------------------------------------------------------------------------------------


def test_codes_of_other_vendors_use_their_own_numbering() -> None:
    (lost,) = find(xid("ascend:40F84E00"))
    assert lost.fault == "gpu-lost"
    assert evidence_texts(lost)[0].startswith("Ascend 40F84E00 (seen 1×): NPU has dropped off.")
    assert find(xid("ascend:81078603")) == find(xid("ascend:8C1F8608")) == find(xid("afid:24")) == []
    (fatal,) = find(xid("afid:24", severity="FATAL"))
    assert (fatal.fault, fatal.score) == ("gpu-xid-hardware", 0.6)
    assert find(xid("afid:24", severity="NON_FATAL")) == []
    assert find(xid("79a")) == []
    assert named("79") == "XID 79"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_text_can_be_rendered(language) -> None:
    events = [
        xid(31, 400, pod="a", sources="kernel_log"), xid(31, 30, pod="b"), xid(79, 30), xid(999, 30),
        xid(13, 400, unit="GPC 1, TPC 2"), xid(13, 30, unit="GPC 1, TPC 2"), xid(163, 20),
    ]  # fmt: skip
    texts = [translate(one.text, language, **one.arguments) for item in find(*events) for one in item.evidence]
    assert len(texts) > 5
    assert not any(re.search(r"[{}]", text) for text in texts)
