"""Changes one key of one rule in the text of a rules file and keeps every other character. Pure."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from outrider.errors import UsageError

_EMPTY = "version: 1\nrules:\n"


def with_key(text: str, file: str, rule: str, key: str, value: str, *, part: tuple[int, int, str] | None = None) -> str:
    """The text with ``key: value`` in the named rule; a missing rule is appended.

    ``part`` (start, end, replacement) is the part of the current value, with normalized spaces, to replace. If it is
    found in the text, a multi-line expression keeps its lines. Raises UsageError for a text that cannot be changed in
    place, such as one with anchors.
    """
    try:
        source = text if yaml.safe_load(text) is not None else text + _EMPTY
        expected = _expected(yaml.safe_load(source), rule, key, value)
        candidates = list(_candidates(source, rule, key, value, part))
    except (yaml.YAMLError, TypeError, AttributeError, KeyError) as error:
        raise _not_in_place(file, rule, key, value) from error
    for changed in candidates:
        try:
            if _same(yaml.safe_load(changed), expected, rule, key):
                return changed
        except yaml.YAMLError:
            continue
    raise _not_in_place(file, rule, key, value)


def _not_in_place(file: str, rule: str, key: str, value: str) -> UsageError:
    return UsageError(
        f"{file}: rule {rule} cannot be changed in place",
        hint=f"edit the file by hand: name: {rule}, {key}: {value}",
    )


def _expected(plain: Any, rule: str, key: str, value: str) -> Any:
    result = copy.deepcopy(plain)
    result["rules"] = list(result.get("rules") or [])
    entry = next((item for item in result["rules"] if isinstance(item, dict) and item.get("name") == rule), None)
    if entry is None:
        result["rules"].append({"name": rule, key: value})
    else:
        entry[key] = value
    return result


def _same(plain: Any, expected: Any, rule: str, key: str) -> bool:
    """Equality except for line breaks inside the changed value."""
    for result in (plain, expected):
        for item in result["rules"]:
            if isinstance(item, dict) and item.get("name") == rule:
                item[key] = " ".join(str(item[key]).split())
    return bool(plain == expected)


def _candidates(text: str, rule: str, key: str, value: str, part: tuple[int, int, str] | None) -> list[str]:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    rules = _child(root, "rules")
    entry = next((item for item in getattr(rules, "value", ()) if _named(item, rule)), None)
    if entry is None:
        return _added(text, root, rules, rule, key, value)
    present = _child(entry, key)
    if present is None:
        return [_inserted(text, entry, key, value)]
    start, end = present.start_mark.index, present.end_mark.index
    whole = text[:start] + _quoted(value) + ("\n" if text[start:end].endswith("\n") else "") + text[end:]
    now = " ".join(str(present.value).split())
    fits = part is not None and now[: part[0]] + part[2] + now[part[1] :] == value
    inside = _in_place(text, start, end, now, part) if part is not None and fits else None
    return [inside, whole] if inside else [whole]


def _child(node: Any, key: str) -> Any:
    return next((value for name, value in getattr(node, "value", ()) if name.value == key), None)


def _named(node: Any, rule: str) -> bool:
    name = _child(node, "name") if isinstance(node, yaml.MappingNode) else None
    return name is not None and name.value == rule


def _quoted(value: str) -> str:
    plain = value.replace(".", "").isalnum()
    return value if plain else "'" + value.replace("'", "''") + "'"


def _in_place(text: str, start: int, end: int, value: str, part: tuple[int, int, str]) -> str | None:
    """Replaces a part of a value by counting non-space characters; None if the text has others."""
    first, last, replacement = part
    positions = [position for position in range(start, end) if not text[position].isspace()]
    written = "".join(text[position] for position in positions)
    begin = written.find("".join(value.split()))
    if begin < 0:
        return None
    first, last = (begin + len("".join(value[:item].split())) for item in (first, last))
    return text[: positions[first]] + replacement + text[positions[last - 1] + 1 :]


def _inserted(text: str, entry: Any, key: str, value: str) -> str:
    """Inserts the key right after the name of its rule."""
    name_key, name = next(pair for pair in entry.value if pair[0].value == "name")
    after = name.end_mark.index
    if entry.flow_style:
        return f"{text[:after]}, {key}: {_quoted(value)}{text[after:]}"
    line_end = text.find("\n", after)
    line_end = len(text) if line_end < 0 else line_end
    return f"{text[:line_end]}\n{' ' * name_key.start_mark.column}{key}: {_quoted(value)}{text[line_end:]}"


def _below(text: str, root: Any) -> int:
    """End of the line of the key ``rules``."""
    key = next(name for name, _ in root.value if name.value == "rules")
    end = text.find("\n", key.end_mark.index)
    return len(text) if end < 0 else end + 1


def _added(text: str, root: Any, rules: Any, rule: str, key: str, value: str) -> list[str]:
    """Adds the rule after the last one of its list."""
    if isinstance(rules, yaml.SequenceNode) and rules.flow_style and rules.value:
        after = rules.value[-1].end_mark.index
        return [f"{text[:after]}, {{name: {rule}, {key}: {_quoted(value)}}}{text[after:]}"]
    empty = not isinstance(rules, yaml.SequenceNode) or not rules.value
    column = 2 if empty else rules.start_mark.column
    lines = f"{' ' * column}- name: {rule}\n{' ' * column}  {key}: {_quoted(value)}\n"
    if isinstance(rules, yaml.SequenceNode) and rules.flow_style:
        rest = text[rules.end_mark.index :]
        return [f"{text[: rules.start_mark.index].rstrip()}\n{lines.rstrip()}{rest or chr(10)}"]
    after = _below(text, root) if empty else rules.end_mark.index
    before = text[:after].rstrip(" ")
    return [before + ("" if before.endswith("\n") else "\n") + lines + text[after:]]
