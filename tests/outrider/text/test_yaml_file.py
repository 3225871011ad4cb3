import pytest

from outrider.errors import ConfigError
from outrider.text import yaml_file


def test_lines_are_known_for_keys_and_items():
    document = yaml_file.parse("a:\n  b: 1\n  c:\n    - x\n    - y\n", "f.yaml")
    assert document.line(("a", "b")) == 2
    assert document.line(("a", "c", 1)) == 5
    assert document.line(("a", "missing")) == 1


def test_a_syntax_error_names_its_line():
    with pytest.raises(ConfigError) as caught:
        yaml_file.parse("a: 1\nb: c: d\n", "f.yaml")
    assert caught.value.problems[0].line == 2


def test_a_duplicate_key_is_rejected():
    with pytest.raises(ConfigError, match=r"f\.yaml:2: a: is duplicated, first in line 1"):
        yaml_file.parse("a: 1\na: 2\n", "f.yaml")


def test_a_missing_file_has_a_hint_how_to_create_one(tmp_path):
    with pytest.raises(ConfigError) as caught:
        yaml_file.read(tmp_path / "none.yaml")
    assert "config init" in caught.value.hint
