"""What hostile and broken peers do to a server, one function for each, over real sockets.

`ATTACKS` is the table: the abuse tests run each once against a server whose holdings they can ask for, and
`python -m bench abuse` runs each again and again against `weir serve`, with its memory, its CPU and a well-behaved
client being measured meanwhile.
"""

from bench.attacks import connections, control, headers, messages, resets, scans, windows
from bench.attacks.attack import Attack

ATTACKS: tuple[Attack, ...] = (
    *resets.ATTACKS,
    *headers.ATTACKS,
    *control.ATTACKS,
    *windows.ATTACKS,
    *messages.ATTACKS,
    *scans.ATTACKS,
    *connections.ATTACKS,
)

BY_NAME = {attack.name: attack for attack in ATTACKS}
