"""Data files that ship with the detectors, as text. No other module of ``detectors`` reads files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources


@cache
def fault_knowledge() -> Mapping[str, str]:
    """The fault knowledge base: YAML texts by file name, in the order of the names."""
    folder = resources.files("detectors").joinpath("knowledge")
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda entry: entry.name)
    return {f"detectors/knowledge/{entry.name}": entry.read_text(encoding="utf-8") for entry in files}


def fault_vocabulary() -> str:
    """Text of the fault vocabulary, which also lists the states that are not faults."""
    return _read("outrider.vocabulary", "faults.yaml")


def nvidia_codes() -> str:
    """Text of NVIDIA's XID table."""
    return _read("detectors.hardware", "xid.yaml")


def vendor_codes() -> str:
    """Text of the fault-code tables of Ascend and AMD."""
    return _read("detectors.hardware", "vendor_codes.yaml")


def confidence() -> str:
    """Text of the fitted confidence scale."""
    return _read("detectors.rca", "confidence.yaml")


def _read(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
