"""An address of Redis that cannot be read is refused without a word of it: it holds the password."""

from __future__ import annotations

import traceback

import pytest

from admission.physical.errors import Refused
from admission.physical.redis_adapter import RedisServer


@pytest.mark.rule("P4", "Q13")
@pytest.mark.parametrize("address", ["redis://:hunter2/more@host:6379/0", "hunter2", "redis://:x@host:hunter2/0"])
def test_it_is_not_quoted(address: str) -> None:
    with pytest.raises(Refused, match="REDIS_URL cannot be read") as refused:
        RedisServer(address)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value, chain=True))
