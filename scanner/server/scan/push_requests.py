"""What the client of a push scan says after its open: credit, and an early end.

Pure: no stream, no task. `scanner.server.scan.push` acts on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scanner.errors import ArgumentInvalid, CreditInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.queries import parse_request
from transport import CREDIT_BYTES_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from transport import SendCredit

_REQUEST_BYTES_MAX: Final = 64 * 1024
"""A demand or a drain takes some tens of octets."""


class RequestSide:
    """What the client has said since its open. Pure: it is given messages and remembers what they mean.

    Args:
        credit: Ledger of the stream; what the client grants is written there and kept nowhere else.
    """

    def __init__(self, credit: SendCredit) -> None:
        self._credit = credit
        self.draining = False
        """The client asked for an early end."""
        self.half_closed = False
        """The client will say nothing more, so no credit will come either."""
        self._demanded = False

    def receive(self, message: Buffer) -> bool:
        """Take a message after the open.

        Returns:
            Whether it may change what is sent next. A demand that is no higher than an earlier one does not.

        Raises:
            ArgumentInvalid: It is a second open, empty, of a kind that is not known here, or not a message.
            CreditInvalid: It demands more than can be counted.
        """
        request = parse_request(pb.ScanRequest, message, _REQUEST_BYTES_MAX)
        match request.WhichOneof("request"):
            case "demand":
                return self._demand(request.demand.bytes_limit)
            case "drain":
                self.draining = True
                return True
            case "open":
                raise ArgumentInvalid("this stream has its scan; open another one on another stream")
            case _:
                raise ArgumentInvalid(
                    "a request of a running scan is a demand or a drain, and this is neither"
                )

    def receive_end(self) -> None:
        """Take the end of the request side. Without a demand before, HTTP/2 windows alone hold the scan back."""
        self.half_closed = True
        if not self._demanded:
            self._credit.remove_limit()

    def _demand(self, limit: int) -> bool:
        if limit > CREDIT_BYTES_MAX:
            raise CreditInvalid(
                f"a demand of {limit} bytes is more than the {CREDIT_BYTES_MAX} that can be counted"
            )
        self._demanded = True
        return self._credit.raise_limit(limit)
