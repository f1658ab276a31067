"""Files out of a stopped container, by way of the tar stream that the daemon makes of them.

The stream is taken for hostile: only regular files are taken, headers are bounded, and so is what is read to get past
what is not taken. Links are not followed here; the daemon resolves links on the way to a named path within the
container's own file system, so nothing of this machine can be reached by one.
"""

from __future__ import annotations

import posixpath
import tarfile
from typing import TYPE_CHECKING

from runners.agent.artifact_patterns import Pattern, is_pattern
from runners.agent.executors.base import ExecutorError
from runners.agent.executors.docker_adapter import DockerAdapter, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from admission.spec import RunSpec
    from runners.agent.artifacts import Collected

# Of one header: an extended one holds a long name and attributes. Read into memory as a whole.
MOST_HEADER_BYTES = 1 << 20
MOST_ENTRIES = 200_000
BLOCK_BYTES = 256 << 10
# Beyond what may be kept, for what lies between: padding, headers, files that are not taken.
SLACK_BYTES = 64 << 20
_HEADERS = {
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
}


class TooMuch(Exception):
    """The rest of the stream is not looked at."""


class _Header(tarfile.TarInfo):
    """Refuses an extended header that would fill the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        """Each header block comes through here before anything behind it is read."""
        made = super().frombuf(buf, encoding, errors)
        if made.type in _HEADERS and made.size > MOST_HEADER_BYTES:
            raise TooMuch(f"a header of {made.size} bytes")
        return made


class _Stream:
    """Pieces of any size as a file that is read once, up to a number of bytes."""

    def __init__(self, pieces: Iterator[bytes], most: int) -> None:
        self._pieces = pieces
        self._left = most
        self._held = b""
        self._at = 0

    def read(self, size: int) -> bytes:
        """Exactly so many bytes, fewer at the end."""
        while len(self._held) - self._at < size and (piece := next(self._pieces, b"")):
            self._held, self._at = self._held[self._at :] + piece, 0
        data = self._held[self._at : self._at + size]
        self._at += len(data)
        self._left -= len(data)
        if self._left < 0:
            raise TooMuch("more than may be kept")
        return data


def collect_from_container(adapter: DockerAdapter, container: str, spec: RunSpec, collection: Collected) -> None:
    """Take what the specification wants kept from a container that has ended. What cannot be had is noted."""
    for path in spec.artifacts:
        try:
            if is_pattern(path):
                _match(adapter, container, spec, Pattern(path), collection)
                continue
            with adapter.archive(container, posixpath.join(spec.working_dir, path)) as pieces:
                take_archive(pieces, posixpath.dirname(path), collection)
        except NotFound:
            collection.refuse(path, "the run left no such file or directory")
        except (TooMuch, tarfile.TarError) as error:
            collection.refuse(path, f"the rest of it was not looked at ({error})")
        except ExecutorError as error:
            collection.refuse(path, f"it could not be read: {error}")


def _match(adapter: DockerAdapter, container: str, spec: RunSpec, pattern: Pattern, collection: Collected) -> None:
    """Take what a pattern names: all below its directory is read, and what does not match is passed over."""
    top, found = posixpath.join(spec.working_dir, pattern.prefix).rstrip("/"), [False]

    def wanted(name: str) -> bool:
        matches = pattern.matches(name)
        found[0] = found[0] or matches
        return matches

    above = posixpath.dirname(pattern.prefix) if pattern.prefix else None
    with adapter.archive(container, top) as pieces:
        take_archive(pieces, above, collection, wanted, most=spec.resources.disk_mib << 20)
    if not found[0]:
        collection.refuse(pattern.text, "nothing that the run left matches it")


def take_archive(
    pieces: Iterator[bytes],
    above: str | None,
    collection: Collected,
    wanted: Callable[[str], bool] = lambda _: True,
    most: int = 0,
) -> None:
    """Take the regular files of one tar stream. `above` is the path of the directory that its names are relative to;
    null: it is of the working directory itself, and each name begins with that one's. `wanted` says of a name whether
    it is meant at all, `most` how many bytes of other files may have to be read.

    Raises:
        TooMuch, tarfile.TarError: the rest was not looked at; what was taken before stays.
    """
    limits = collection.limits
    stream = _Stream(pieces, max(most, limits.run_bytes + limits.file_bytes) + SLACK_BYTES)
    with tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK_BYTES, tarinfo=_Header) as archive:  # type: ignore[call-overload]
        for number, member in enumerate(archive):
            if number >= MOST_ENTRIES:
                raise TooMuch(f"more than {MOST_ENTRIES} entries")
            name = _named(above, member.name)
            if wanted(name):
                _take(archive, member, name, collection)
            # The library would remember every header of the stream.
            archive.members = []


def _named(above: str | None, name: str) -> str:
    """From the working directory. Nothing is made nicer: a name that leads outside is to be seen as what it is."""
    return name.partition("/")[2] if above is None else posixpath.join(above, name)


def _take(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, collection: Collected) -> None:
    if member.isdir():
        return
    if not member.isreg() or member.issparse():
        kind = "a link" if member.issym() or member.islnk() else "no regular file"
        collection.refuse(name, f"it is {kind}")
        return
    if collection.wants(name, member.size):
        source = archive.extractfile(member)
        if source is not None:
            collection.take(name, member.size, source.read)
