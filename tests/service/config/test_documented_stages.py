"""The settings and the playbooks in ``docs/howto/act-in-stages.md`` are valid as they are written."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from outrider.text import yaml_file
from remediation.playbooks.model import read
from service.config import settings

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "act-in-stages.md"
BLOCK = re.compile(r"^ *```yaml\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
BLOCKS = [dedent(block) for block in BLOCK.findall(PAGE.read_text("utf-8"))]
SETTINGS = [block for block in BLOCKS if "remediation:" in block]
PLAYBOOKS = [block for block in BLOCKS if "remediation:" not in block]


@pytest.mark.parametrize("block", SETTINGS)
def test_settings_are_valid(tmp_path, block):
    playbooks = tmp_path / "playbooks.yaml"
    playbooks.write_text(PLAYBOOKS[0])
    file = tmp_path / "outrider.yaml"
    file.write_text(block.replace("/etc/outrider/playbooks.yaml", str(playbooks)))
    _, errors, _ = settings.review(file)
    assert [str(error) for error in errors] == []


@pytest.mark.parametrize("block", PLAYBOOKS)
def test_playbooks_are_valid(block):
    assert read([yaml_file.parse(block, "playbooks.yaml")])
