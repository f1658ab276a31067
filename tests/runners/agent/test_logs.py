"""Log buffer and masking."""

from __future__ import annotations

import hashlib
import random

import pytest

from runners.agent.control import ControlUnavailable, LogOffset
from runners.agent.executors.frames import Frames
from runners.agent.logs import CAP_BYTES, CHUNK_BYTES, SEAM_MARK, LogBuffer, Stored
from runners.agent.masking import MASK, Masker


class Store:
    def __init__(self) -> None:
        self.data = bytearray()
        self.sizes: list[int] = []

    def send(self, offset: int, data: bytes) -> int:
        if offset != len(self.data):
            raise LogOffset(len(self.data))
        self.data += data
        self.sizes.append(len(data))
        return len(self.data)


@pytest.mark.rule("Q8")
def test_cap_with_one_visible_mark_and_bounded_memory() -> None:
    logs, store = LogBuffer(), Store()
    for _ in range(800):
        logs.write(b"x" * 65536)
    mark = f"\n[wharfinger: output cut at {CAP_BYTES} bytes]\n".encode()
    assert logs.waiting == CAP_BYTES + len(mark)
    logs.flush(store.send)
    logs.write(b"more")
    logs.close()
    logs.flush(store.send)
    assert len(store.data) == CAP_BYTES + len(mark)
    assert store.data.endswith(mark)
    assert max(store.sizes) <= CHUNK_BYTES
    assert logs.waiting == 0


def test_exactly_the_cap_is_not_cut() -> None:
    logs, store = LogBuffer(cap=10), Store()
    logs.write(b"0123456789")
    logs.flush(store.send)
    assert store.data == b"0123456789"


@pytest.mark.rule("Q8")
@pytest.mark.parametrize("seed", range(5))
def test_outages_lost_answers_and_resumption(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    logs, store = LogBuffer(), Store()
    expected = b""

    def unreliable(offset: int, data: bytes) -> int:
        if chance.random() < 0.3:
            raise ControlUnavailable
        stored = store.send(offset, data)
        if chance.random() < 0.3:
            raise ControlUnavailable
        return stored

    for number in range(300):
        part = b"%06d" % number * chance.randrange(1, 3000)
        expected += part
        logs.write(part)
        if chance.random() < 0.3:
            try:
                logs.flush(unreliable)
            except ControlUnavailable:
                continue
    logs.close()
    logs.flush(store.send)
    assert store.data == expected[:CAP_BYTES]


def test_a_successor_reads_from_the_start_and_sends_only_the_rest() -> None:
    logs, store = LogBuffer(), Store()
    store.data += b"01234"
    logs.write(b"012")
    logs.flush(store.send)
    logs.write(b"3456789")
    logs.flush(store.send)
    assert store.data == b"0123456789"


def successor(stored: bytes) -> tuple[LogBuffer, Store]:
    logs, store = LogBuffer(), Store()
    store.data += stored
    logs.go_on_after(Stored(len(stored), hashlib.sha256(stored).digest()))
    return logs, store


@pytest.mark.rule("R10", "Q8")
@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_successor_that_knows_what_is_stored_compares_it_and_sends_only_the_rest(size: int) -> None:
    logs, store = successor(b"01234")
    whole = b"0123456789" * 3
    for at in range(0, len(whole), size):
        logs.write(whole[at : at + size])
        logs.flush(store.send)
    logs.close()
    logs.flush(store.send)
    assert store.data == whole


@pytest.mark.rule("R10", "Q8")
@pytest.mark.parametrize("read", [b"34567 new", b"10234 new", b"012"], ids=["rotated", "another order", "too little"])
def test_where_the_output_read_again_differs_the_log_says_so(read: bytes) -> None:
    logs, store = successor(b"01234")
    logs.write(read)
    logs.close()
    logs.flush(store.send)
    assert store.data == b"01234" + f"[wharfinger: {SEAM_MARK}]\n".encode() + read[5:]


@pytest.mark.rule("R10")
def test_a_successor_of_one_that_stored_nothing_compares_nothing() -> None:
    logs, store = successor(b"")
    logs.write(b"all")
    logs.close()
    logs.flush(store.send)
    assert store.data == b"all"


@pytest.mark.rule("Q8")
def test_a_gap_is_shown() -> None:
    logs, store = LogBuffer(), Store()
    logs.write(b"0123456789")
    logs.flush(store.send)
    del store.data[4:]
    logs.write(b"abc")
    logs.flush(store.send)
    assert store.data == b"0123\n[wharfinger: 6 bytes of output are missing here]\nabc"


def test_a_store_that_does_not_move_on_is_not_asked_for_ever() -> None:
    logs = LogBuffer()
    logs.write(b"x")
    with pytest.raises(ControlUnavailable, match="does not move on"):
        logs.flush(lambda offset, data: offset)


def test_wakes_once_a_chunk_is_waiting() -> None:
    woken: list[int] = []
    logs = LogBuffer(wake=lambda: woken.append(1))
    for _ in range(10):
        logs.write(b"x" * (CHUNK_BYTES // 4))
    assert len(woken) == 1


@pytest.mark.rule("Q13")
@pytest.mark.parametrize("seed", range(20))
def test_secrets_are_masked_wherever_they_are_cut(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311
    secrets = ["hunter2hunter3", "hunter2", "aaaab", "päss-wörd"]
    text = "".join(chance.choice([*secrets, "hunt", "a", "er2", " ", "ü"]) for _ in range(200)).encode()
    masker = Masker(secrets)
    shown = b""
    while text:
        size = chance.randrange(1, 12)
        shown += masker.feed(text[:size])
        text = text[size:]
    shown += masker.end()
    assert all(secret.encode() not in shown for secret in secrets)
    assert MASK in shown


def test_a_value_that_begins_a_longer_one() -> None:
    masker = Masker(["hunter2", "hunter2hunter3"])
    assert masker.feed(b"hunter2") + masker.feed(b"hunter3 hunter2") + masker.end() == MASK + b" " + MASK


def test_short_values_are_not_masked() -> None:
    masker = Masker(["1", "abc", ""])
    assert masker.feed(b"1 abc") + masker.end() == b"1 abc"


def test_frames_in_any_pieces() -> None:
    stream = b"".join(bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for kind, data in
                      [(1, b"out"), (2, b"err" * 1000), (1, b""), (1, b"end")])  # fmt: skip
    for size in (1, 3, 7, 8, 100, 10_000):
        seen = bytearray()
        frames = Frames(seen.extend)
        for at in range(0, len(stream), size):
            frames.feed(stream[at : at + size])
        assert seen == b"out" + b"err" * 1000 + b"end"
