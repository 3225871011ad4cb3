"""Whole nodes are shown beside the replica count and never change it."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.documents import serialization
from outrider.text.i18n import LANGUAGES
from planner.capacity import derivation, node_rounding
from planner.capacity.plan import plan


def planned(build, **fleet):
    fields = {"current_replicas": 19, **fleet}
    (result,) = plan(
        build.history(np.full(5 * 144, 40.0)), {build.service: build.calibration()}, [build.fleet(**fields)], build.now
    ).recommendations
    return result


@pytest.mark.parametrize(
    ("fleet", "wanted", "idle", "stranded", "source"),
    [
        ({}, (10, 80), 4, 0, "prior"),  # 19 groups of 4 on the usual server of 8
        ({"gpus_per_node": 6, "node_source": "topology"}, (19, 114), 38, 38, "topology"),
        ({"gpus_per_node": 4, "node_source": "configured"}, (19, 76), 0, 0, "configured"),
        ({"gpus_per_node": 2, "node_source": "configured"}, (38, 76), 0, 0, "configured"),
        ({"gpus_per_node": 3, "node_source": "configured"}, (38, 114), 38, 38, "configured"),  # two nodes a group
    ],
)
def test_nodes_are_counted_and_the_scaler_s_number_stays(build, fleet, wanted, idle, stranded, source):
    result = planned(build, **fleet)
    assert (result.target_replicas, result.gpus) == (19, 76)
    facts = result.derivation["nodes"]
    assert (facts["nodes"], facts["gpus"]) == wanted
    assert (facts["idle_gpus"], facts["stranded_gpus"], facts["source"]) == (idle, stranded, source)
    shown = serialization.recommendation(result)
    assert shown["nodes"]["gpus"] == wanted[1]
    assert shown["gpus"] == 76
    for language in LANGUAGES:
        lines = [line for line in derivation.lines(result, language) if node_rounding.line(facts, language) == line]
        assert len(lines) == 1
        assert "{" not in lines[0]


def test_nodes_of_an_unknown_type_are_not_guessed(build):
    result = planned(build, gpu_type="potato")
    assert result.derivation["nodes"]["nodes"] is None
    assert serialization.recommendation(result)["nodes"] is None
    assert any("gpus_per_node" in line for line in derivation.lines(result))


def test_nothing_needs_no_node(build):
    assert node_rounding.round_to_nodes(0, 8, build.fleet())["nodes"] == 0
