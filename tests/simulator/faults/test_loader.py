from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from outrider.errors import ConfigError
from outrider.model import EntityKind, Layer
from outrider.vocabulary.faults import faults
from simulator.faults import FAULTS
from simulator.faults.actions import ACTIONS
from simulator.faults.definition import FaultDefinition
from simulator.faults.loader import load, never_a_fault
from simulator.faults.onset import Onset

GOOD = """\
fault: gpu-power-throttle
lasts: 12m
onset: {shape: ramp, seconds: 60}
likely: serving
effects:
  - {lever: gpus.power_limit_ratio, do: multiply, to: [0.7, 0.45]}
deeds:
  - {at: 2s, every: 1m, do: change, code: power-limit, text: "GPU {index} of {node}"}
symptoms: [hw_accel_power_watts]
"""


def read(text: str, name: str = "gpu-power-throttle") -> FaultDefinition:
    with TemporaryDirectory() as folder:
        (Path(folder) / f"{name}.yaml").write_text(text)
        return load(Path(folder))[name]


def refusal(before: str, after: str) -> str:
    assert before in GOOD
    with pytest.raises(ConfigError) as refused:
        read(GOOD.replace(before, after))
    return str(refused.value)


def test_a_file_defines_everything_about_a_fault() -> None:
    result = read(GOOD)
    assert (result.fault, result.kind, result.layer) == ("gpu-power-throttle", EntityKind.GPU, Layer.HARDWARE)
    assert result.lasts == timedelta(minutes=12)
    assert result.onset == Onset("ramp", seconds=60.0)
    assert (result.holds, result.likely, result.negative) == ("place", "serving", False)
    effect, action = result.effects[0], result.actions[0]
    assert (effect.group, effect.effect_name, effect.do) == ("gpus", "power_limit_ratio", "multiply")
    assert [effect.value(draw) for draw in (0.0, 0.5, 1.0)] == pytest.approx([0.7, 0.575, 0.45])
    assert (action.do, action.at_seconds, action.every_seconds) == ("change", 2.0, 60.0)
    assert action.arguments == {"code": "power-limit", "text": "GPU {index} of {node}"}


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("gpu-power-throttle", "gpu-power-trottle", '.yaml:1: fault: "gpu-power-trottle" is not a known fault id'),
        ("lasts: 12m", "lasts: soon", ".yaml:2: lasts: 'soon' is not a duration"),
        ("lasts: 12m", "lasts: 0s", ".yaml:2: lasts: must be more than 0 s"),
        ("lasts: 12m\n", "", "lasts: is missing"),
        ("seconds: 60", "seconds: 0", ".yaml:3: onset: ramp needs seconds above 0"),
        ("shape: ramp", "shape: rmap", '"rmap" is not one of step, ramp, intermittent'),
        ("seconds: 60", "on_seconds: 60", "unknown key"),
        ("likely: serving", "likely: busy", ".yaml:4: likely"),
        ("likely: serving", "holds: revision", "no deed is a rollout"),
        ("likely: serving", "needs: [moonlight]", '"moonlight" is not a known need'),
        ("likely: serving", "excludes: [gpu-lots]", 'did you mean "gpu-lost"?'),
        ("likely: serving", "entity: gpu", "is defined by the fault id"),
        ("likely: serving", "color: red", ".yaml:4: color: unknown key"),
        (
            "gpus.power_limit_ratio",
            "gpus.power_limit",
            '.yaml:6: effects[0].lever: "gpus.power_limit" is not an effect',
        ),
        ("gpus.power_limit_ratio", "cluster.alive", "the fault is about one gpu"),
        ("do: multiply", "do: divide", "effects[0].do"),
        ("do: multiply, ", "", "needs do"),
        ("[0.7, 0.45]", "[0.45, 0.7]", ".yaml:6: effects[0].to: runs from 0.45 to 0.7: write it"),
        ("[0.7, 0.45]", "[0.7, 1.6]", "away from 1"),
        ("[0.7, 0.45]", "[0.7, 0.6, 0.5]", "must be one number, or two"),
        ("[0.7, 0.45]", "much", "'much' is not a number"),
        ("to: [0.7, 0.45]", "to: 0.5, of: capacity", "capacity applies only to effects of services"),
        ("to: [0.7, 0.45]", "to: 0.5, since: process", "process applies only to effects of slots"),
        ("do: change", "do: chance", '.yaml:8: deeds[0].do: "chance" is not an action; did you mean "change"?'),
        ("at: 2s", "at: noon", "deeds[0].at: 'noon' is not a duration"),
        ("at: 2s, ", "", "needs at: start, end, or a duration"),
        ("at: 2s", "at: end", "is not allowed with at: end"),
        ("every: 1m", "every: 0s", "every: must be more than 0 s"),
        ("code: power-limit, ", "", "change needs code"),
        ("code: power-limit", "kode: power-limit", 'unknown key; did you mean "code"?'),
        ("code: power-limit", "code: 7", "7 is not of type str"),
        ("{index}", "{indx}", '"{indx}" is not a field; did you mean "index"?'),
        ("{index}", "{index", "unbalanced braces"),
        ("code: power-limit", 'code: x, about: "moon"', '"moon" is not one of'),
        ("[hw_accel_power_watts]", "[hw_accel_power_wats]", '.yaml:9: symptoms[0]: "hw_accel_power_wats" is'),
        ("[hw_accel_power_watts]", "hw_accel_power_watts", "is not a list"),
        ("likely: serving", "cures: [{action: reset_gpu, after: 1m}]", "unknown key"),
        ("likely: serving", "cures: [{action: reset_gpus}]", 'cures[0].action: "reset_gpus" is not one of'),
        ("likely: serving", "cures: [{until: 1m}]", "cures[0]: needs action: wake_engine, reset_gpu, reboot_node"),
        ("likely: serving", "cures: [{action: wake_engine}]", "wake_engine cannot cure a fault of a gpu"),
        ("likely: serving", "cures: [{action: reset_gpu, until: soon}]", "'soon' is not a duration"),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_key(before: str, after: str, message: str) -> None:
    assert message in refusal(before, after)


def test_xids_without_a_driver_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="7 is not an XID"):
        read(GOOD.replace('change, code: power-limit, text: "GPU {index} of {node}"', "xid, code: [79, 7]"))


def test_every_mistake_of_every_file_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "gpu-power-throttle.yaml").write_text(GOOD.replace("12m", "soon").replace("2s", "noon"))
    (tmp_path / "gpu-lost.yaml").write_text("fault: node-lost\nlasts: 5m\n")
    with pytest.raises(ConfigError) as refused:
        load(tmp_path)
    problems = [(Path(problem.file).name, problem.line, problem.key) for problem in refused.value.problems]
    assert problems == [
        ("gpu-lost.yaml", 1, "fault"),
        ("gpu-power-throttle.yaml", 2, "lasts"),
        ("gpu-power-throttle.yaml", 8, "deeds[0].at"),
    ]
    assert "and 2 more" in str(refused.value)


def test_a_negative_file_names_its_state_and_entity_kind() -> None:
    text = "fault: engine-idle\nnegative: true\nentity: replica\nlasts: 5m\n"
    result = read(text, "engine-idle")
    assert (result.negative, result.kind, result.layer) == (True, EntityKind.REPLICA, None)
    with pytest.raises(ConfigError, match="a negative file needs its entity kind"):
        read(text.replace("entity: replica\n", ""), "engine-idle")
    with pytest.raises(ConfigError, match='"gpu-lost" is not a known state of never_a_fault'):
        read(text.replace("engine-idle", "gpu-lost"), "gpu-lost")


def test_every_fault_and_state_of_the_vocabulary_has_its_file() -> None:
    assert set(FAULTS) == {*faults(), *never_a_fault()}
    for name, declared in FAULTS.items():
        assert declared.negative == (name in never_a_fault())
        assert declared.symptoms or declared.negative
        assert declared.effects or declared.actions


def test_every_annotation_of_an_action_is_one_that_files_can_give() -> None:
    known = {"str", "int", "bool", "timedelta | None", "tuple[int, ...]"}
    assert {kind for action in ACTIONS.values() for kind in action.arguments.values()} <= known


@pytest.mark.parametrize(
    ("onset", "elapsed", "strength"),
    [
        (Onset(), -1.0, 0.0),
        (Onset(), 0.0, 1.0),
        (Onset("ramp", seconds=60.0), 15.0, 0.25),
        (Onset("ramp", seconds=60.0), 600.0, 1.0),
        (Onset("intermittent", on_seconds=10.0, off_seconds=20.0), 9.0, 1.0),
        (Onset("intermittent", on_seconds=10.0, off_seconds=20.0), 10.0, 0.0),
        (Onset("intermittent", on_seconds=10.0, off_seconds=20.0), 31.0, 1.0),
    ],
)
def test_onsets(onset: Onset, elapsed: float, strength: float) -> None:
    assert onset.strength(elapsed) == strength
