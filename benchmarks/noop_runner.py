"""A runner that does nothing with its runs: claim, start, report, in batches, over HTTP. A process of its own.

`python -m benchmarks.noop_runner PORT TOKEN SLOTS LOG` appends (run, time of its accepted start) to LOG, 16 bytes each
"""

from __future__ import annotations

import http.client
import json
import struct
import sys
import time
from typing import Any

IDLE_SECONDS = 10


class Caller:
    """One kept connection."""

    def __init__(self, port: int, token: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=90)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._used = time.monotonic()

    def post(self, path: str, body: Any) -> Any:
        """The decoded answer; null for none."""
        if time.monotonic() > self._used + IDLE_SECONDS:
            self._connection.close()  # the server closes what is idle for long; it opens itself again
        self._connection.request("POST", f"/api/v1{path}", json.dumps(body), self._headers)
        answer = self._connection.getresponse()
        data = answer.read()
        self._used = time.monotonic()
        if answer.status >= 300:
            raise SystemExit(f"{path} answered {answer.status}: {data[:500]!r}")
        return json.loads(data) if data else None


def main() -> None:
    """Until it is killed."""
    port, token, slots, path = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    caller, number = Caller(port, token), 0
    with open(path, "ab", buffering=0) as log:  # noqa: PTH123 - unbuffered, one write a batch
        while True:
            number += 1
            claim = {"request_id": f"r{time.time_ns()}", "slots": slots, "wait_seconds": 30}
            answer = caller.post("/runner/claims", claim)
            if answer is None or not answer["assignments"]:
                continue
            holds = [{"run": one["run"], "epoch": one["epoch"]} for one in answer["assignments"]]
            verdicts = caller.post("/runner/starts", {"runs": holds})["verdicts"]
            at = time.time()
            log.write(b"".join(struct.pack("qd", v["run"], at) for v in verdicts if v["verdict"] == "ok"))
            results = [{**hold, "ending": "succeeded", "exit_code": 0} for hold in holds]
            caller.post("/runner/results", {"results": results})


if __name__ == "__main__":
    main()
