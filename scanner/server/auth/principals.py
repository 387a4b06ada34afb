"""Who may do what: principals, their rights, and how they prove who they are. Text and names in, a principal out.

A principal is proven by a bearer token, of which only the SHA-256 is kept, or by a name in a client certificate that
the TLS layer has verified. Rights are per table and do not imply one another; what is not granted is refused.

The credentials are a TOML text; docs/security.md describes it. No message of an error quotes a value out of it, so
that a token put there by mistake does not end in a log.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import ipaddress
import re
import secrets
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scanner.errors import ArgumentInvalid, Unauthenticated

ANONYMOUS: Final = "anonymous"
"""Name of who calls without any proof."""
TOKEN_PREFIX: Final = "weir_"
"""Of tokens made here, so that tools that look for leaked secrets can know them."""
_TOKEN_BYTES: Final = 32
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_PRINCIPAL: Final = re.compile(r"[A-Za-z0-9_.@-]{1,100}")
_PATTERN: Final = re.compile(r"[A-Za-z0-9_.*-]+")
_CERTIFICATE_NAME: Final = re.compile(r"(cn|dns|email|ip|uri):.+")
_RIGHTS_KEYS: Final = frozenset({"read", "write", "admin"})
_PRINCIPAL_KEYS: Final = _RIGHTS_KEYS | {"token_sha256", "certificates"}


class Right(enum.Enum):
    """What a call needs."""

    READ = "read"
    """To scan a table."""
    WRITE = "write"
    """To write and delete rows of a table."""
    DESCRIBE = "see"
    """To see that a table exists, its columns and its offsets: every principal that may read, write or manage it."""
    MANAGE = "create, change or drop"
    """To create and drop tables and to add columns: admins, and who may write every table."""
    ADMIN = "administer"
    """To look after the server as a whole."""


class TablePatterns:
    """Names of tables, in which `*` stands for any run of characters.

    Raises:
        ArgumentInvalid: A pattern could not match any name.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = tuple(patterns)
        for pattern in self.patterns:
            if not _PATTERN.fullmatch(pattern):
                raise ArgumentInvalid("a table pattern has letters, digits, '_', '.', '-' and '*' only")
        self._pieces = tuple(pattern.split("*") for pattern in self.patterns)

    @property
    def everything(self) -> bool:
        """Whether every table matches, those to come included."""
        return "*" in self.patterns

    def match(self, table: str) -> bool:
        """Whether a pattern is, as a whole, the name.

        The name is a peer's and may be as long as a message. Each piece is looked for once, where an expression that
        tries again for each star would take hours.
        """
        return any(_fits(pieces, table) for pieces in self._pieces)

    def __repr__(self) -> str:
        return f"TablePatterns({list(self.patterns)})"


def _fits(pieces: Sequence[str], name: str) -> bool:
    """Whether a name is these pieces in their order, with anything between two of them."""
    first, *others = pieces
    if not others:
        return name == first
    *middle, last = others
    at, end = len(first), len(name) - len(last)
    if at > end or not (name.startswith(first) and name.endswith(last)):
        return False
    for piece in middle:
        # The first place is the best one: it leaves the most for the pieces behind it.
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


@dataclass(frozen=True, kw_only=True, slots=True)
class Rights:
    """What a principal may do."""

    read: TablePatterns
    write: TablePatterns
    admin: bool = False

    @property
    def sees_everything(self) -> bool:
        """Whether the names of all tables may be known."""
        return self.admin or self.read.everything or self.write.everything

    def allow(self, right: Right, table: str | None = None) -> bool:
        """Whether this is granted.

        Args:
            right: What a call needs.
            table: Name of the table concerned, existing or not; None where it is about none.
        """
        if right is Right.ADMIN:
            return self.admin
        if right is Right.MANAGE:
            return self.admin or self.write.everything
        if table is None:
            return False
        reads, writes = self.read.match(table), self.write.match(table)
        if right is Right.READ:
            return reads
        if right is Right.WRITE:
            return writes
        return self.admin or reads or writes


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller, as authenticated."""

    name: str
    """For people and logs; letters, digits, `_`, `.`, `@`, `-`."""
    rights: Rights


EVERYBODY: Final = Principal(
    ANONYMOUS, Rights(read=TablePatterns(["*"]), write=TablePatterns(["*"]), admin=True)
)
"""Who calls a server that has no credentials configured: may do everything."""


class Credentials:
    """The principals of a server and their proofs.

    Args:
        tokens: SHA-256 of a token (lower-case hex) to its principal.
        certificates: Name in a certificate, with its kind (`dns:a.example`), as compared, to its principal.
        anonymous: Who calls without any proof; None: such calls are refused.
    """

    def __init__(
        self,
        tokens: Mapping[str, Principal],
        certificates: Mapping[str, Principal],
        anonymous: Principal | None = None,
    ) -> None:
        self._tokens = dict(tokens)
        self._certificates = dict(certificates)
        self._anonymous = anonymous

    @classmethod
    def parse(cls, text: str) -> Credentials:
        """Read the TOML of a credentials file.

        Raises:
            ArgumentInvalid: It is not that; the message names the principal and the key, and no value.
        """
        try:
            document = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also numbers and nesting beyond what Python takes
            raise ArgumentInvalid(f"the credentials are not TOML: {_position(error)}") from None
        _check_keys("the credentials", document, {"principals", "anonymous"})
        tokens: dict[str, Principal] = {}
        certificates: dict[str, Principal] = {}
        for name, entry in _table(document, "principals").items():
            _read_principal(name, entry, tokens, certificates)
        anonymous = None
        if "anonymous" in document:
            fields = _table(document, "anonymous")
            _check_keys("anonymous", fields, _RIGHTS_KEYS)
            anonymous = Principal(ANONYMOUS, _rights(ANONYMOUS, fields))
        if not tokens and not certificates and anonymous is None:
            # Half a file looks like that, too; and a server without principals would accept no caller.
            raise ArgumentInvalid(
                "the credentials have no principal: a [principals.NAME] or [anonymous] is missing"
            )
        return cls(tokens, certificates, anonymous)

    def authenticate(self, token: str | None, certificate_names: Collection[str] = ()) -> Principal:
        """Authenticate a caller: a token, if there is one, decides alone; else the certificate; else it is anonymous.

        Args:
            token: The bearer token of the call; None if it has none.
            certificate_names: Names of the caller's verified certificate, with their kinds.

        Raises:
            Unauthenticated: The token is not known; or there is none, and no name either.
        """
        if token is not None:
            return self._of_token(token)
        for name in certificate_names:
            principal = self._certificates.get(_comparable(name))
            if principal is not None:
                return principal
        if self._anonymous is not None:
            return self._anonymous
        if certificate_names:
            raise Unauthenticated(
                "no principal of this server has a name that is in the client's certificate"
            )
        raise Unauthenticated(
            "this server has to know who calls: send a bearer token or a client certificate"
        )

    def _of_token(self, token: str) -> Principal:
        # How long a lookup takes could tell something of a hash at most, and no token of 256 random bits is found by
        # its hash. To compare with every hash in constant time takes longer than the call where there are thousands.
        found = self._tokens.get(token_sha256(token))
        if found is None:
            raise Unauthenticated("the bearer token is not known to this server")
        return found


def make_token() -> str:
    """A new bearer token: 256 random bits, so that a plain hash of it cannot be searched."""
    return TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)


def token_sha256(token: str) -> str:
    """What the credentials hold of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def bearer_token(values: Collection[str | bytes]) -> str | None:
    """The token out of a call's `authorization` fields; None if there are none.

    Raises:
        Unauthenticated: It is something else than one `Bearer TOKEN`.
    """
    if not values:
        return None
    first, *others = values
    if others or not isinstance(first, str):
        raise Unauthenticated("a call has one authorization field")
    scheme, _, token = first.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthenticated("the authorization of a call has the form: Bearer TOKEN")
    return token.strip()


def _read_principal(
    name: str, entry: object, tokens: dict[str, Principal], certificates: dict[str, Principal]
) -> None:
    if not _PRINCIPAL.fullmatch(name):
        raise ArgumentInvalid("a principal's name is 1 to 100 letters, digits, '_', '.', '@' and '-'")
    if name == ANONYMOUS:
        raise ArgumentInvalid(
            f"no principal can be called {ANONYMOUS}: calls without proof are, and would share its leases; for"
            f" their rights there is [{ANONYMOUS}]"
        )
    where = f"principal {name}"
    if not isinstance(entry, dict):
        raise ArgumentInvalid(f"{where} has to be a table: [principals.{name}]")
    _check_keys(where, entry, _PRINCIPAL_KEYS)
    principal = Principal(name, _rights(where, entry))
    hashes = _strings(where, entry, "token_sha256")
    names = [_comparable(each) for each in _strings(where, entry, "certificates")]
    if not hashes and not names:
        raise ArgumentInvalid(
            f"{where} has neither token_sha256 nor certificates: no caller can prove to be it"
        )
    for each in hashes:
        if not _HASH.fullmatch(each):
            raise ArgumentInvalid(f"{where}: token_sha256 has 64 digits 0-9 a-f; `weir token` prints it")
    for each in names:
        if not _CERTIFICATE_NAME.fullmatch(each):
            raise ArgumentInvalid(f"{where}: certificates have the form cn:, dns:, email:, ip: or uri:NAME")
    for known, proofs in ((tokens, hashes), (certificates, names)):
        for proof in proofs:
            if proof in known:
                raise ArgumentInvalid(
                    f"{where} and principal {known[proof].name} share a token or certificate"
                )
            known[proof] = principal


def _comparable(name: str) -> str:
    """A name in a certificate in the form that is compared: names of DNS have no case, and addresses have a value."""
    kind, _, value = name.partition(":")
    if kind == "ip":
        with contextlib.suppress(ValueError):  # What is no address is compared as it is written.
            return f"ip:{ipaddress.ip_address(value)}"
    return name.lower() if kind == "dns" else name


def _rights(where: str, fields: Mapping[str, Any]) -> Rights:
    admin = fields.get("admin", False)
    if not isinstance(admin, bool):
        raise ArgumentInvalid(f"{where}: admin is true or false")
    patterns: dict[str, TablePatterns] = {}
    for key in ("read", "write"):
        try:
            patterns[key] = TablePatterns(_strings(where, fields, key))
        except ArgumentInvalid as error:
            raise ArgumentInvalid(f"{where}: {key}: {error.message}") from None
    return Rights(**patterns, admin=admin)


def _strings(where: str, fields: Mapping[str, Any], key: str) -> list[str]:
    value = fields.get(key, [])
    values = value if isinstance(value, list) else [value]
    if not all(isinstance(each, str) for each in values):
        raise ArgumentInvalid(f"{where}: {key} is a string or a list of strings")
    return values


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise ArgumentInvalid(f"{key} has to be a table: [{key}]")
    return value


def _check_keys(where: str, fields: Mapping[str, Any], known: Collection[str]) -> None:
    if any(key not in known for key in fields):
        raise ArgumentInvalid(f"{where}: a key is none of {', '.join(sorted(known))}")


def _position(error: ValueError | RecursionError) -> str:
    """Where it is wrong; the value itself may be a secret."""
    match = re.search(r"\(at (.*)\)$", str(error))
    return f"see {match[1]}" if match else "it cannot be read"
