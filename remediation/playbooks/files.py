"""Reads the packaged playbooks. No other module of ``playbooks`` or ``decide`` reads files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

from outrider.text import yaml_file
from remediation.playbooks.model import Playbook, read


@cache
def packaged() -> Mapping[str, Playbook]:
    """The playbooks that ship with Outrider, by fault id."""
    folder = resources.files("remediation").joinpath("playbooks")
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda entry: entry.name)
    texts = [(entry.read_text(encoding="utf-8"), f"remediation/playbooks/{entry.name}") for entry in files]
    return read([yaml_file.parse(text, name) for text, name in texts])
