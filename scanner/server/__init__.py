"""The server: its assembly, its configuration, its metrics. `server.open_server` begins one."""
