from __future__ import annotations

import re
from pathlib import Path

from detectors import registry
from outrider.text.i18n import LANGUAGES, texts
from outrider.vocabulary import catalog
from outrider.vocabulary.faults import faults
from service.engine import watchdogs

FOLDER = Path(registry.__file__).parent


def test_every_detector_is_registered_under_its_own_name():
    assert all(factory().name == name for name, factory in registry.DETECTORS.items())


def test_every_column_is_in_the_catalogue():
    for factory in registry.DETECTORS.values():
        assert {key.name for key in factory().keys} <= set(catalog.signals())


def test_every_text_of_a_finding_exists_in_both_languages():
    speakers = [*FOLDER.rglob("*.py"), Path(watchdogs.__file__)]
    sources = "".join(path.read_text() for path in speakers)
    written = {key.removeprefix("findings.") for key in texts("en") if key.startswith("findings.")}
    spoken = set(re.findall(r'"(?:findings\.)?([a-z0-9_]+)"', sources))
    assert written <= spoken, "texts that nothing speaks"
    for language in LANGUAGES:
        assert {key for key in texts(language) if key.startswith("findings.")} == {f"findings.{key}" for key in written}


def _placeholders(text: str) -> set[str]:
    """Names, without their formats: a Chinese text writes a duration in its own units."""
    return set(re.findall(r"{(\w+)(?::\w+)?}", text))


def test_texts_have_the_same_placeholders_in_both_languages():
    for key, text in texts("en").items():
        if key.startswith("findings."):
            assert _placeholders(text) == _placeholders(texts("zh")[key]), key


def test_every_fault_named_in_the_code_is_in_the_vocabulary():
    quoted = set(
        re.findall(
            r'"((?:gpu|node|engine|traffic|kv|pcie|ib|nvlink|exporter|monitor)-[a-z-]+)"',
            "".join(
                (FOLDER / name).read_text()
                for name in (
                    "engine/liveness.py",
                    "load/saturation.py",
                    "hardware/gpu_faults.py",
                    "platform/scrape_targets.py",
                )
            ),
        )
    )
    assert quoted - set(registry.DETECTORS) <= set(faults())
