"""Each runbook has the title of its alert."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outrider.text.i18n import texts

RUNBOOKS = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
TITLES = {key.removeprefix("alerts.").removesuffix(".name"): text for key, text in texts("en").items()
          if key.startswith("alerts.") and key.endswith(".name")}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TITLES))
def test_a_runbook_has_the_title_of_its_alert(name: str) -> None:
    title = re.sub(r" of \{\w+\}", "", TITLES[name])  # a runbook is for every SLO
    assert (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8").partition("\n")[0] == f"# {title}"


def test_every_runbook_belongs_to_an_alert() -> None:
    assert {file.stem for file in RUNBOOKS.glob("*.md")} - {"index"} == set(TITLES)
