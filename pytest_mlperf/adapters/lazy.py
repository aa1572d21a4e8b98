"""Import numpy at first use, because suites are also checked on machines without numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy as np

            value = getattr(np, name)
            setattr(self, name, value)
            return value

    np, NDArray = _Numpy(), Any

__all__ = ["NDArray", "np"]
