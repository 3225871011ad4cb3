"""Reads the packaged playbooks and the operator's own. No other module of ``playbooks`` or ``decide`` reads files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path

from outrider.errors import ConfigError, ConfigProblem
from outrider.text import yaml_file
from remediation.playbooks.model import Playbook, read


@cache
def packaged() -> Mapping[str, Playbook]:
    """The playbooks that ship with Outrider, by fault id."""
    folder = resources.files("remediation").joinpath("playbooks")
    files = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".yaml")), key=lambda entry: entry.name)
    texts = [(entry.read_text(encoding="utf-8"), f"remediation/playbooks/{entry.name}") for entry in files]
    return read([yaml_file.parse(text, name) for text, name in texts])


def load(files: Iterable[Path]) -> Mapping[str, Playbook]:
    """The packaged playbooks, and those of ``files``, which replace a packaged one of the same fault.

    Raises ConfigError with file, line and key of every mistake, also of a fault that two of the files describe.
    """
    documents, problems = list[yaml_file.Document](), list[ConfigProblem]()
    for file in files:
        try:
            documents.append(yaml_file.read(file))
        except ConfigError as error:
            problems += error.problems or (ConfigProblem(str(file), 0, "(file)", error.message),)
    described: dict[str, str] = {}
    for document in documents:
        entries = document.value.get("playbooks") if isinstance(document.value, dict) else None
        for fault in entries if isinstance(entries, dict) else ():
            first = described.setdefault(str(fault), document.file)
            if first != document.file:
                problems.append(document.problem(("playbooks", str(fault)), f"{first} describes this fault already"))
    try:
        own = read(documents)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise yaml_file.refuse(problems)
    return {**packaged(), **own}
