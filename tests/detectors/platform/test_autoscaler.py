from __future__ import annotations

import pytest

from detectors.platform.autoscaler import AutoscalerDetector
from outrider.model import EntityKind
from outrider.topology import Topology

W, S = EntityKind.WORKLOAD, EntityKind.SERVICE
ERRORS = "autoscaler_errors_per_second"


@pytest.fixture
def find(window_of, findings_of):
    return lambda values, topology=None: findings_of(
        AutoscalerDetector(), window_of(W, {"chat": {ERRORS: values}}), topology
    )


def test_an_autoscaler_that_cannot_read_its_metric_is_stuck(find):
    (item,) = find([0.0] * 5 + [1.0] * 20)
    assert (item.fault, item.entity.kind, item.entity.name) == ("autoscaler-stuck", S, "chat")


def test_the_service_is_the_one_that_the_workload_serves(find, ref):
    (item,) = find([1.0] * 20, Topology.build([(ref(W, "chat"), ref(S, "entry"))]))
    assert item.entity.name == "entry"


@pytest.mark.parametrize("values", [[0.0] * 30, [0.0, 1.0] * 15, [1.0] * 3, [None] * 10, [1.0] * 20 + [0.0]])
def test_single_failures_and_no_values_give_no_verdict(find, values):
    assert find(values) == []
