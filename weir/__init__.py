"""weir: full scans of live key-value tables, pushed.

`weir.connect` is the client for trio, `weir.sync.connect` the blocking one, `weir.spark` the data source of Spark. The
names are those of `scanner`, `scanner.sync` and `spark_source`, where their documentation is.

    import weir.sync

    with weir.sync.connect("127.0.0.1:9123") as client:
        table = client.table("orders").new_scan().where(weir.col("price") > 10).to_arrow()
"""

from importlib.util import find_spec
from pathlib import Path
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

import scanner

# Code that people generate from our .proto files is `weir.v1`, in a directory of theirs.
__path__ = extend_path(__path__, __name__)

for _name in ("scanner", "transport"):
    _found = find_spec(_name)
    _origin = Path(_found.origin) if _found is not None and _found.origin is not None else None
    if _origin is None or _origin.parent.parent != Path(__file__).parent.parent:
        raise ImportError(
            f"weir has a package {_name} of its own, and Python finds {_origin or 'none'} under that name:"
            " uninstall or rename the other one"
        )

if TYPE_CHECKING:
    from scanner import *  # noqa: F403
else:  # mypy reads lists alone: after this line `import *` would bring nothing.
    __all__ = scanner.__all__


def __getattr__(name: str) -> Any:
    """A public name of `scanner`, imported when it is first used."""
    if name not in scanner.__all__:
        raise AttributeError(f"module 'weir' has no attribute {name!r}")
    value = globals()[name] = getattr(scanner, name)
    return value


def __dir__() -> list[str]:
    """All that is public."""
    return sorted({*globals(), *scanner.__all__})
