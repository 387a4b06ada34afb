"""Principals, rights and their proofs, without a network."""

from __future__ import annotations

import cProfile
import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.client.credentials import bearer
from scanner.errors import ArgumentInvalid, Unauthenticated
from scanner.server.auth.principals import (
    EVERYBODY,
    Credentials,
    Right,
    Rights,
    TablePatterns,
    bearer_token,
    make_token,
    token_sha256,
)

LOADER, READER = make_token(), make_token()
CREDENTIALS = f"""
[principals.loader]
token_sha256 = ["{token_sha256(LOADER)}", "{token_sha256("old token")}"]
certificates = ["dns:loader.example", "cn:loader"]
read = ["orders*"]
write = ["orders", "staging.*"]

[principals."reader@example.com"]
token_sha256 = ["{token_sha256(READER)}"]
read = ["*"]

[principals.operator]
certificates = "uri:spiffe://example/operator"
admin = true
"""


def rights(*, read: str = "", write: str = "", admin: bool = False) -> Rights:
    """Rights with patterns separated by spaces."""
    return Rights(read=TablePatterns(read.split()), write=TablePatterns(write.split()), admin=admin)


def test_tokens_and_certificates_name_their_principals() -> None:
    """Each token and each name in a certificate leads to its principal, with its rights."""
    credentials = Credentials.parse(CREDENTIALS)
    for token in (LOADER, "old token"):
        loader = credentials.authenticate(token)
        assert loader.name == "loader"
        assert loader.rights.allow(Right.WRITE, "staging.x")
    assert credentials.authenticate(READER).name == "reader@example.com"
    assert credentials.authenticate(None, ["dns:other", "cn:loader"]).name == "loader"
    assert credentials.authenticate(None, ["uri:spiffe://example/operator"]).rights.admin


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("ip:2001:db8::1", "ip:2001:DB8:0:0:0:0:0:1"),  # as OpenSSL shows it
        ("ip:2001:DB8:0:0:0:0:0:1", "ip:2001:db8::1"),
        ("dns:loader.example", "dns:Loader.Example"),
        ("dns:LOADER.example", "dns:loader.example"),
    ],
)
def test_names_of_certificates_are_compared_by_what_they_mean(written: str, shown: str) -> None:
    """An address is the same in every way to write it, and a name of DNS in capitals; a common name is not."""
    text = f"[principals.x]\ncertificates = ['{written}', 'cn:Loader']\nread = ['*']"
    credentials = Credentials.parse(text)
    assert credentials.authenticate(None, [shown]).name == "x"
    with pytest.raises(Unauthenticated):
        credentials.authenticate(None, ["cn:loader"])
    with pytest.raises(ArgumentInvalid, match="principal y and principal x share"):
        Credentials.parse(f"{text}\n[principals.y]\ncertificates = ['{shown}']")


def test_a_token_is_found_among_thousands_as_among_few() -> None:
    """Each call is authenticated, and all that run are when the file changes: that must not go with the principals."""

    def calls_of(principals: int) -> int:
        tokens = [make_token() for _ in range(principals)]
        entries = (
            f'[principals.p{i}]\ntoken_sha256 = "{token_sha256(each)}"' for i, each in enumerate(tokens)
        )
        credentials = Credentials.parse("\n".join(entries))
        assert [credentials.authenticate(each).name for each in tokens] == [
            f"p{i}" for i in range(principals)
        ]
        profile = cProfile.Profile()
        profile.runcall(credentials.authenticate, tokens[-1])
        return sum(each.callcount for each in profile.getstats())

    assert calls_of(1000) == calls_of(10)


def test_token_decides_before_the_certificate() -> None:
    """With both, the token says who calls; a wrong one is not made good by a certificate."""
    credentials = Credentials.parse(CREDENTIALS)
    assert credentials.authenticate(READER, ["cn:loader"]).name == "reader@example.com"
    with pytest.raises(Unauthenticated, match="token is not known"):
        credentials.authenticate("weir_wrong", ["cn:loader"])


def test_nobody_in_particular_is_refused() -> None:
    """No proof, and a certificate that names no principal, are refused, each with what to do about it."""
    credentials = Credentials.parse(CREDENTIALS)
    with pytest.raises(Unauthenticated, match="send a bearer token or a client certificate"):
        credentials.authenticate(None)
    with pytest.raises(Unauthenticated, match="no principal of this server has a name"):
        credentials.authenticate(None, ["dns:stranger.example"])


def test_kinds_of_certificate_names_are_not_mixed_up() -> None:
    """A common name is not taken for a DNS name of the same text."""
    with pytest.raises(Unauthenticated):
        Credentials.parse(CREDENTIALS).authenticate(None, ["cn:loader.example", "dns:loader"])


def test_anonymous_rights_are_for_calls_without_proof() -> None:
    """An [anonymous] table admits calls without proof, and no call with a wrong one."""
    credentials = Credentials.parse(CREDENTIALS + '[anonymous]\nread = ["public.*"]\n')
    nobody = credentials.authenticate(None, ["dns:stranger.example"])
    assert (nobody.name, nobody.rights.allow(Right.READ, "public.x")) == ("anonymous", True)
    assert not nobody.rights.allow(Right.READ, "orders")
    with pytest.raises(Unauthenticated):
        credentials.authenticate("weir_wrong")


def test_everybody_may_everything_without_credentials() -> None:
    """The principal of a server without credentials has every right on every table."""
    assert all(EVERYBODY.rights.allow(right, "any.table") for right in Right)


@pytest.mark.parametrize(
    ("given_rights", "allowed"),
    [
        (rights(read="orders"), {Right.READ, Right.DESCRIBE}),
        (rights(write="orders"), {Right.WRITE, Right.DESCRIBE}),
        (rights(write="*"), {Right.WRITE, Right.DESCRIBE, Right.MANAGE}),
        (rights(admin=True), {Right.DESCRIBE, Right.MANAGE, Right.ADMIN}),
        (rights(read="others other*"), set()),
        (rights(), set()),
    ],
)
def test_rights_do_not_imply_one_another(given_rights: Rights, allowed: set[Right]) -> None:
    """Each right allows what it says: reading is no writing, and an admin reads no rows."""
    assert {right for right in Right if given_rights.allow(right, "orders")} == allowed


def test_table_rights_need_a_table() -> None:
    """Asked about no table in particular, the rights on tables say no."""
    everything = rights(read="*", write="*")
    assert not any(everything.allow(right) for right in (Right.READ, Right.WRITE, Right.DESCRIBE))


@pytest.mark.parametrize(
    ("pattern", "table", "matches"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "Orders", False),
        ("o.d", "oxd", False),
        ("orders*", "orders", True),
        ("*.orders", "eu.orders", True),
        ("eu.*.raw", "eu.a.b.raw", True),
        ("eu.*.raw", "eu.raw", False),
        ("*", "anything", True),
        ("a*b", "ab\nb", True),
    ],
)
def test_patterns(pattern: str, table: str, matches: bool) -> None:
    """A pattern is the whole name; only its stars stand for something else."""
    assert TablePatterns([pattern]).match(table) is matches


@given(pattern=st.text("ab*", min_size=1, max_size=8), table=st.text("ab", max_size=10))
def test_patterns_match_what_the_shell_matches(pattern: str, table: str) -> None:
    """Of what the shell has in its patterns, a star is all that these have."""
    assert TablePatterns([pattern]).match(table) is fnmatch.fnmatchcase(table, pattern)


def test_a_long_name_is_not_looked_through_again_and_again() -> None:
    """A request's table may have a name of megabytes, which no pattern makes the server look at for hours."""
    name = "ab" * (2 * 1024 * 1024)
    assert not TablePatterns(["*a*b*c", "a*a*a*a*a*c"]).match(name)
    assert TablePatterns(["*a*b*c", "a*a*b*b"]).match(name)


@given(name=st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,20}", fullmatch=True))
def test_every_table_name_is_its_own_pattern(name: str) -> None:
    """The name of a table, taken as a pattern, matches that table, and one more letter does not."""
    patterns = TablePatterns([name])
    assert patterns.match(name)
    assert not patterns.match(name + "x")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("secret = 'hush' x", "not TOML: see line 1"),
        ("x = " + "9" * 5_000, "not TOML: it cannot be read"),
        ("x = " + "[" * 5_000, "not TOML: it cannot be read"),
        ("[others]\nx = 1", "the credentials: a key is none of anonymous, principals"),
        ("principals = 3", "principals has to be a table"),
        ("[principals]\nx = 'hush'", "principal x has to be a table"),
        ("[principals.'a b']\nread = ['*']", "a principal's name is"),
        ("[principals.anonymous]\nread = ['*']", "no principal can be called anonymous"),
        ("", "have no principal"),
        ("[principals.x]\nread = ['*']", "principal x has neither token_sha256 nor certificates"),
        ("[principals.x]\ntoken = 'hush'", "principal x: a key is none of"),
        ("[principals.x]\ntoken_sha256 = ['hush']", "principal x: token_sha256 has 64 digits"),
        ("[principals.x]\ntoken_sha256 = 'hush'", "principal x: token_sha256 has 64 digits"),
        ("[principals.x]\ntoken_sha256 = {x = 'hush'}", "principal x: token_sha256 is a string or a list"),
        ("[principals.x]\ncertificates = ['loader']", "principal x: certificates have the form cn:"),
        ("[principals.x]\ncertificates = ['cn:x']\nread = [true]", "principal x: read is a string or a list"),
        ("[principals.x]\ncertificates = ['cn:x']\nwrite = ['a b']", "principal x: write: a table pattern"),
        ("[principals.x]\ncertificates = ['cn:x']\nadmin = 1", "principal x: admin is true or false"),
        (
            "[principals.x]\ncertificates = ['cn:x']\n[principals.y]\ncertificates = ['cn:x']",
            "principal y and principal x share",
        ),
        ("[anonymous]\ntoken_sha256 = []", "anonymous: a key is none of admin, read, write"),
        ("anonymous = 1", "anonymous has to be a table"),
    ],
)
def test_credentials_that_make_no_sense(text: str, problem: str) -> None:
    """Each mistake is one line that says where it is, and repeats no value."""
    with pytest.raises(ArgumentInvalid, match=re.escape(problem)) as caught:
        Credentials.parse(text)
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)


def test_tokens_are_long_and_new() -> None:
    """Tokens can be known as such, carry 256 bits, and are never the same."""
    tokens = {make_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch(r"weir_[A-Za-z0-9_-]{43}", token) for token in tokens)


@given(token=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1))
def test_bearer_round_trip(token: str) -> None:
    """What a client sends for a token is read back as that token."""
    assert bearer_token([bearer(token)]) == token


@pytest.mark.parametrize("token", ["", "hush hush", "hush\n", "hushä"])
def test_tokens_that_no_header_can_carry(token: str) -> None:
    """Such a token is refused before anything is sent, and not quoted."""
    with pytest.raises(ArgumentInvalid, match="visible ASCII") as caught:
        bearer(token)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "values", [["Basic eDp5"], ["Bearer"], ["Bearer "], ["weir_x"], ["Bearer a", "Bearer b"], [b"Bearer a"]]
)
def test_authorization_of_another_form(values: list[str | bytes]) -> None:
    """Anything but one `Bearer TOKEN` is refused."""
    with pytest.raises(Unauthenticated):
        bearer_token(values)


def test_scheme_has_no_case() -> None:
    """`bearer` in any case introduces a token; without a field there is none."""
    assert bearer_token(["bearer x"]) == bearer_token(["BEARER x"]) == "x"
    assert bearer_token([]) is None


def test_nothing_shows_a_secret() -> None:
    """The texts of the objects here have neither tokens nor their hashes."""
    credentials = Credentials.parse(CREDENTIALS)
    shown = repr(credentials) + repr(credentials.authenticate(LOADER)) + str(vars(Right))
    assert LOADER not in shown
    assert token_sha256(LOADER) not in shown
