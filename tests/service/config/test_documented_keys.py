"""Keys of ``remediation`` and ``oncall`` show how they are written: by their default or by a valid example."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args

import pytest
import yaml
from pydantic import BaseModel, Field, TypeAdapter
from pydantic.fields import FieldInfo

from service.config.oncall_settings import OnCallSettings
from service.config.remediation_settings import RemediationSettings


def section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(section_in, get_args(annotation))), None)


def keys_of(model: type[BaseModel], path: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yields every key with its path, except those that are a section of their own."""
    for name, field in model.model_fields.items():
        inner, where = section_in(field.annotation), f"{path}.{name}"
        single = inner is not None and any(each is inner for each in (field.annotation, *get_args(field.annotation)))
        if not (single and not str(field.annotation).startswith(("list", "dict"))):
            yield where, field
        if inner is not None:
            yield from keys_of(inner, where)


KEYS = dict([*keys_of(RemediationSettings, "remediation"), *keys_of(OnCallSettings, "oncall")])


@pytest.mark.parametrize("key", KEYS)
def test_a_key_has_a_meaning_and_a_default_or_an_example(key):
    field = KEYS[key]
    assert field.description
    assert field.examples or (not field.is_required() and field.default not in (None, "", [], {})), key


@pytest.mark.parametrize("key", [key for key, field in KEYS.items() if field.examples])
def test_an_example_is_valid(key):
    field = KEYS[key]
    for example in field.examples:
        TypeAdapter(Annotated[field.annotation, Field(), *field.metadata]).validate_python(yaml.safe_load(example))


def test_the_keys_of_every_level_are_checked():
    assert {"remediation.actuators", "remediation.freezes.start", "remediation.hooks.job.limits"} <= set(KEYS)
    assert {"oncall.people.contacts.mention", "oncall.schedules.rotations.hours.start"} <= set(KEYS)
    assert len(KEYS) > 190
