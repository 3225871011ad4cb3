"""Both procedures as files: every mistake has its line and key."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outrider.errors import ConfigError
from outrider.text import yaml_file
from remediation.procedures import cluster_switch, degrade_ladder, files
from remediation.procedures.degrade_ladder import Ladders, ServiceOptions

LEVEL = """
    - name: cap_output
      enter: {wait_ratio: 2.0}
      enter_for: 15s
      exit: {wait_ratio: 0.25}
      exit_for: 2m
      load_ratio: 0.6
      content: {max_output_tokens: 192}
"""
LADDER = f"""version: 1
degrade:
  faults: [traffic-surge]
  patience: 2m
  wait_objective: 2s
  dwell: 30s
  longest_exit: 30m
  unmeasured_exit: 10m
  spare_ratio: 0.1
  levels:{LEVEL}"""
SWITCH = """version: 1
cluster_switch:
  faults: [cluster-lost]
  confirm_for: 30s
  verify_for: 2m
  success_ratio: 0.98
  healthy_for: 5m
  fail_back: [0.01, 1.0]
  step_for: 3m
  retry_after: 15m
  status_every: 15m
"""


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("[traffic-surge]", "[traffic-surg]", "degrade.faults[0]"),
        ("patience: 2m", "patience: soon", "degrade.patience"),
        ("spare_ratio: 0.1", "spare_ratio: 2", "degrade.spare_ratio"),
        ("name: cap_output", "name: cap", "degrade.levels[0].name"),
        ("exit: {wait_ratio: 0.25}", "exit: {wait_ratio: 2.0}", "degrade.levels[0].exit.wait_ratio"),
        ("enter: {wait_ratio: 2.0}", "enter: {waiting: 2.0}", "degrade.levels[0].enter"),
        ("exit_for: 2m", "exit_for: 1h", "degrade.levels[0].exit_for"),
        ("max_output_tokens: 192", "max_output_tokens: 0", "degrade.levels[0].content.max_output_tokens"),
        ("max_output_tokens: 192", "reject: [gold]", "degrade.levels[0].content.reject"),
        ("dwell: 30s", "dwel: 30s", "degrade.dwel"),
    ],
)
def test_each_mistake_of_a_ladder_names_its_key(old, new, key):
    assert old in LADDER
    text = LADDER.replace(old, new)
    with pytest.raises(ConfigError) as caught:
        degrade_ladder.read(yaml_file.parse(text, "ladder.yaml"))
    named = {problem.key: problem for problem in caught.value.problems}
    assert key in named
    line = named[key].line
    assert new.split(":")[0].strip("{[") in text.splitlines()[line - 1] or "[" in key


EXEMPT = "degrade.levels[0].content.max_prompt_exempt"
LIMIT = LEVEL.replace("cap_output", "limit_prompts").replace("max_output_tokens: 192", "max_prompt_ratio: 3")
LIMIT = LIMIT.replace("{wait_ratio: 2.0}", "{wait_ratio: 1.0, prompt_ratio: 1.5}")
LIMIT = LIMIT.replace("{wait_ratio: 0.25}", "{wait_ratio: 0.25, rejected_ratio: 0.1}").replace("0.6", "1.0")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("prompt_ratio: 1.5", "overload_ratio: 1.5", "degrade.levels[0].enter"),
        (", rejected_ratio: 0.1", "", "degrade.levels[0].exit"),
        ("max_prompt_ratio: 3", "max_prompt_ratio: 0.5", "degrade.levels[0].content.max_prompt_ratio"),
        ("max_prompt_ratio: 3", "max_output_tokens: 64", "degrade.levels[0].enter"),
        ("max_prompt_ratio: 3", "max_prompt_ratio: 3, max_prompt_exempt: [gold]", EXEMPT),
        ("rejected_ratio: 0.1", "rejected_ratio: 0.1, prompt_ratio: 1.0", "degrade.levels[0].exit.prompt_ratio"),
    ],
)  # fmt: skip
def test_a_limit_of_prompts_is_taken_by_their_length_and_ends_by_what_it_rejects(old, new, key):
    text = LADDER.replace(LEVEL, LIMIT + LEVEL)
    assert old in text
    assert len(degrade_ladder.read(yaml_file.parse(text, "ladder.yaml")).levels) == 2
    with pytest.raises(ConfigError) as caught:
        degrade_ladder.read(yaml_file.parse(text.replace(old, new), "ladder.yaml"))
    assert key in {problem.key for problem in caught.value.problems}


def test_levels_get_deeper():
    text = LADDER + LEVEL.replace("cap_output", "vip_only").replace("0.6", "0.9")
    with pytest.raises(ConfigError, match=r"expected at most 0\.6"):
        degrade_ladder.read(yaml_file.parse(text, "ladder.yaml"))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("[cluster-lost]", "[cluster]", "cluster_switch.faults"),
        ("0.98", "98", "cluster_switch.success_ratio"),
        ("[0.01, 1.0]", "[0.5, 0.1, 1.0]", "cluster_switch.fail_back"),
        ("[0.01, 1.0]", "[0.01, 0.5]", "cluster_switch.fail_back"),
        ("healthy_for: 5m", "healthy_for: 20m", "cluster_switch.healthy_for"),
        ("step_for: 3m", "step: 3m", "cluster_switch.step"),
    ],
)
def test_each_mistake_of_a_switch_names_its_key(old, new, key):
    assert old in SWITCH
    with pytest.raises(ConfigError) as caught:
        cluster_switch.read(yaml_file.parse(SWITCH.replace(old, new), "switch.yaml"))
    assert key in {problem.key for problem in caught.value.problems}


def test_the_packaged_procedures_are_valid():
    assert [level.name for level in files.ladder().levels] == [
        "limit_prompts", "pause_offline", "defer_low_priority", "cap_output", "smaller_model", "vip_only",
    ]  # fmt: skip
    assert files.switch().fail_back[0] == 0.01
    assert files.switch().status_every == timedelta(minutes=15)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (ServiceOptions(), ["limit_prompts", "cap_output", "smaller_model"]),
        (ServiceOptions(pause=("batch",)), ["limit_prompts", "pause_offline", "cap_output", "smaller_model"]),
        (ServiceOptions(classes=frozenset({"offline", "standard"})), [
            "limit_prompts", "pause_offline", "cap_output", "smaller_model",  # nobody is left to defer behind
        ]),
        (ServiceOptions(levels=frozenset({"cap_output"})), ["cap_output"]),
        (ServiceOptions(enabled=False), []),
    ],
)  # fmt: skip
def test_a_service_has_the_levels_that_change_something(options, names):
    ladder = Ladders(files.ladder(), services={"chat": options}).of("chat")
    assert [level.name for level in ladder.levels] == names if ladder else names == []


def test_a_lower_limit_of_the_cap_holds_at_every_level():
    ladders = Ladders(files.ladder(), services={"chat": ServiceOptions(max_output_tokens=512)})
    assert ladders.parameters("chat", 5)["max_output_tokens"] == 512
