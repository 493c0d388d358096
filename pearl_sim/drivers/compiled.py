"""Functions compiled by numba, and kept on disk as long as no source of theirs changes."""

import inspect
import sys
import zlib
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.extending import register_jitable


def compiled(function: Callable[..., Any], *uses: Callable[..., Any]) -> Any:
    """Return `function` compiled together with the functions that it uses; kept where numba finds a directory."""
    for each in (function, *uses):
        register_jitable(each)
    # numba's cache looks at the cached function's own file and closure only; this one has every source in it.
    modules = sorted({each.__module__ for each in (function, *uses)})
    sources = zlib.crc32("".join(inspect.getsource(sys.modules[module]) for module in modules).encode())

    def entry(*arguments: Any) -> Any:
        _ = sources
        return function(*arguments)

    try:
        return njit(cache=True)(entry)
    except RuntimeError:  # there is no such directory
        return njit(entry)
