from __future__ import annotations

import re
from pathlib import Path
from string import Formatter

import pytest

from detectors.rca import fault_catalogue
from outrider.errors import ConfigError
from outrider.model import ActionKind, EntityKind
from outrider.text.i18n import LANGUAGES, texts
from outrider.vocabulary.faults import faults

ENTRY = """
gpu-lost:
  signs: [{signal: hw_accel_present, moves: down}]
  hurts: [service]
  explains: {path: [engine-dead]}
  look_alikes: {exporter-down: {why: exporter_page_came, when: [{absent: exporter-down, within: node}]}}
  checks: [hw_accel_present]
  remedy: [cordon]
  runbook: docs/runbooks/gpu-lost.md
"""


def test_every_fault_of_the_vocabulary_has_an_entry_and_no_other():
    assert set(fault_catalogue.load()) == set(faults())


def test_every_look_alike_of_the_vocabulary_has_a_distinction():
    for fault_id, known in fault_catalogue.load().items():
        assert set(known.fault.confusable) <= {other.name for other in known.look_alikes}, fault_id


def test_every_entry_has_signs_and_checks_and_does_not_explain_itself():
    for fault_id, known in fault_catalogue.load().items():
        assert known.signs, fault_id
        assert known.checks, fault_id
        assert fault_id not in known.consequences("path"), fault_id


def test_every_reason_and_fault_has_texts_in_both_languages():
    wanted = {f"incidents.why.{other.why}" for known in fault_catalogue.load().values() for other in known.look_alikes}
    wanted |= {f"faults.{fault_id}.{part}" for fault_id in faults() for part in ("name", "what", "remedy")}
    wanted |= {f"faults.{state}.name" for state in fault_catalogue.harmless_states()}
    for language in LANGUAGES:
        assert wanted <= set(texts(language))
        ours = {key for key in texts(language) if key.startswith(("incidents.why.", "faults."))}
        assert ours == wanted, "texts that nothing uses"


def test_texts_have_the_same_placeholders_in_both_languages():
    def fields(text):
        return sorted(name for _, name, _, _ in Formatter().parse(text) if name)

    for key, text in texts("en").items():
        if key.startswith(("incidents.", "faults.")):
            assert fields(text) == fields(texts("zh")[key]), key


def test_chinese_texts_are_chinese():
    for key, text in texts("zh").items():
        if key.startswith(("incidents.", "faults.")):
            assert re.search(r"[\u4e00-\u9fff]", text), key


def test_an_entry_is_read():
    known = fault_catalogue.read({"x.yaml": ENTRY})["gpu-lost"]
    assert known.hurts == {EntityKind.SERVICE}
    assert known.consequences("path") == {"engine-dead"}
    assert known.consequences("peers") == frozenset()
    assert known.resembles("exporter-down")
    assert not known.resembles("node-lost")
    assert known.remedy == (ActionKind.CORDON,)


ALIKE = "{exporter-down: {why: exporter_page_came, when: [{absent: exporter-down, within: node}]}}"
WHEN = "[{absent: exporter-down, within: node}]"
OTHER = "gpu-lost.look_alikes.exporter-down"
SHAPES = [
    # old, new, line, key, expected message
    ("signs: [{signal: hw_accel_present, moves: down}]", "signs: null", 3, "gpu-lost.signs", "a list, not nothing"),
    ("signs: [{signal: hw_accel_present, moves: down}]", "signs: down", 3, "gpu-lost.signs", "a list, not 'down'"),
    ("[{signal: hw_accel_present, moves: down}]", "[down]", 3, "gpu-lost.signs[0]", "a mapping of keys, not 'down'"),
    ("[{signal: hw_accel_present, moves: down}]", "[null]", 3, "gpu-lost.signs[0]", "a mapping of keys, not nothing"),
    ("signal: hw_accel_present, ", "", 3, "gpu-lost.signs[0]", '"signal" is missing'),
    ("signal: hw_accel_present", "signal: [a]", 3, "gpu-lost.signs[0].signal", "the name of a signal, not a list"),
    ("hurts: [service]", "hurts: 3", 4, "gpu-lost.hurts", "a list, not 3"),
    ("hurts: [service]", "hurts: service", 4, "gpu-lost.hurts", "a list, not 'service'"),
    ("hurts: [service]", "hurts: [{service: 1}]", 4, "gpu-lost.hurts[0]", "text, not a mapping"),
    ("explains: {path: [engine-dead]}", "explains: [engine-dead]", 5, "gpu-lost.explains",
     "a mapping of keys, not a list"),
    ("explains: {path: [engine-dead]}", "explains: null", 5, "gpu-lost.explains", "a mapping of keys, not nothing"),
    ("path: [engine-dead]", "path: engine-dead", 5, "gpu-lost.explains.path", "a list, not 'engine-dead'"),
    ("path: [engine-dead]", "path: [1]", 5, "gpu-lost.explains.path[0]", "text, not 1"),
    (ALIKE, "[exporter-down]", 6,
     "gpu-lost.look_alikes", "a mapping of keys, not a list"),
    (ALIKE, "exporter-down", 6,
     "gpu-lost.look_alikes", "a mapping of keys, not 'exporter-down'"),
    (WHEN, "never", 6, f"{OTHER}.when", "a list, not 'never'"),
    (WHEN, "[never]", 6, f"{OTHER}.when[0]", "not 'never'"),
    (WHEN, "[{}]", 6, f"{OTHER}.when[0]", "needs one of"),
    (WHEN, "[{signal: engine_up, above: high}]", 6,
     f"{OTHER}.when[0].above", "a number, not 'high'"),
    ("why: exporter_page_came", "why: exporter_page_comes", 6, f"{OTHER}.why",
     'unknown text "exporter_page_comes"; did you mean "exporter_page_came"?'),
    ("why: exporter_page_came", "why: 7", 6, f"{OTHER}.why", "the key of a text, not 7"),
    ("checks: [hw_accel_present]", "checks: {a: b}", 7, "gpu-lost.checks", "a list, not a mapping"),
    ("remedy: [cordon]", "remedy: cordon", 8, "gpu-lost.remedy", "a list, not 'cordon'"),
    ("docs/runbooks/gpu-lost.md", "the-wiki", 9, "gpu-lost.runbook",
     "docs/runbooks/gpu-lost.md, or an address, not 'the-wiki'"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "line", "key", "message"), SHAPES)
def test_a_value_of_the_wrong_type_is_reported_with_location_and_expectation(old, new, line, key, message):
    assert old in ENTRY
    with pytest.raises(ConfigError) as caught:
        fault_catalogue.read({"x.yaml": ENTRY.replace(old, new)})
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.key) == ("x.yaml", line, key)
    assert message in problem.message


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("[gpu-lost]", "(file)", "a mapping of keys, not a list"),
        ("gpu-lost", "(file)", "a mapping of keys, not 'gpu-lost'"),
        ("[]", "(file)", "a mapping of keys, not a list"),
        ("gpu-lost:", "gpu-lost", "a mapping of keys, not nothing"),
        ("gpu-lost: broken", "gpu-lost", "a mapping of keys, not 'broken'"),
        ("groups:", "groups", "a mapping of keys, not nothing"),
        ("groups: [gpu-lost]", "groups", "a mapping of keys, not a list"),
        ("groups: gpu-lost", "groups", "a mapping of keys, not 'gpu-lost'"),
        ("groups: {card: gpu-lost}", "groups.card", "a list, not 'gpu-lost'"),
        ("groups: {card: [1]}", "groups.card[0]", "text, not 1"),
        ("79: {}", "(file)", "keys that are text, not 79"),
    ],
)
def test_a_file_of_the_wrong_type_is_reported(text, key, message):
    with pytest.raises(ConfigError) as caught:
        fault_catalogue.read({"x.yaml": text})
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.key) == ("x.yaml", 1, key)
    assert message in problem.message


def test_every_mistake_of_every_file_is_reported_at_once():
    first = ENTRY.replace("hurts: [service]", "hurts: 3").replace("remedy: [cordon]", "remedy: [pray]")
    second = ENTRY.replace("gpu-lost:", "gpu-xid-hardware:").replace("signs: [{", "signs: [7, {")
    with pytest.raises(ConfigError) as caught:
        fault_catalogue.read({"y.yaml": second, "x.yaml": first})
    locations = [(problem.file, problem.line) for problem in caught.value.problems]
    assert locations == [("x.yaml", 4), ("x.yaml", 8), ("y.yaml", 3)]


def test_an_empty_file_adds_nothing():
    assert set(fault_catalogue.read({"x.yaml": ENTRY, "y.yaml": "# nothing yet\n"})) == {"gpu-lost"}


def test_every_runbook_of_the_packaged_catalogue_exists():
    root = Path(__file__).resolve().parents[3]
    for fault_id, known in fault_catalogue.load().items():
        assert (root / known.runbook).is_file(), fault_id


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("gpu-lost:", "gpu-lots:", 2, 'unknown fault "gpu-lots"; did you mean "gpu-lost"?'),
        ("signal: hw_accel_present", "signal: hw_accel_presence", 3, 'unknown signal "hw_accel_presence"'),
        ("moves: down", "moves: sideways", 3, 'unknown move "sideways"'),
        ("hurts: [service]", "hurts: [servise]", 4, 'unknown kind "servise"'),
        ("[engine-dead]", "[engine-deed]", 5, 'unknown fault "engine-deed"'),
        ("[engine-dead]", '["@engines"]', 5, 'unknown group "engines"'),
        ("path:", "paths:", 5, 'unknown key "paths"'),
        ("{exporter-down: {why", "{exporter-gone: {why", 6, 'unknown fault or state "exporter-gone"'),
        ("within: node", "within: house", 6, 'unknown reach "house"'),
        ("remedy: [cordon]", "remedy: [pray]", 8, 'unknown action "pray"'),
        ("  remedy: [cordon]\n", "", 2, '"remedy" is missing'),
        ("when: [{absent: exporter-down, within: node}]", "when: [{signal: engine_up}]", 6, "needs"),
        ("why: exporter_page_came, ", "", 6, "needs"),
    ],
)
def test_mistakes_are_reported_with_file_and_line(old, new, line, message):
    assert old in ENTRY
    with pytest.raises(ConfigError) as caught:
        fault_catalogue.read({"x.yaml": ENTRY.replace(old, new)})
    (problem, *_) = caught.value.problems
    assert (problem.file, problem.line) == ("x.yaml", line)
    assert message in problem.message


def test_a_fault_in_two_files_is_rejected():
    with pytest.raises(ConfigError, match="is also defined in another file"):
        fault_catalogue.read({"x.yaml": ENTRY, "y.yaml": ENTRY})


OWN = """
groups: {front: [gateway-fault, traffic-surge]}
gpu-lost:
  runbook: https://wiki.example.org/gpu-lost
  explains: {peers: ["@front"], path: ["@engine-stops"]}
"""


def test_user_files_override_their_keys_only():
    packaged, known = fault_catalogue.load(), fault_catalogue.load_with({"own/gpus.yaml": OWN})
    assert known["gpu-lost"].runbook == "https://wiki.example.org/gpu-lost"
    assert known["gpu-lost"].consequences("peers") == {"gateway-fault", "traffic-surge"}
    assert known["gpu-lost"].consequences("path") >= {"engine-dead"}, "packaged groups are known to own files"
    assert known["gpu-lost"].signs == packaged["gpu-lost"].signs
    assert {fault: one for fault, one in known.items() if fault != "gpu-lost"} == {
        fault: one for fault, one in packaged.items() if fault != "gpu-lost"
    }
    assert fault_catalogue.load_with({}) is packaged


def test_a_user_group_with_a_packaged_name_changes_no_packaged_entry():
    known = fault_catalogue.load_with({"own.yaml": "groups: {engine-stops: [gpu-oom]}\n"})
    assert known == fault_catalogue.load()


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
    [
        ("gpu-lots: {runbook: ''}", 1, "gpu-lots", 'unknown fault "gpu-lots"; did you mean "gpu-lost"?'),
        ("\ngpu-lost: {steps: []}", 2, "gpu-lost.steps", "unknown key"),
        ("gpu-lost:\n  remedy: [explode]", 2, "gpu-lost.remedy[0]", "unknown action"),
        ("gpu-lost:\n  signs: 5", 2, "gpu-lost.signs", "expected"),
        ("- 1", 1, "(file)", "expected"),
    ],
)
def test_a_mistake_in_a_user_file_is_reported(text, line, key, message):
    with pytest.raises(ConfigError) as refused:
        fault_catalogue.load_with({"own.yaml": text})
    (problem,) = refused.value.problems
    assert (problem.file, problem.line) == ("own.yaml", line)
    assert problem.key == key
    assert message in problem.message


def test_a_fault_in_two_user_files_is_rejected():
    with pytest.raises(ConfigError, match="is also defined in another file"):
        fault_catalogue.load_with({"a.yaml": "gpu-lost: {remedy: []}", "b.yaml": "gpu-lost: {checks: []}"})
