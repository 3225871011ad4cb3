"""The packaged playbooks cover the vocabulary of faults."""

from __future__ import annotations

import pytest

from outrider.model import ActionKind
from outrider.text.i18n import LANGUAGES, texts
from outrider.vocabulary.faults import faults
from remediation.playbooks.conditions import Condition
from remediation.playbooks.files import packaged
from simulator.scoring.beyond_repair import beyond_repair


@pytest.mark.parametrize("fault", faults())
def test_every_fault_has_steps_or_a_reason(fault):
    playbook = packaged()[fault]
    assert bool(playbook.steps) != bool(playbook.none)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_reason_exists_in_both_languages(language):
    known = texts(language)
    for playbook in packaged().values():
        for text in (playbook.none, *(step.escalate.text for step in playbook.steps)):
            assert not text or text in known, (playbook.fault, text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_condition_has_a_name(language):
    assert {f"words.condition.{condition}" for condition in Condition} <= set(texts(language))


def test_a_step_that_pages_has_a_check():
    for playbook in packaged().values():
        for step in playbook.steps:
            assert step.escalate.kind != "page" or step.verify, playbook.fault


def test_resets_and_reboots_need_approval():
    kinds = (ActionKind.RESET_GPU, ActionKind.REBOOT_NODE)
    steps = [step for playbook in packaged().values() for step in playbook.steps if step.kind in kinds]
    assert steps
    assert all(step.ask and step.require for step in steps)


def test_faults_beyond_repair_are_faults():
    assert set(beyond_repair()) <= set(faults())
    assert all(reason.endswith(".") for reason in beyond_repair().values())
