"""Whose pages they are: tokens and what they name belong to one principal, as long as it may read the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scanner.errors import PermissionDenied, ResumeTokenInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.auth.access import CredentialsFile
from tests.scanner.server.auth.test_access import CREDENTIALS, connected, serving
from tests.support.pages import MODELS, Pages
from tests.support.scans import failure

if TYPE_CHECKING:
    import scanner

pytestmark = pytest.mark.socket

every_model = pytest.mark.parametrize("model", MODELS)


def pages(client: scanner.Client, model: str, token: bytes = b"") -> Pages:
    """A scan of `orders` in small pages."""
    query = pb.ScanQuery(table="orders")
    return Pages(client._connection, model, query, page_bytes=1_000, token=token)


@every_model
async def test_token_belongs_to_its_principal(model: str) -> None:
    """Another principal that may read the table can neither continue nor close with it; its owner goes on."""
    async with serving() as server:
        async with connected(server, "reader") as owner, connected(server, "other") as thief:
            scan = pages(owner, model)
            token = (await scan.call()).fields.resume_token
            errors = [
                await failure(pages(thief, model, token).call),
                await failure(pages(thief, model, token).close),
            ]
            page = await pages(owner, model, token).call()
            await pages(owner, model, token).close()

    assert [type(error) for error in errors] == [ResumeTokenInvalid, ResumeTokenInvalid]
    assert page.fields.row_ordinal > 0


@every_model
async def test_right_taken_away_ends_the_pages(tmp_path: Path, model: str) -> None:
    """The right to read is looked at for every page; letting go of what is kept needs none."""
    file = tmp_path / "credentials.toml"
    file.write_text(CREDENTIALS)
    credentials = CredentialsFile(file)
    async with serving(credentials) as server, connected(server, "reader") as client:
        scan = pages(client, model)
        scan.token = (await scan.call()).fields.resume_token
        file.write_text(CREDENTIALS.replace('read = ["orders*"]', ""))
        credentials.reload()
        error = await failure(scan.call)
        await scan.close()
        assert server.statistics().page_snapshots_kept == 0

    assert isinstance(error, PermissionDenied)
