"""The connection to a server that outlives its TCP connections.

Invariants:

1. One TCP connection is in use at a time, made when it is needed. Calls on one that is being replaced (a server that
   drains lets them finish) go on; it is closed when the last of them is over.
2. Calls that do not end by themselves get further connections where they would take more than half of what the server
   allows on that one, and those that end when their user takes what they bring, where they would take more than three
   quarters: those in line behind them would wait for ever. Such a connection is closed with its last call.
3. Whoever needs a connection while one is being made shares that attempt and its outcome.
4. Nothing that was sent is ever sent again here: a call that fails, fails. Only connecting is tried again.
5. No call waits for ever for a server that is gone behind a proxy that lives: the connection is given up, and a new one
   is used once the server has answered on it.
6. Connections are there until the block of `open_connection` is left, also when it is cancelled.

This module knows no tables.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Final, NoReturn

import trio

import transport
from scanner.client.arguments import require_kind
from scanner.client.credentials import CallCredentials
from scanner.client.failures import OF_CREDENTIALS, as_scanner_error
from scanner.client.retries import Attempts, RetryPolicy, retried
from scanner.client.writer_ids import WriterIds
from scanner.errors import ArgumentInvalid, PermissionDenied, ScannerError, ServerUnavailable, Unauthenticated
from scanner.tasks import bare

if TYPE_CHECKING:
    from scanner.client.endpoints import Connect

NOT_PICKLED: Final = (
    "a client, and what it has made, stays in its process; send a scan's plan to the other one, connect there, and"
    " run client.scan(plan)"
)
LINKS_MAX: Final = 64
"""TCP connections that a client has open at once. One that needs more reads more than it can."""
_NEW_TOKEN_S: Final = 5.0
"""A token that is refused so soon after it was asked for is not out of date."""
CREDIT_GROWTH_BYTES_MAX: Final = 256 << 20
"""Message bytes by which the credit of all scans of a client together grows, beyond what they begin with."""
_TOKEN_REPLACED: Final = "token_replaced"
"""In the metadata of an error: the call did nothing, and the next one has a newer token."""


class Lasting(enum.Enum):
    """A call that does not end soon by itself; its value is the share of a server's calls that such ones may take."""

    FOR_EVER = 0.5
    AS_ITS_USER_WANTS = 0.75
    """A scan or a writer whose user takes or sends nothing, or does something else first, stands still."""


class _Link:
    """One TCP connection, and the users that keep it open."""

    def __init__(
        self, client: transport.Client, metadata: transport.Metadata, *, after_refusal: bool
    ) -> None:
        self.client = client
        self.metadata = metadata
        """What its calls prove."""
        self._token_is_new_until = trio.current_time() + _NEW_TOKEN_S if after_refusal else -math.inf
        self.lasting = 0
        """Users whose calls do not end by themselves, or not before their user wants."""
        self._users = 0
        self._replaced = False
        self._over = trio.Event()

    @property
    def usable(self) -> bool:
        """Whether it takes new calls, as far as is known."""
        return self.client.alive and not self._over.is_set()

    @property
    def has_room(self) -> bool:
        """Whether its calls that last leave room for others: the server may have lowered its limit since they began."""
        calls_max = self.client.calls_max
        return not calls_max or self.lasting < calls_max

    @property
    def has_new_token(self) -> bool:
        """Whether its token was asked for just now, because another one was refused."""
        return trio.current_time() < self._token_is_new_until

    def enter(self, *, lasting: bool) -> None:
        self._users += 1
        self.lasting += lasting

    def leave(self, *, lasting: bool) -> None:
        self._users -= 1
        self.lasting -= lasting
        self._check()

    def replace(self) -> None:
        """Say that nobody new will use it."""
        self._replaced = True
        self._check()

    def close(self) -> None:
        """End it, whoever uses it."""
        self._over.set()

    def _check(self) -> None:
        if self._replaced and not self._users:
            self._over.set()

    async def wait_over(self) -> None:
        await self._over.wait()


class Connection:
    """A server, connected to whenever that is needed. Made by `open_connection`; any number of tasks may use it.

    Args:
        connect: Makes a TCP connection.
        where: Names the server in errors.
        credentials: What calls prove; asked again for each TCP connection, and where the server does not know it.
        policy: How often and how patiently connecting is tried; a scan has it, too, unless it has its own.
        rng: Draws delays.
        nursery: Runs the connections.
    """

    def __init__(
        self,
        connect: Connect,
        where: str,
        credentials: CallCredentials,
        policy: RetryPolicy,
        rng: Random,
        nursery: trio.Nursery,
    ) -> None:
        self._connect = connect
        self._where = where
        self._credentials = credentials
        self._policy = policy
        self._rng = rng
        self._nursery = nursery
        self._loop = trio.lowlevel.current_trio_token()
        self._link: _Link | None = None
        """In use now, or the last that was."""
        self._links: dict[_Link, None] = {}
        """All that are open, as they were made."""
        self._closed = False
        self._connecting = trio.Lock()
        self._failures = 0
        """Attempts to connect that failed, ever."""
        self._failure: ScannerError | None = None
        self._token_refused = False
        """The next connection is made because a token is out of date."""
        self._heard = False
        """Something that speaks HTTP/2 has answered, ever."""
        self.has_answered = False
        """Whether a unary call has had an answer."""
        self._server_gone = False
        """What answers was a proxy without its server, when that was looked at last."""
        self.connects = 0
        """TCP connections made."""
        self.credit_growth = transport.CreditPool(CREDIT_GROWTH_BYTES_MAX)
        """What the credit of all scans together may grow by."""
        self.writer_ids = WriterIds()
        """By which the server recognises writers."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(NOT_PICKLED)

    def attempts(self, retries: int | None = None) -> Attempts:
        """Fresh attempts at something.

        Args:
            retries: Attempts without progress after the first; None: as many as this connection was told.
        """
        policy = self._policy if retries is None else dataclasses.replace(self._policy, retries=retries)
        return Attempts(policy, self._rng)

    @asynccontextmanager
    async def client(
        self, *, retries: int | None = 0, lasting: Lasting | None = None
    ) -> AsyncIterator[transport.Client]:
        """Use a TCP connection that takes new calls, for the length of a block; it may be lost at any time.

        Args:
            retries: How often connecting is tried again; 0, for callers that repeat the whole block: not at all. None:
                as often as this connection was told.
            lasting: The block has one call, which does not end by itself, or only as its user wants; None: it does, and
                there may be several.

        Raises:
            ServerUnavailable: Nobody answers, or not as a weir server should; or the block was left because the server
                does not know its token, and there is a newer one, which the next block has. Or TLS failed.
            Unauthenticated: The server does not accept the client's certificate, and has never answered.
            ArgumentInvalid: The server speaks TLS, and no TLS was asked for; or `LINKS_MAX` connections have all the
                lasting calls that it allows.
            trio.ClosedResourceError: The block of `open_connection` was left.
            RuntimeError: The caller is in another run of trio.

        Waits:
            For the connection, while the server's limit of concurrent calls is reached, and between attempts.
        """
        link = await retried(self.attempts(retries), functools.partial(self._enter_link, lasting=lasting))
        try:
            yield link.client
        except (transport.CallFailed, Unauthenticated, PermissionDenied) as error:
            replaced = self.token_replaced(link.client, error)
            if replaced is None:
                raise
            raise replaced from error
        finally:
            link.leave(lasting=lasting is not None)

    def token_replaced(self, client: transport.Client, error: Exception) -> ServerUnavailable | None:
        """What to raise for the failure of a call if only its token is out of date; None: that is not the reason.

        Such a call did nothing, and the next one, on another connection, has the newer token. If that is refused at
        once, too, both were refused for something else: what is asked for the token may make another one each time.
        """
        refused = isinstance(error, Unauthenticated | PermissionDenied)
        if isinstance(error, transport.CallFailed):
            refused = error.status in OF_CREDENTIALS
        if not refused:
            return None
        self._credentials.renew()
        link = next((each for each in self._links if each.client is client), None)
        if link is None or link.metadata == self._credentials.metadata or link.has_new_token:
            return None
        self._token_refused = True
        return ServerUnavailable(
            f"the server at {self._where} does not know the token any more; try again, with the newer one",
            metadata={_TOKEN_REPLACED: "true"},
        )

    @asynccontextmanager
    async def open_stream(
        self, path: str, *, lasting: Lasting | None = None
    ) -> AsyncIterator[transport.Stream]:
        """Open a call; see `transport.Client.open_stream`. Connects first, if need be, with retries, as of `client`.

        Raises:
            ServerUnavailable, Unauthenticated: See `client`.
            TransportError: The call failed; it is not made again.
        """
        async with (
            self.client(retries=None, lasting=lasting) as client,
            client.open_stream(path) as stream,
        ):
            yield stream

    async def call(
        self, path: str, request: bytes | Callable[[], bytes], *, retries: int | None = None
    ) -> Any:
        """Make a unary call; see `transport.Client.call`. Connects first, if need be, with retries as of `client`.

        A request that is a function is made when it goes out.

        One that meets the server's GOAWAY, and was not processed, is made again as often: nginx says goodbye after each
        thousand calls.

        Raises:
            ServerUnavailable, Unauthenticated: See `client`.
            TransportError: The call failed; it is not made again.
        """
        attempts = self.attempts(retries)
        while True:
            try:
                return await self._call_known(path, request, retries)
            except transport.StreamUnprocessed as error:
                failure = as_scanner_error(error, path.rpartition("/")[2])
            await attempts.wait_retry(failure)

    async def _call_known(self, path: str, request: bytes | Callable[[], bytes], retries: int | None) -> Any:
        """Make it once; twice, if the server does not know the first one's token, and there is a newer one."""
        try:
            return await self._call(path, request, retries)
        except ServerUnavailable as error:
            if _TOKEN_REPLACED not in error.metadata:
                raise
            return await self._call(path, request, retries)

    async def _call(self, path: str, request: bytes | Callable[[], bytes], retries: int | None) -> Any:
        async with self.client(retries=retries) as client:
            answer = await client.call(path, request() if callable(request) else request)
        self.has_answered = True
        return answer

    async def _enter_link(self, *, lasting: Lasting | None) -> _Link:
        """Use a link on which a call can be opened now; one attempt."""
        lasts = lasting is not None
        while True:
            link = await self._living_link(lasting=lasting)
            link.enter(lasting=lasts)
            if link is not self._link:
                link.replace()  # With the last of those who use it now.
            try:
                await self._wait_openable(link.client)
            except BaseException:
                link.leave(lasting=lasts)
                raise
            if link.lasting <= self._room(link, lasting) or self._stands_in_line(lasting):
                return link
            link.leave(lasting=lasts)  # The server has said only now how many it allows.

    async def _wait_openable(self, client: transport.Client) -> None:
        try:
            await client.wait_openable()
        except transport.TransportError as error:
            if not client.peer_goaway:
                raise self._not_opened(error) from error
        self._heard = True
        if not client.alive:
            said = f": it said {client.peer_goaway}" if client.peer_goaway else ""
            raise ServerUnavailable(f"the server at {self._where} takes no new calls{said}")

    def _room(self, link: _Link, lasting: Lasting | None) -> float:
        """How many calls that last a link takes."""
        if lasting is None or not link.client.calls_max:
            return math.inf  # A limit for a while, such as 0, is waited for (RFC 9113 section 5.1.2).
        return int(link.client.calls_max * lasting.value) if link is self._link else link.client.calls_max

    def _stands_in_line(self, lasting: Lasting | None) -> bool:
        """Whether such a call waits for the end of others where they have all connections."""
        return lasting is Lasting.AS_ITS_USER_WANTS and len(self._links) >= LINKS_MAX

    def _not_opened(self, error: transport.TransportError) -> ScannerError:
        if transport.caused_by(error, transport.TlsExpected):
            return ArgumentInvalid(
                f"the server at {self._where} speaks TLS, and this client does not:"
                " connect with TLS (weir.tls(), --tls-ca, tlsCa)"
            )
        if transport.caused_by(error, transport.NeverAnswered):
            return ServerUnavailable(
                f"what takes connections at {self._where} says nothing: the server is stopped or overloaded, or the"
                f" proxy before it waits for it ({error})"
            )
        if transport.certificate_refused(error):
            return self._certificate_refused(error)
        failure = as_scanner_error(error, "the opening of a call")
        if not isinstance(failure, ServerUnavailable) or self._heard:
            return failure
        if transport.caused_by(error, transport.NotHttp2):  # Text is an answer that stays the same.
            return ArgumentInvalid(
                f"what answers at {self._where} does not speak HTTP/2; does it want TLS, or is it no weir server?"
                f" ({failure.message})"
            )
        return ServerUnavailable(
            f"what answers at {self._where} has not begun to speak HTTP/2: it is going down, it wants TLS, or it is no"
            f" weir server ({failure.message})"
        )

    async def _living_link(self, *, lasting: Lasting | None = None) -> _Link:
        """A link that takes new calls, or a new one; one attempt."""
        failures = self._failures
        link = self._link_for(lasting=lasting)
        if link is not None:
            return link
        async with self._connecting:
            link = self._link_for(lasting=lasting)
            if link is not None:
                return link
            if self._failures != failures:
                assert self._failure is not None
                # The attempt that was under way has failed for all who waited for it.
                raise type(self._failure)(self._failure.message) from self._failure
            try:
                made: _Link = await self._nursery.start(self._run_link)
            except transport.TransportError as error:
                self._failures += 1
                self._failure = self._translated(error)
                raise self._failure from error
            self.connects += 1
            if self._link is None or not self._takes_calls(self._link):
                if self._link is not None:
                    self._link.replace()
                self._link = made
            return made

    def _link_for(self, *, lasting: Lasting | None) -> _Link | None:
        """A link that takes such a call; None: a new one has to be made."""
        if self._closed:
            raise trio.ClosedResourceError("the client was left; connect again")
        # An answer would end the loop that reads it: trio wakes no task of another one.
        if trio.lowlevel.current_trio_token() is not self._loop:
            raise RuntimeError(
                "this client belongs to another run of trio; connect again here, or run the call there by"
                " trio.from_thread"
            )
        if self._link is None or not self._takes_calls(self._link):
            return None
        taking = (link for link in self._links if self._takes_calls(link))
        if lasting is None:
            found = next((link for link in (self._link, *taking) if link.has_room), None)
            return self._link if found is None and len(self._links) >= LINKS_MAX else found
        link = next((link for link in taking if link.lasting < self._room(link, lasting)), None)
        if link is None and self._stands_in_line(lasting):
            return self._link
        if link is None and len(self._links) >= LINKS_MAX:
            raise ArgumentInvalid(
                f"a tail takes a call for each bucket that it reads, what answers at {self._where} allows a connection"
                f" {self._link.client.calls_max} at once, and {LINKS_MAX} connections are full; read fewer buckets by"
                ' one client (bucket(...), --bucket), or all by one call (with_mode("fetch"))'
            )
        return link

    def _takes_calls(self, link: _Link) -> bool:
        """Whether new calls can be made on it, with the newest token."""
        return link.usable and link.metadata == self._credentials.metadata

    async def _run_link(self, *, task_status: trio.TaskStatus[_Link]) -> None:
        if self.connects:
            self._credentials.renew()
        metadata = self._credentials.metadata
        with trio.CancelScope() as scope:
            async with self._connect(metadata) as client:
                if self._server_gone:
                    await self._require_server(client)
                link = _Link(client, metadata, after_refusal=self._token_refused)
                self._token_refused = False
                self._links[link] = None
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._watch_server, client)
                        task_status.started(link)
                        # `_close` ends it, also when all is cancelled: blocks of the user have something to say to the
                        # server then, such as that a lease is to be dropped. One that is made in vain ends at once.
                        scope.shield = trio.current_effective_deadline() > -math.inf
                        if not self._closed:
                            await link.wait_over()
                        scope.shield = False
                        nursery.cancel_scope.cancel()
                finally:
                    del self._links[link]

    async def _watch_server(self, client: transport.Client) -> None:
        await transport.watch_server(client, functools.partial(self._connect, ()))
        self._server_gone = True

    async def _require_server(self, client: transport.Client) -> None:
        """See that the server has come back behind what answers in its place.

        Raises:
            TransportError: It has not.
        """
        await client.wait_openable()
        patience_s = client.config.handshake_timeout_s
        if client.openable and not await transport.server_answers(client, patience_s):
            raise transport.ConnectionLost(
                f"something takes connections, and the server behind it has not answered for {patience_s:g} s"
            )
        self._server_gone = False

    def _translated(self, error: transport.TransportError) -> ScannerError:
        if transport.certificate_refused(error):
            return self._certificate_refused(error)
        if isinstance(error, transport.TlsFailed):
            return ServerUnavailable(str(error))
        return ServerUnavailable(f"no weir server answers at {self._where}: {error}")

    def _certificate_refused(self, error: transport.TransportError) -> ScannerError:
        # From a server that took it before it may be for a while: at either end files may be being replaced.
        kind = ServerUnavailable if self._heard else Unauthenticated
        return kind(
            f"the server at {self._where} wants another certificate of this client"
            f" (weir.tls(), --tls-cert, tlsCert): {error}"
        )

    def _close(self) -> None:
        self._closed = True
        for link in self._links:
            link.close()


@asynccontextmanager
async def open_connection(
    connect: Connect,
    where: str,
    *,
    credentials: CallCredentials | None = None,
    policy: RetryPolicy | None = None,
    rng: Random | None = None,
) -> AsyncIterator[Connection]:
    """Connect, once to begin with, and stay connected for the length of a block.

    Args:
        connect: Makes a TCP connection.
        where: Names the server in errors.
        credentials: What calls prove; None: nothing.
        policy: How often and how patiently connecting is tried again.
        rng: Draws delays; None: seeded by the system.

    Raises:
        ArgumentInvalid: `rng` is none.
        ServerUnavailable: Nobody answers, or not as a weir server should.
        Unauthenticated: The server does not accept the client's certificate.

    Cancellation:
        Closes the connection, when the blocks in this one have been left.
    """
    rng = Random() if rng is None else rng
    require_kind("rng", rng, Random)
    async with bare(trio.open_nursery()) as nursery:
        connection = Connection(
            connect,
            where,
            credentials or CallCredentials(),
            policy or RetryPolicy(),
            rng,
            nursery,
        )
        try:
            await connection._living_link()
            yield connection
        finally:
            connection._close()
