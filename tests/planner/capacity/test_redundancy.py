"""Bad counts of spare replicas and nodes."""

from __future__ import annotations

import pytest

from outrider.errors import UsageError
from planner.capacity.redundancy import whole_nodes, with_spares


@pytest.mark.parametrize(("needed", "domains", "losses"), [(-1, 3, 1), (4, 0, 0), (4, 3, -1), (4, 1, 1)])
def test_impossible_spares_are_refused(needed: int, domains: int, losses: int) -> None:
    with pytest.raises(UsageError):
        with_spares(needed, domains=domains, losses=losses)


@pytest.mark.parametrize(("replicas", "per_replica", "per_node"), [(-1, 4, 8), (2, 0, 8), (2, 4, 0)])
def test_impossible_nodes_are_refused(replicas: int, per_replica: int, per_node: int) -> None:
    with pytest.raises(UsageError, match="1 or more"):
        whole_nodes(replicas, gpus_per_replica=per_replica, gpus_per_node=per_node)
