"""Who calls, and whether they may: the one place where every call of a server is checked.

`Access.guard` wraps each handler: before it runs, the call is authenticated, and `stream.caller` is its `Caller`.
What is asked for stands in the messages, so the handlers themselves call `authorize` when they know; a call that was
not guarded is refused there.

Invariants:

1. `authorize` decides by the credentials as they are now, not as they were when the call began.
2. When the credentials change, a call that needs a right as long as it runs (`lasting`) and has lost it is ended.
3. A call never changes its principal: one whose proof no longer names it has no rights from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import trio

from scanner.errors import ArgumentInvalid, PermissionDenied, ScannerError, TableNotFound, Unauthenticated
from scanner.server.auth.audit import AuditEvent, audit
from scanner.server.auth.principals import EVERYBODY, Credentials, Principal, bearer_token
from scanner.server.auth.principals import Right as Right
from scanner.wire.statuses import from_call_failed, to_call_failed
from transport import CallFailed, FileWatch, StatusCode

if TYPE_CHECKING:
    from scanner.server.counters import Activity
    from transport import Handler, ServerStream

_OPEN_TO_ALL: Final = ("/grpc.health.v1.Health/",)
"""Calls for health checks and monitoring, without credentials; their answers name no table."""

_LOOK_INTERVAL_S: Final = 1.0
"""How often the credentials file is looked at while no call comes that would."""

_NAME_CHARACTERS_MAX: Final = 1000
"""More than the name of a table has."""

_log = logging.getLogger(__name__)


class Caller:
    """Who makes one running call. Made by `Access.guard`.

    Args:
        access: Access control.
        principal: Whom the call was authenticated as.
    """

    def __init__(self, access: Access, principal: Principal) -> None:
        self.access = access
        self.principal = principal
        """With the rights that it has now."""
        self.needs: set[tuple[Right, str | None]] = set()
        """What the call needs as long as it runs."""
        self.revoked: PermissionDenied | None = None
        """Why the call may not go on; None: it may."""

    def check(self, right: Right, table: str | None) -> None:
        """See that the principal has a right now.

        Raises:
            PermissionDenied: It has not.
        """
        if self.revoked is not None:
            raise PermissionDenied(self.revoked.message)
        if not self.principal.rights.allow(right, table):
            what = (
                "this server" if right is Right.ADMIN else "tables" if table is None else f"table {table!r}"
            )
            raise PermissionDenied(f"principal {self.principal.name} may not {right.value} {what}")


def authorize(stream: ServerStream, right: Right, table: str | None = None, *, lasting: bool = False) -> None:
    """Let a call go on, or refuse it.

    Args:
        stream: The call, authenticated by `Access.guard`.
        right: What it needs.
        table: Name of the table concerned, existing or not: a refusal does not tell which. None: no table.
        lasting: The call needs the right as long as it runs, and is ended with PERMISSION_DENIED when it loses it: for
            calls that only send. Others ask again for each message.

    Raises:
        ArgumentInvalid: No table can have that name, long as it is.
        PermissionDenied: Its principal may not do that.
        Unauthenticated: The caller was not authenticated.
    """
    caller = _caller(stream)
    if table is not None and len(table) > _NAME_CHARACTERS_MAX:
        # Every error names the table: of a name of 60 MB that would take half a gigabyte and most of a second.
        raise ArgumentInvalid(f"no table has a name of {len(table)} characters")
    caller.access.refresh()
    caller.check(right, table)
    if lasting:
        caller.needs.add((right, table))


def may(stream: ServerStream, right: Right, table: str | None = None) -> bool:
    """Whether `authorize` would let the call go on.

    Raises:
        Unauthenticated: The caller was not authenticated.
    """
    caller = _caller(stream)
    return caller.revoked is None and caller.principal.rights.allow(right, table)


def principal_of(stream: ServerStream) -> Principal:
    """Who makes the call.

    Raises:
        Unauthenticated: The caller was not authenticated.
    """
    return _caller(stream).principal


def audit_call(activity: Activity, event: AuditEvent, stream: ServerStream, **fields: object) -> None:
    """Count what a call has done, and log it with who calls; see `audit`.

    Raises:
        Unauthenticated: The caller was not authenticated.
    """
    audit(activity, event, stream, principal_of(stream).name, **fields)


def revocation(stream: ServerStream) -> PermissionDenied | None:
    """Why a call was ended whose rights were taken away; None: they were not."""
    return stream.caller.revoked if isinstance(stream.caller, Caller) else None


def _caller(stream: ServerStream) -> Caller:
    if not isinstance(stream.caller, Caller):
        raise Unauthenticated(f"the caller of {stream.path} was not authenticated")
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
        self.when_read: Callable[[bool], None] = lambda _usable: None
        """Called after the file was read again, with whether it could be used."""

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
            self._watch.failed(error)
            self.when_read(False)
            return False
        _log.info("credentials reloaded from %s", self._path)
        self.when_read(True)
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
        activity: Counts what is audited.
    """

    def __init__(self, credentials: Credentials | CredentialsFile | None, activity: Activity) -> None:
        self._credentials = credentials
        self._activity = activity
        self._running: dict[ServerStream, Caller] = {}
        if isinstance(credentials, CredentialsFile):
            credentials.when_read = self._credentials_read

    def authenticate(self, stream: ServerStream) -> Principal:
        """Tell who makes a call, by its `authorization` or its connection's certificate.

        Raises:
            Unauthenticated: The caller is unknown.
        """
        credentials = self.refresh()
        if credentials is None:
            return EVERYBODY
        certificate = stream.peer_certificate
        return credentials.authenticate(
            bearer_token([value for name, value in stream.metadata if name == "authorization"]),
            () if certificate is None else certificate.names,
        )

    def refresh(self) -> Credentials | None:
        """The credentials as they are now; a file is read again if it has changed, which costs one stat to know."""
        if isinstance(self._credentials, CredentialsFile):
            return self._credentials.current()
        return self._credentials

    @property
    def follows_file(self) -> bool:
        """Whether the credentials can change."""
        return isinstance(self._credentials, CredentialsFile)

    async def watch_forever(self) -> NoReturn:
        """Look at the credentials file every second, so that a change reaches calls that only send.

        Cancellation:
            No effect; this is how it ends.
        """
        while True:
            await trio.sleep(_LOOK_INTERVAL_S)
            self.refresh()

    def _credentials_read(self, usable: bool) -> None:
        event = AuditEvent.CREDENTIALS_RELOADED if usable else AuditEvent.CREDENTIALS_REJECTED
        audit(self._activity, event)
        if usable:
            self._check_running()

    def _check_running(self) -> None:
        """Look at the rights of every running call again."""
        for stream, caller in list(self._running.items()):
            if caller.revoked is not None:
                continue
            name = caller.principal.name
            try:
                principal = self.authenticate(stream)
            except ScannerError:
                principal = None
            if principal is None or principal.name != name:
                caller.revoked = PermissionDenied(f"the credentials of principal {name} were withdrawn")
            else:
                caller.principal = principal
            try:
                for right, table in caller.needs:
                    caller.check(right, table)
            except PermissionDenied as error:
                caller.revoked = error
                audit(
                    self._activity, AuditEvent.RIGHTS_WITHDRAWN, stream, principal=name, reason=error.message
                )
                # What is queued is rows that may not be read any more.
                if stream.stop(to_call_failed(error)):
                    stream.drop_unsent()

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
                caller = Caller(self, self.authenticate(stream))
            except ScannerError as error:
                audit(self._activity, AuditEvent.AUTHENTICATION_FAILED, stream, reason=error.message)
                raise to_call_failed(error) from error
            stream.caller = caller
            self._running[stream] = caller
            try:
                await handler(stream)
            except CallFailed as failure:
                if failure.status is StatusCode.PERMISSION_DENIED:
                    name = caller.principal.name
                    audit(
                        self._activity, AuditEvent.CALL_DENIED, stream, principal=name, reason=failure.message
                    )
                if caller.principal.rights.sees_everything or failure.status is not StatusCode.NOT_FOUND:
                    raise
                raise _without_names(failure) from failure
            finally:
                del self._running[stream]

        return handle


def _without_names(failure: CallFailed) -> CallFailed:
    """A failure that does not list the tables there are."""
    if isinstance(from_call_failed(failure), TableNotFound):
        return to_call_failed(TableNotFound("there is no such table, or not any more"))
    return failure
