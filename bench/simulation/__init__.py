"""Deterministic simulation: server, clients, writers and network in one seeded run on a virtual clock.

    seed --> workload   what the table is, who writes, who scans how, what breaks when; all of it drawn from the seed
         --> world      one run of it: the real server on the in-memory store, the real client, pipes for a network
         --> history    what happened, in order
         --> validators named judgements over the history, by a model that knows nothing of servers

The same seed gives the same history, event for event, in any process. Nothing here reads a clock, opens a socket or
starts a thread.
"""
