"""Reads the packaged procedures. No other module of ``procedures`` or ``decide`` reads files."""

from __future__ import annotations

from functools import cache
from importlib import resources

from outrider.text import yaml_file
from remediation.procedures import cluster_switch, degrade_ladder
from remediation.procedures.cluster_switch import ClusterSwitch
from remediation.procedures.degrade_ladder import Ladder


@cache
def ladder() -> Ladder:
    """The degrade ladder that ships with Outrider."""
    return degrade_ladder.read(_document("degrade.yaml"))


@cache
def switch() -> ClusterSwitch:
    """The procedure for a lost cluster that ships with Outrider."""
    return cluster_switch.read(_document("cluster-lost.yaml"))


def _document(name: str) -> yaml_file.Document:
    text = resources.files("remediation").joinpath("procedures", name).read_text(encoding="utf-8")
    return yaml_file.parse(text, f"remediation/procedures/{name}")
