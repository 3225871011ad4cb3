"""Applies a proposal to a rules file of the operator, with a backup and an audit record, and reverts it."""

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
    """A rules file before and after the change. ``detail`` goes into the audit record."""

    rule: str
    file: Path
    before: bytes
    after: bytes
    detail: Mapping[str, str]

    @property
    def diff(self) -> str:
        """Unified diff of the change."""
        old, new = (text.decode("utf-8-sig").splitlines(keepends=True) for text in (self.before, self.after))
        return "".join(difflib.unified_diff(old, new, f"{self.file} (now)", f"{self.file} (then)"))


def change_of(rule: Rule, setting: Setting, files: Sequence[Path]) -> RuleChange:
    """Returns the change that gives a rule another setting, in the file that has the rule, else in the last one.

    Writes nothing. Raises UsageError if there is no file, or if it cannot be changed in place.
    """
    file = _file_of(rule.name, files)
    before = _read(file)
    text = before.decode("utf-8-sig")
    tunable = tunable_threshold_of(rule.name, rule.expr or "")
    if setting.threshold is not None and setting.threshold != tunable.threshold:
        key, before_value, value = "expr", tunable.text, tunable.turned(setting.threshold)
        changed = editor.with_key(
            text,
            str(file),
            rule.name,
            key,
            value,
            part=(tunable.start, tunable.end, format_threshold(setting.threshold)),
        )
    else:
        key, before_value, value = "wait", _duration(rule.wait.total_seconds()), _duration(setting.wait.total_seconds())
        changed = editor.with_key(text, str(file), rule.name, key, value)
    detail = {"file": str(file), "key": key, "before": before_value, "after": value}
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
    """Writes the file. Returns the path of its backup, which is next to it.

    The new rules are loaded and compiled first, the audit record is written before the file, and the file is replaced
    atomically. Raises UsageError if the file changed in the meantime or cannot be written, ConfigError or UsageError if
    the new rules are not valid.
    """
    target = change.file.resolve()
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    backup = target.with_name(f"{target.name}.{stamp}.bak")
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_bytes(change.after)
        shutil.copymode(target, part)
        threshold.compile_rules(rule_files.load_rules([part if file.resolve() == target else file for file in files]))
        if _read(change.file) != change.before:
            raise UsageError(f"{change.file} changed in the meantime", hint="check it, then run the command again")
        backup.write_bytes(change.before)
        detail = {**change.detail, "backup": str(backup), "sha256": _digest(change.after)}
        state.append_audit([AuditRecord(now, event, change.rule, reason, by=by, detail=detail)])
        part.replace(target)
    except OSError as error:
        raise UsageError(
            f"{change.file} cannot be written: {error.strerror}", hint="make the change by hand"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return backup


def revert_of(rule: str, state: StateReader) -> RuleChange:
    """Returns the change that reverts the newest change of a rule that is still in force.

    Raises UsageError if there is none, if its backup is missing, or if the file changed since.
    """
    undone: set[str] = set()
    for record in _records(state, rule):
        if record.event is AuditEvent.RULE_REVERTED:
            undone.add(record.detail["undoes"])
        elif record.detail["backup"] not in undone:
            return _revert(rule, record)
    raise UsageError(f"rule {rule} has no change to revert", hint="outrider remediate audit")


def _revert(rule: str, record: AuditRecord) -> RuleChange:
    file, backup = Path(record.detail["file"]), Path(record.detail["backup"])
    now, old = _read(file), _read(backup)
    if _digest(now) != record.detail["sha256"]:
        raise UsageError(
            f"{file} has changed since then; reverting rule {rule} would discard the later changes",
            hint=f"revert later changes first, or edit it by hand; the backup is {backup}",
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
    events, records, after = (AuditEvent.RULE_TUNED, AuditEvent.RULE_REVERTED), [], None
    while page := state.audit(_PAGE, after):
        records += [record for record in page if record.event in events and record.subject == rule]
        position: Position = position_of(page[-1])
        after = position
    return records


def _file_of(rule: str, files: Sequence[Path]) -> Path:
    if not files:
        raise UsageError(
            "the configuration names no rules file, and packaged rules cannot be changed",
            hint="write a file with `version: 1` and `rules: []`, and name it under rules.files",
        )
    for file in reversed(files):
        listed = yaml_file.read(file).value
        rules = listed.get("rules") if isinstance(listed, dict) else None
        if any(isinstance(entry, dict) and entry.get("name") == rule for entry in rules or ()):
            return file
    return files[-1]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", hint="name a file that can be read") from error


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _duration(seconds: float) -> str:
    return format_duration(seconds).replace(" ", "")
