"""Reads rule files: the packaged ones and those of the operator. No other module of the rules reads files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from alerts.rules.parser import RuleEntry, merge_entries
from outrider.text import yaml_file
from outrider.vocabulary.rules import Rule


def load_rules(paths: Sequence[Path] | None = None, enable: Sequence[str] = ()) -> tuple[Rule, ...]:
    """The rules in force: the packaged ones, changed by the files in ``paths``, with those of ``enable`` switched on.

    Raises ConfigError if a file cannot be read, and as ``merge_entries`` does.
    """
    return tuple(entry.rule for entry in load_entries(paths, enable) if entry.enabled)


def load_entries(paths: Sequence[Path] | None = None, enable: Sequence[str] = ()) -> tuple[RuleEntry, ...]:
    """All rules, also those that are off. Raises as ``load_rules`` does."""
    return merge_entries((*packaged(), *(yaml_file.read(path) for path in paths or ())), enable)


@cache
def packaged() -> tuple[yaml_file.Document, ...]:
    """The rule files that ship with Outrider, by name."""
    folder = resources.files("alerts").joinpath("rules")
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda entry: entry.name)
    return tuple(yaml_file.parse(entry.read_text(encoding="utf-8"), f"alerts/rules/{entry.name}") for entry in files)
