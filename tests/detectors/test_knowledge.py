from __future__ import annotations

import re
from string import Formatter

import pytest

from detectors import knowledge
from outrider.errors import ConfigError
from outrider.faults import faults
from outrider.i18n import LANGUAGES, texts
from outrider.model import ActionKind, EntityKind

ENTRY = """
gpu-lost:
  signs: [{signal: hw_accel_present, moves: down}]
  hurts: [service]
  explains: {path: [engine-dead]}
  look_alikes: {exporter-down: {why: exporter_page_came, when: [{absent: exporter-down, within: node}]}}
  checks: [hw_accel_present]
  remedy: [cordon]
"""


def test_every_fault_of_the_vocabulary_has_an_entry_and_no_other():
    assert set(knowledge.load()) == set(faults())


def test_every_confusable_of_the_vocabulary_is_told_apart():
    for fault_id, known in knowledge.load().items():
        assert set(known.fault.confusable) <= {other.name for other in known.look_alikes}, fault_id


def test_every_entry_has_signs_and_checks_and_explains_not_itself_on_its_path():
    for fault_id, known in knowledge.load().items():
        assert known.signs, fault_id
        assert known.checks, fault_id
        assert fault_id not in known.consequences("path"), fault_id


def test_every_why_and_every_fault_has_its_texts_in_both_languages():
    wanted = {f"incidents.why.{other.why}" for known in knowledge.load().values() for other in known.look_alikes}
    wanted |= {f"faults.{fault_id}.{part}" for fault_id in faults() for part in ("name", "what", "remedy")}
    wanted |= {f"faults.{state}.name" for state in knowledge.harmless_states()}
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
    known = knowledge.read({"x.yaml": ENTRY})["gpu-lost"]
    assert known.hurts == {EntityKind.SERVICE}
    assert known.consequences("path") == {"engine-dead"}
    assert known.consequences("peers") == frozenset()
    assert known.resembles("exporter-down")
    assert not known.resembles("node-lost")
    assert known.remedy == (ActionKind.CORDON,)


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
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
        ("  remedy: [cordon]", "", 2, '"remedy" is missing'),
        ("when: [{absent: exporter-down, within: node}]", "when: [{signal: engine_up}]", 6, "needs"),
        ("why: exporter_page_came, ", "", 6, "needs"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(old, new, line, said):
    assert old in ENTRY
    with pytest.raises(ConfigError) as caught:
        knowledge.read({"x.yaml": ENTRY.replace(old, new)})
    (problem, *_) = caught.value.problems
    assert (problem.file, problem.line) == ("x.yaml", line)
    assert said in problem.message


def test_a_fault_in_two_files_is_refused():
    with pytest.raises(ConfigError, match="stands in another file too"):
        knowledge.read({"x.yaml": ENTRY, "y.yaml": ENTRY})
