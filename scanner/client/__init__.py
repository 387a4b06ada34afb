"""The trio client: connections, tables, leases, writes, administration. Knows no server."""
