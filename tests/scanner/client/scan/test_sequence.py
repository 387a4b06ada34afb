"""What the answer to a scan's opening says of itself, compared with what was asked for."""

from __future__ import annotations

import pytest

from scanner.client.scan.sequence import require_bucket
from scanner.errors import DataCorrupted
from scanner.proto.weir.v1 import scanner_pb2 as pb

Begun = pb.ScanStarted | pb.ScanPageResponse | pb.ScanSessionResponse
QUERY = pb.ScanQuery(table="t", table_id=7, bucket=2)


@pytest.mark.parametrize("kind", [pb.ScanStarted, pb.ScanPageResponse, pb.ScanSessionResponse])
def test_an_answer_of_another_bucket_is_refused(kind: type[Begun]) -> None:
    """Or of another table; not one of an older server, which does not say, and not where no table was meant."""
    require_bucket("the scan", kind(), QUERY)
    require_bucket("the scan", kind(scanned=pb.ScannedBucket(table_id=7, bucket=2)), QUERY)
    require_bucket("the scan", kind(scanned=pb.ScannedBucket(table_id=8, bucket=2)), pb.ScanQuery(bucket=2))
    for table_id, bucket in ((8, 2), (7, 3), (0, 0)):
        other = kind(scanned=pb.ScannedBucket(table_id=table_id, bucket=bucket))
        with pytest.raises(DataCorrupted, match=f"is of bucket {bucket} of table {table_id}"):
            require_bucket("the scan", other, QUERY)
