"""How the lines of the log look: text for people, or one JSON object a line.

No message, whoever's words are in it, makes more than one line of text. The lines of a traceback are indented.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final, TextIO

from scanner.server.log_fields import Fields, escaped

LOG_FORMATS: Final = ("text", "json")

_logger = logging.getLogger(__name__)


class TextFormatter(logging.Formatter):
    """`TIME LEVEL LOGGER: message`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, its control characters escaped."""
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        """The traceback, indented, so that no text in it looks like a line of its own."""
        text = escaped(super().formatException(ei), keep="\n")
        return "\n".join(f"  {line}" for line in text.split("\n"))


class JsonFormatter(logging.Formatter):
    """One object a line: `time` (UTC), `level`, `logger`, `message`, the fields, and `traceback`."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if isinstance(record.args, Fields):
            said["message"] = str(record.msg).removesuffix(" %s")
            said.update(record.args)
        else:
            said["message"] = record.getMessage()
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes lines. Those that the disk or the reader refuses are counted, and the log says so once it goes on.

    Else the log, and the audit trail in it, would have a hole that nobody sees.
    """

    _refused = 0

    def format(self, record: logging.LogRecord) -> str:
        """The line; on a line of its own, too, if a part of one that was refused has been written."""
        line = super().format(record)
        return f"\n{line}" if self._refused else line

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        refused = self._refused
        super().emit(record)
        if refused and refused == self._refused:
            self._refused = 0
            _logger.error(
                "the log has a gap before the line above: lines that were refused, missing or cut off: %d",
                refused,
            )

    def handleError(self, record: logging.LogRecord) -> None:
        """Count a line that was refused."""
        if isinstance(sys.exception(), OSError):
            self._refused += 1
        else:
            super().handleError(record)


def configure_logging(level: str, log_format: str) -> None:
    """Send the log to standard error.

    Args:
        level: Name of the lowest level that is shown.
        log_format: One of LOG_FORMATS.
    """
    handler = LogHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper())
