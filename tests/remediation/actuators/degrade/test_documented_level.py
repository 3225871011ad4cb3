"""The document of a level, as the documentation shows it to the authors of gateways."""

from __future__ import annotations

import json
import re
from pathlib import Path

from outrider.model import ActionKind
from remediation.actuators.degrade.actuator import document
from tests.support.kube_actions import an_action, service_ref

PAGE = Path(__file__).parents[4] / "docs" / "explanation" / "degradation.md"


def test_the_documented_example_has_every_key_of_a_level() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    sent = document(an_action(ActionKind.DEGRADE_SERVICE, service_ref("chat-70b"), level=3))
    assert list(json.loads(example)) == list(sent)
