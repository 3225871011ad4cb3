from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
from detector_events import event_at  # type: ignore[import-not-found]

from detectors.load.blackbox import BlackboxDetector
from outrider.model import EntityKind, EntityRef

MONTH = 30 * 86400.0


def entry(success, expiry=MONTH, took=0.3, code=None, requests=10.0, length=30, fails=6):
    """A service with the given probe results in the last ``fails`` scrapes, healthy before."""
    well = length - fails
    return {
        "probe_success": [1.0] * well + [success] * fails,
        "probe_cert_expiry_seconds": [MONTH] * well + [expiry] * fails,
        "probe_e2e_seconds": [0.3] * well + [took] * fails,
        "probe_outcome_code": [None if code is None else 0.0] * well + [code] * fails,
        "svc_requests_total": [10.0] * well + [requests] * fails,
    }


@pytest.fixture
def find(window_of, findings_of):
    def run(services, events=()):
        findings = findings_of(BlackboxDetector(), window_of(EntityKind.SERVICE, services, events=events))
        return [(item.fault, item.entity.name, item.score) for item in findings]

    return run


def test_gateways_that_respond_have_no_finding(find):
    assert find({"a": entry(1.0), "b": entry(1.0)}) == []


def test_an_expired_certificate_is_reported(find):
    assert find({"a": entry(0.0, expiry=-3600.0, took=0.02, requests=0.0), "b": entry(1.0)}) == [
        ("cert-or-dns", "a", 0.95)
    ]


@pytest.mark.parametrize(("code", "reported"), [(3.0, True), (4.0, True), (1.0, False), (2.0, False), (5.0, False)])
def test_the_failure_code_of_the_probe_decides(find, code, reported):
    assert bool(find({"a": entry(0.0, expiry=None, took=0.02, code=code)})) is reported


def test_a_quick_failure_without_handshake_is_cert_or_dns(find):
    service = EntityRef("lab", EntityKind.SERVICE, "default", "a")
    quick = {"a": entry(0.0, expiry=None, took=0.02)}
    assert find(quick) == [("cert-or-dns", "a", 0.75)]
    event = event_at(service, "Failed", 140, "The certificate request has failed to complete", type="Warning")
    assert find(quick, [event]) == [("cert-or-dns", "a", 0.95)]
    assert find({"a": entry(0.0, expiry=None, took=10.0)}) == [], "a host that keeps silent"


def test_a_gateway_that_returns_an_error_completed_the_handshake(find):
    assert find({"a": entry(0.0, took=0.02)}) == []


def test_one_failed_probe_is_not_reported(find):
    assert find({"a": entry(0.0, expiry=-1.0, fails=1)}) == []


def test_a_gateway_that_never_responded_is_not_reported(find):
    assert find({"a": entry(0.0, expiry=-1.0, length=8, fails=8)}) == []


def test_a_cluster_is_lost_if_all_gateways_and_targets_fail(find):
    gone = entry(0.0, expiry=None, took=10.0, requests=None, fails=20)
    assert find({"a": gone, "b": gone}) == [("cluster-lost", "lab", 0.95)]
    assert find({"a": gone, "b": entry(1.0)}) == [], "one entry answers"
    seen = entry(0.0, expiry=None, took=10.0, fails=20)
    assert find({"a": seen, "b": seen}) == [], "we still see the services"


def test_monitor_blind_is_not_a_lost_cluster(find):
    assert find({"a": entry(1.0, requests=None, fails=20), "b": entry(1.0, requests=None, fails=20)}) == []


def test_no_values_give_no_finding(find):
    assert find({"a": {"probe_success": [None] * 5}}) == []
