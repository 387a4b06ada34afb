"""What every test runs under: the hypothesis profile.

`dev` is quick and explores; `ci` (chosen where the environment variable CI is set) is the same run every time;
`nightly` is for a machine with nothing else to do: HYPOTHESIS_PROFILE=nightly.
"""

import os
import signal

from hypothesis import HealthCheck, settings

# No deadlines: a shared machine is slow at times, and how long a test may take is pytest-timeout's business.
settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    "ci", settings.get_profile("dev"), max_examples=100, derandomize=True, database=None
)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))

# A shell has its background jobs ignore Ctrl-C, and so would the commands that are interrupted here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
