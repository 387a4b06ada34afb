"""Whose pages they are: tokens and what they name belong to one principal, as long as it may read the table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from scanner.errors import PermissionDenied, ResumeTokenInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.auth.access import CredentialsFile
from tests.scanner.server.auth.test_access import CREDENTIALS, connected, serving
from tests.support.models import Model, paged_models, pull_wire
from tests.support.scans import failure

if TYPE_CHECKING:
    import scanner

pytestmark = pytest.mark.socket


def pages(client: scanner.Client, model: Model) -> Any:
    """A scan of `orders` in small pages."""
    return pull_wire(model, client._connection, pb.ScanQuery(table="orders"), page_bytes=1_000)


@paged_models
async def test_token_belongs_to_its_principal(model: Model) -> None:
    """Another principal that may read the table can neither continue nor close with it; its owner goes on."""
    async with serving() as server:
        async with connected(server, "reader") as owner, connected(server, "other") as thief:
            scan, stolen = pages(owner, model), pages(thief, model)
            token = (await scan.open()).token
            errors = [
                await failure(lambda: stolen.call(token)),
                await failure(lambda: stolen.call(token, close=True)),
            ]
            await scan.next()
            await scan.release()

    assert [type(error) for error in errors] == [ResumeTokenInvalid, ResumeTokenInvalid]


@paged_models
async def test_right_taken_away_ends_the_pages(tmp_path: Path, model: Model) -> None:
    """The right to read is looked at for every page; letting go of what is kept needs none."""
    file = tmp_path / "credentials.toml"
    file.write_text(CREDENTIALS)
    credentials = CredentialsFile(file)
    async with serving(credentials) as server, connected(server, "reader") as client:
        scan = pages(client, model)
        await scan.open()
        file.write_text(CREDENTIALS.replace('read = ["orders*"]', ""))
        credentials.reload()
        error = await failure(scan.next)
        await scan.release()
        assert server.statistics().page_snapshots_kept == 0

    assert isinstance(error, PermissionDenied)
