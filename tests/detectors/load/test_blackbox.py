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
    """A service whose probe finds ``success`` and the rest in the last ``fails`` scrapes, all well before."""
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
        found = findings_of(BlackboxDetector(), window_of(EntityKind.SERVICE, services, events=events))
        return [(item.fault, item.entity.name, item.score) for item in found]

    return run


def test_entries_that_answer(find):
    assert find({"a": entry(1.0), "b": entry(1.0)}) == []


def test_a_certificate_that_ran_out(find):
    assert find({"a": entry(0.0, expiry=-3600.0, took=0.02, requests=0.0), "b": entry(1.0)}) == [
        ("cert-or-dns", "a", 0.95)
    ]


@pytest.mark.parametrize(("code", "found"), [(3.0, True), (4.0, True), (1.0, False), (2.0, False), (5.0, False)])
def test_the_probes_own_word_decides(find, code, found):
    assert bool(find({"a": entry(0.0, expiry=None, took=0.02, code=code)})) is found


def test_no_handshake_and_no_wait_where_the_probe_reports_no_more(find):
    service = EntityRef("lab", EntityKind.SERVICE, "default", "a")
    quick = {"a": entry(0.0, expiry=None, took=0.02)}
    assert find(quick) == [("cert-or-dns", "a", 0.75)]
    event = event_at(service, "Failed", 140, "The certificate request has failed to complete", type="Warning")
    assert find(quick, [event]) == [("cert-or-dns", "a", 0.95)]
    assert find({"a": entry(0.0, expiry=None, took=10.0)}) == [], "a host that keeps silent"


def test_a_gateway_that_answers_with_an_error_has_shaken_hands(find):
    assert find({"a": entry(0.0, took=0.02)}) == []


def test_one_failed_probe_is_a_blip(find):
    assert find({"a": entry(0.0, expiry=-1.0, fails=1)}) == []


def test_an_entry_that_never_answered_is_being_set_up(find):
    assert find({"a": entry(0.0, expiry=-1.0, length=8, fails=8)}) == []


def test_a_cluster_is_lost_when_every_entry_and_our_own_view_are(find):
    gone = entry(0.0, expiry=None, took=10.0, requests=None, fails=20)
    assert find({"a": gone, "b": gone}) == [("cluster-lost", "lab", 0.95)]
    assert find({"a": gone, "b": entry(1.0)}) == [], "one entry answers"
    seen = entry(0.0, expiry=None, took=10.0, fails=20)
    assert find({"a": seen, "b": seen}) == [], "we still see the services"


def test_our_own_blindness_is_no_lost_cluster(find):
    assert find({"a": entry(1.0, requests=None, fails=20), "b": entry(1.0, requests=None, fails=20)}) == []


def test_nothing_known(find):
    assert find({"a": {"probe_success": [None] * 5}}) == []
