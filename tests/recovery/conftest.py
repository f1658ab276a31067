from __future__ import annotations

from tests.fencing.conftest import local_image

__all__ = ["local_image"]
