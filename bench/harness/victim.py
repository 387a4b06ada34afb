"""`python -m bench.harness.victim ENDPOINT TABLE` scans a table by push and session, slowly, until it is killed."""

import sys
import threading
import time

import scanner.sync

BATCH_S = 0.05


def scan(endpoint: str, table: str, mode: str) -> None:
    """Scan again and again; says on standard output that it has begun."""
    with scanner.sync.connect(endpoint) as client:
        plan = client.table(table).new_scan().with_mode(mode).with_credit(64 << 10).with_page_bytes(64 << 10)
        while True:
            with plan.execute() as batches:
                for _ in batches:
                    sys.stdout.write(".")
                    sys.stdout.flush()
                    time.sleep(BATCH_S)


def main() -> None:
    """Scan in both modes."""
    endpoint, table = sys.argv[1:]
    threading.Thread(target=scan, args=(endpoint, table, "session"), daemon=True).start()
    scan(endpoint, table, "push")


if __name__ == "__main__":
    main()
