"""The paths of the methods of `weir.v1`, as gRPC has them: `/package.Service/Method`."""

from __future__ import annotations

from typing import Final

SCANNER: Final = "/weir.v1.Scanner/"
"""Of a service: a method's name goes behind it."""
TABLES: Final = "/weir.v1.Tables/"
LEASES: Final = "/weir.v1.Leases/"
ADMIN: Final = "/weir.v1.Admin/"
GROUPS: Final = "/weir.v1.Groups/"
TRANSACTIONS: Final = "/weir.v1.Transactions/"

SCAN: Final = SCANNER + "Scan"
SCAN_SESSION: Final = SCANNER + "ScanSession"
SCAN_PAGE: Final = SCANNER + "ScanPage"
FETCH_LOG: Final = SCANNER + "FetchLog"
GET: Final = TABLES + "Get"
WRITE: Final = TABLES + "Write"
ADD_COLUMN: Final = TABLES + "AddColumn"
DROP_UNWRITTEN: Final = TABLES + "DropUnwritten"
LIST_OFFSETS: Final = TABLES + "ListOffsets"
SPLIT_BUCKET: Final = TABLES + "SplitBucket"
MEASURE_LOG: Final = TABLES + "MeasureLog"
JOIN: Final = GROUPS + "Join"
STAGE: Final = TRANSACTIONS + "Stage"
PUBLISH: Final = TRANSACTIONS + "Publish"
ABORT: Final = TRANSACTIONS + "Abort"

READS: Final = frozenset(
    {
        "DescribeGroup",
        "DescribeTable",
        "ListCheckpoints",
        "ListGroups",
        "ListImages",
        "ListLeases",
        "ListOffsets",
        "ListSnapshots",
        "ListStreams",
        "ListTables",
        "ListTransactions",
        "MeasureLog",
        "SplitBucket",
    }
)
"""Names of unary methods that change nothing, beside `Get`: such a call may be made again."""
