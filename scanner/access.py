"""Who calls, and whether they may: the one place where every call of a server is checked.

`Access.guard` wraps each handler: before it runs, the call is authenticated, and `stream.caller` is its principal.
What is asked for stands in the messages, so the handlers themselves call `authorize` when they know; a call that was
not guarded is refused there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scanner.auth import EVERYBODY, Credentials, Principal, Right, bearer_token
from scanner.errors import ArgumentInvalid, PermissionDenied, ScannerError, TableNotFound, Unauthenticated
from scanner.statuses import from_call_failed, to_call_failed
from transport import CallFailed, FileWatch, StatusCode

if TYPE_CHECKING:
    from transport import Handler, ServerStream

__all__ = ["Access", "CredentialsFile", "Principal", "Right", "authorize", "may", "principal_of"]

_OPEN_TO_ALL: Final = ("/grpc.health.v1.Health/",)
"""Calls that whoever watches a server makes without credentials; they tell of no table."""

_log = logging.getLogger(__name__)


def authorize(stream: ServerStream, right: Right, table: str | None = None) -> None:
    """Let a call go on, or refuse it.

    Args:
        stream: The call, authenticated by `Access.guard`.
        right: What it needs.
        table: Name of the table concerned, existing or not: a refusal does not tell which. None: no table.

    Raises:
        PermissionDenied: Its principal may not do that.
        Unauthenticated: Nobody has checked who calls.
    """
    principal = principal_of(stream)
    if not principal.rights.allow(right, table):
        what = "this server" if right is Right.ADMIN else "tables" if table is None else f"table {table!r}"
        raise PermissionDenied(f"principal {principal.name} may not {right.value} {what}")


def may(stream: ServerStream, right: Right, table: str | None = None) -> bool:
    """Whether `authorize` would let the call go on.

    Raises:
        Unauthenticated: Nobody has checked who calls.
    """
    return principal_of(stream).rights.allow(right, table)


def principal_of(stream: ServerStream) -> Principal:
    """Who makes the call.

    Raises:
        Unauthenticated: Nobody has checked.
    """
    if not isinstance(stream.caller, Principal):
        raise Unauthenticated(f"nobody has checked who calls {stream.path}")
    return stream.caller


class CredentialsFile:
    """A credentials file that is read again when it has changed.

    Args:
        path: The file.

    Raises:
        ArgumentInvalid: It cannot be read, or is not a credentials file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._watch = FileWatch([path])
        self._credentials = self._read()

    def current(self) -> Credentials:
        """What the file says, or said when it last made sense."""
        if self._watch.changed():
            self.reload()
        return self._credentials

    def reload(self) -> bool:
        """Read the file now.

        Returns:
            Whether it could be used; else one line is logged, and what was known before goes on being true.
        """
        self._watch.changed()
        try:
            self._credentials = self._read()
        except ArgumentInvalid as error:
            _log.error("the credentials are not reloaded, the old ones go on: %s", error)
            return False
        _log.info("credentials reloaded from %s", self._path)
        return True

    def _read(self) -> Credentials:
        try:
            return Credentials.parse(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ArgumentInvalid(f"{self._path} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            raise ArgumentInvalid(f"{self._path} is not UTF-8 text") from None
        except ArgumentInvalid as error:
            raise ArgumentInvalid(f"{self._path}: {error.message}") from None


class Access:
    """Authenticates the calls of a server.

    Args:
        credentials: Whom it knows; None: everybody may do everything.
    """

    def __init__(self, credentials: Credentials | CredentialsFile | None = None) -> None:
        self._credentials = credentials

    def authenticate(self, stream: ServerStream) -> Principal:
        """Tell who makes a call, by its `authorization` or its connection's certificate.

        Raises:
            Unauthenticated: It cannot be told.
        """
        credentials = self._credentials
        if credentials is None:
            return EVERYBODY
        if isinstance(credentials, CredentialsFile):
            credentials = credentials.current()
        certificate = stream.peer_certificate
        return credentials.authenticate(
            bearer_token([value for name, value in stream.metadata if name == "authorization"]),
            () if certificate is None else certificate.names,
        )

    def guard_all(self, handlers: Mapping[str, Handler]) -> dict[str, Handler]:
        """`guard` each handler, but for those of health checks."""
        return {
            path: handler if path.startswith(_OPEN_TO_ALL) else self.guard(handler)
            for path, handler in handlers.items()
        }

    def guard(self, handler: Handler) -> Handler:
        """Let a handler run only for calls whose principal is known.

        Its errors tell no names of tables that the principal may not see.
        """

        async def handle(stream: ServerStream) -> None:
            try:
                stream.caller = principal = self.authenticate(stream)
            except ScannerError as error:
                raise to_call_failed(error) from error
            try:
                await handler(stream)
            except CallFailed as failure:
                if principal.rights.sees_everything or failure.status is not StatusCode.NOT_FOUND:
                    raise
                raise _without_names(failure) from failure

        return handle


def _without_names(failure: CallFailed) -> CallFailed:
    """A failure that does not list the tables there are."""
    if isinstance(from_call_failed(failure), TableNotFound):
        return to_call_failed(TableNotFound("there is no such table, or not any more"))
    return failure
