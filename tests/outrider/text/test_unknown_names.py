"""Names outside a known set: the nearest known one, and all of them."""

from __future__ import annotations

import pytest

from outrider.text.unknown_names import no_such
from outrider.text.yaml_file import near


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("drian", ["drain", "cordon"], "drain"),
        ("DRAIN", ["drain", "cordon"], "drain"),
        ("k8s", ["dry_run", "kubernetes"], "kubernetes"),
        ("h100", ["H100", "A100"], "H100"),
    ],
)
def test_the_nearest_name_is_given_as_it_is_written(name, known, expected):
    assert near(name, known) == f'; did you mean "{expected}"?'


def test_a_short_form_of_an_unknown_word_means_nothing():
    assert near("k8s", ["dry_run", "simulated"]) == ""


def test_the_error_names_every_known_name_once():
    error = no_such("service", "chta", ["chat", "code", "chat"])
    assert error.message == "no service is named 'chta'; did you mean \"chat\"?"
    assert error.hint == "known services: chat, code"
    assert no_such("service", "chta", []).hint == "known services: none yet"
