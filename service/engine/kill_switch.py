"""Kill switch: a file that stops every action while it exists. It works without the store and without the API."""

from __future__ import annotations

import errno
import os
from pathlib import Path


class KillSwitch:
    """True while nothing may be sent to a cluster. Without a file it is never on."""

    def __init__(self, file: Path | None) -> None:
        """``file`` may be on a mounted volume: while its folder is missing or unreadable, the switch is on."""
        self._file = file

    @property
    def file(self) -> Path | None:
        """The file to create, if one is configured."""
        return self._file

    def is_on(self) -> bool:
        """True while the file exists, or while that cannot be determined."""
        if self._file is None:
            return False
        try:
            os.lstat(self._file)
        except OSError as error:
            return error.errno != errno.ENOENT or not self._file.parent.is_dir()
        return True
