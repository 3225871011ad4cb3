"""Writes a proposal into a rules file of the user, with a backup and a record, and takes it back."""

from __future__ import annotations

import difflib
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from alerts.rules import editor
from alerts.rules import files as rule_files
from detectors.rules import threshold
from detectors.rules.tunable_threshold import format_threshold, tunable_threshold_of
from detectors.rules.tuning import Setting
from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import UsageError
from outrider.ports import StateReader, StateStore
from outrider.text import yaml_file
from outrider.vocabulary.rules import Rule
from outrider.vocabulary.units import format_duration
from outrider.wire.cursors import Position, position_of

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A file as it is and as it will be. ``detail`` goes into the record."""

    rule: str
    file: Path
    before: bytes
    after: bytes
    detail: Mapping[str, str]

    @property
    def diff(self) -> str:
        """The change as people read it."""
        old, new = (text.decode("utf-8-sig").splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(old, new, f"{self.file} (now)", f"{self.file} (then)"))


def change_of(rule: Rule, setting: Setting, files: Sequence[Path]) -> RuleChange:
    """The change that gives a rule another setting, in the file that has the rule, else in the last one.

    Nothing is written. Raises UsageError when there is no file, or none that lets itself be changed.
    """
    file = _file_of(rule.name, files)
    before = _read(file)
    text = before.decode("utf-8-sig")
    dial = tunable_threshold_of(rule.name, rule.expr or "")
    if setting.threshold is not None and setting.threshold != dial.threshold:
        key, was, value = "expr", dial.text, dial.turned(setting.threshold)
        changed = editor.with_key(
            text, str(file), rule.name, key, value, part=(dial.start, dial.end, format_threshold(setting.threshold))
        )
    else:
        key, was, value = "wait", _spelt(rule.wait.total_seconds()), _spelt(setting.wait.total_seconds())
        changed = editor.with_key(text, str(file), rule.name, key, value)
    detail = {"file": str(file), "key": key, "before": was, "after": value}
    return RuleChange(rule.name, file, before, changed.encode(), detail)


def apply(
    change: RuleChange,
    files: Sequence[Path],
    state: StateStore,
    *,
    by: str,
    now: datetime,
    event: AuditEvent = AuditEvent.RULE_TUNED,
    reason: str = "feedback",
) -> Path:
    """Write the file; the old one is kept beside it, the path of which is returned.

    The rules as they will be are loaded and compiled first, the record is written before the file, and the file
    takes its place at once. Raises UsageError when the file changed meanwhile or cannot be written, ConfigError
    or UsageError when the rules would not be valid.
    """
    target = change.file.resolve()
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    backup = target.with_name(f"{target.name}.{stamp}.bak")
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_bytes(change.after)
        shutil.copymode(target, part)
        threshold.compile_rules(rule_files.load_rules([part if one.resolve() == target else one for one in files]))
        if _read(change.file) != change.before:
            raise UsageError(f"{change.file} was changed just now", hint="look at it, then run the command again")
        backup.write_bytes(change.before)
        detail = {**change.detail, "backup": str(backup), "sha256": _digest(change.after)}
        state.append_audit([AuditRecord(now, event, change.rule, reason, by=by, detail=detail)])
        part.replace(target)
    except OSError as error:
        raise UsageError(
            f"{change.file} cannot be written: {error.strerror}", hint="write the change shown into it by hand"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return backup


def back_change(rule: str, state: StateReader) -> RuleChange:
    """The change that takes back the newest one of a rule that still stands.

    Raises UsageError when there is none, its backup is gone, or the file was changed since.
    """
    undone: set[str] = set()
    for record in _records(state, rule):
        if record.event is AuditEvent.RULE_REVERTED:
            undone.add(record.detail["undoes"])
        elif record.detail["backup"] not in undone:
            return _back(rule, record)
    raise UsageError(f"no change of rule {rule} stands that could be taken back", hint="outrider remediate audit")


def _back(rule: str, record: AuditRecord) -> RuleChange:
    file, backup = Path(record.detail["file"]), Path(record.detail["backup"])
    now, old = _read(file), _read(backup)
    if _digest(now) != record.detail["sha256"]:
        raise UsageError(
            f"{file} was changed since, so taking back the change of rule {rule} would lose that",
            hint=f"take back later changes first, or change it by hand; the file of before is {backup}",
        )
    detail = {
        "file": str(file),
        "key": record.detail["key"],
        "before": record.detail["after"],
        "after": record.detail["before"],
        "undoes": str(backup),
    }
    return RuleChange(rule, file, now, old, detail)


def _records(state: StateReader, rule: str) -> Sequence[AuditRecord]:
    events, found, after = (AuditEvent.RULE_TUNED, AuditEvent.RULE_REVERTED), [], None
    while page := state.audit(_PAGE, after):
        found += [record for record in page if record.event in events and record.subject == rule]
        place: Position = position_of(page[-1])
        after = place
    return found


def _file_of(rule: str, files: Sequence[Path]) -> Path:
    if not files:
        raise UsageError(
            "the configuration names no rules file, and the packaged rules are not changed",
            hint="write a file with `version: 1` and `rules: []`, and name it under rules.files",
        )
    for file in reversed(files):
        listed = yaml_file.read(file).value
        rules = listed.get("rules") if isinstance(listed, dict) else None
        if any(isinstance(one, dict) and one.get("name") == rule for one in rules or ()):
            return file
    return files[-1]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint="name a file that can be read") from error


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _spelt(seconds: float) -> str:
    return format_duration(seconds).replace(" ", "")
