"""The only module that imports `docker`: calls of the low-level client, with every answer told apart.

One endpoint is captured when the object is made and used for each call (rule P16): the SDK's own choice may follow a
command-line context and silently talk to another daemon. Errors are three different things and stay so (rule G7):
`NotFound` (the daemon says it is not there), `Refused` (the daemon says no) and `DaemonSilent` (nothing is known).
"""

from __future__ import annotations

import io
import os
import struct
import tarfile
import threading
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import requests
from docker.errors import APIError, DockerException
from docker.errors import NotFound as SdkNotFound
from docker.tls import TLSConfig
from urllib3.exceptions import HTTPError

from runners.agent.executors.base import ExecutorError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

DEFAULT_ENDPOINT = "unix:///var/run/docker.sock"
QUICK_SECONDS = 10
CREATE_SECONDS = 120
REMOVE_SECONDS = 50
PULL_SECONDS = 900
IMPORT_SECONDS = 120
ARCHIVE_BYTES = 256 << 10
_POOL = 64

Json = dict[str, Any]


class DaemonSilent(ExecutorError):
    """No answer (connection error, time-out). Whether the call took effect is unknown."""

    temporary = True


class DaemonForbidden(DaemonSilent):
    """This user may not speak to the daemon: time does not mend it."""

    temporary = False


class Refused(ExecutorError):
    """The daemon answered and said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class NotFound(Refused):
    """The daemon answered that this is not there."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """Which daemon it is, and what it can do."""

    id: str
    version: str
    cgroup_version: str
    has_init: bool
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A container as a listing shows it; its state may be another by now."""

    id: str
    name: str
    state: str
    labels: Mapping[str, str]


@contextmanager
def _told_apart(what: str) -> Iterator[None]:
    try:
        yield
    except SdkNotFound as error:
        raise NotFound(404, f"{what}: {error.explanation or error}") from error
    except APIError as error:
        raise Refused(int(error.status_code or 0), f"{what}: {error.explanation or error}") from error
    except (requests.RequestException, HTTPError, struct.error, DockerException, OSError) as error:
        # The two in the middle: a stream that breaks off while it is read, within a frame or within its header.
        raise DaemonSilent(f"{what}: no answer from the Docker daemon ({error}); is it running?") from error


def _is_forbidden(error: BaseException | None) -> bool:
    """Whether a refused permission is behind it; the libraries wrap it several times."""
    while error is not None:
        if isinstance(error, PermissionError):
            return True
        error = error.__cause__ or error.__context__
    return False


class Attached:
    """The raw output connection of a container; `fileno` may be polled."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.fileno: int = raw.fileno()

    def read(self, size: int) -> bytes:
        """What is there; b'' at the end of the stream."""
        return os.read(self.fileno, size)

    def close(self) -> None:
        """Close the connection; the container does not notice."""
        self._raw._response.close()  # noqa: SLF001 - the client library offers no other way


class DockerAdapter:
    """Calls one daemon. Used by many threads."""

    def __init__(self, endpoint: str | None = None) -> None:
        self.endpoint = endpoint or os.environ.get("DOCKER_HOST") or DEFAULT_ENDPOINT
        self._tls = _tls_from_environment() if self.endpoint.startswith("tcp://") else False
        self._clients: dict[int, docker.APIClient] = {}
        self._version: str | None = None
        self._lock = threading.Lock()

    def _client(self, seconds: int = QUICK_SECONDS) -> docker.APIClient:
        client = self._clients.get(seconds)
        if client is None:
            with self._lock:
                client = self._clients.get(seconds) or self._connect(seconds)
                self._clients[seconds] = client
        return client

    def _connect(self, seconds: int) -> docker.APIClient:
        try:
            with _told_apart(f"connecting to {self.endpoint}"):
                client = docker.APIClient(
                    base_url=self.endpoint,
                    version=self._version or "auto",
                    timeout=seconds,
                    tls=self._tls,
                    max_pool_size=_POOL,
                )
        except DaemonSilent as error:
            if _is_forbidden(error):
                raise DaemonForbidden(
                    f"this user may not use the Docker daemon at {self.endpoint}; add it to the group `docker`"
                ) from error
            raise
        self._version = client.api_version
        return client

    def close(self) -> None:
        """Close kept connections. The adapter may be used again."""
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def identity(self) -> Daemon:
        """Who the daemon is. The id is cloned with a disk image; rule P4 keeps a nonce beside it."""
        client = self._client()
        with _told_apart("asking the daemon who it is"):
            info = client.info()
        return Daemon(
            id=info["ID"],
            version=info.get("ServerVersion", ""),
            cgroup_version=str(info.get("CgroupVersion", "")),
            has_init=(info.get("InitCommit") or {}).get("ID", "N/A") != "N/A",
            warnings=tuple(info.get("Warnings") or ()),
        )

    def image_id(self, image: str) -> str | None:
        """The id of a local image, or None when the daemon has none of that name."""
        client = self._client()
        try:
            with _told_apart(f"looking for image {image}"):
                answer: Json = client.inspect_image(image)

        except NotFound:
            return None
        return str(answer["Id"])

    def pull(
        self,
        image: str,
        seconds: int = PULL_SECONDS,
        progress: Callable[[str], None] | None = None,
        login: Mapping[str, str] | None = None,
    ) -> None:
        """Fetch an image. `seconds` bounds the silence between two reports, not the whole.

        `login` goes to the daemon in a header of this one call and is kept nowhere; without one the machine's own
        configuration (`docker login`) serves.
        """
        repository, tag = split_image(image)
        client = self._client(seconds)
        with _told_apart(f"pulling {image}"):
            lines = client.pull(repository, tag=tag, stream=True, decode=True, auth_config=dict(login or {}) or None)
            for line in lines:
                if "error" in line:
                    raise Refused(0, f"pulling {image}: {line['error']}")
                if progress is not None:
                    progress(str(line.get("status", "")))

    def import_image(self, archive: Path, repository: str, tag: str, changes: list[str]) -> None:
        """Make an image of a root file system's tar archive."""
        client = self._client(IMPORT_SECONDS)
        with _told_apart(f"importing {repository}:{tag}"), archive.open("rb") as stream:
            answer = client.import_image(src=stream, repository=repository, tag=tag, changes=changes)
        if '"error"' in str(answer):
            raise Refused(0, f"importing {repository}:{tag}: {answer}")

    def create(self, name: str, config: Json) -> str:
        """Create a container; returns the full id. Never repeated by the caller after `DaemonSilent`."""
        client = self._client(CREATE_SECONDS)
        with _told_apart(f"creating {name}"):
            answer: Json = client.create_container_from_config(config, name)
        return str(answer["Id"])

    def attach(self, container: str) -> Attached:
        """Connect to stdout and stderr as they are written from now on."""
        client = self._client()
        with _told_apart(f"attaching to {container[:12]}"):
            return Attached(client.attach_socket(container, {"stdout": 1, "stderr": 1, "stream": 1}))

    def output_since_creation(self, container: str) -> Generator[bytes, None, None]:
        """The kept log from its first byte, then following; for whoever has no attached connection.

        Closed early, it closes the connection; its end does not say whether the container ended or the connection did.
        """
        client = self._client()
        with _told_apart(f"reading the log of {container[:12]}"):
            output = client.logs(container, stdout=True, stderr=True, stream=True, follow=True)
            # The library's own close leaves the response open, and fails on one that has been read to its end.
            with closing(vars(output)["_response"]):
                yield from output

    @contextmanager
    def archive(self, container: str, path: str) -> Iterator[Iterator[bytes]]:
        """A file or directory of the container as a tar stream; the daemon reads it, whoever its owner is."""
        client = self._client(CREATE_SECONDS)
        with _told_apart(f"reading {path} of {container[:12]}"):
            pieces, _ = client.get_archive(container, path, chunk_size=ARCHIVE_BYTES)
            try:
                yield iter(pieces)
            finally:
                pieces.close()

    def make_directory(self, container: str, path: str, owner: int) -> None:
        """Make a directory in a container that was not started, which any user may write."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o1777, owner, owner
            archive.addfile(entry)
        client = self._client()
        with _told_apart(f"making {path} in {container[:12]}"):
            client.put_archive(container, "/", packed.getvalue())

    def written_bytes(self, container: str) -> int:
        """What the container wrote into its own layer."""
        client = self._client(CREATE_SECONDS)
        with _told_apart(f"measuring {container[:12]}"):
            found = client.containers(all=True, size=True, filters={"id": container})
        return int(found[0].get("SizeRw") or 0) if found else 0

    def start(self, container: str) -> None:
        """Start. Sent once: a repeated start would run an exited container again."""
        client = self._client(CREATE_SECONDS)
        with _told_apart(f"starting {container[:12]}"):
            client.start(container)

    def wait(self, container: str, seconds: int) -> int | None:
        """The exit code, or None when it still runs after `seconds`. Only for containers known to be started."""
        client = self._client(seconds)
        try:
            with _told_apart(f"waiting for {container[:12]}"):
                return int(client.wait(container)["StatusCode"])
        except DaemonSilent as error:
            if isinstance(error.__cause__, requests.ReadTimeout | requests.ConnectionError):
                return None
            raise

    def kill(self, container: str, signal: str) -> None:
        """Send a signal to the first process; a container that does not run is not an error."""
        client = self._client()
        try:
            with _told_apart(f"signalling {container[:12]}"):
                client.kill(container, signal)
        except Refused as error:
            if error.status not in {404, 409}:
                raise

    def inspect(self, container: str) -> Json:
        """Everything the daemon knows about it."""
        client = self._client()
        with _told_apart(f"inspecting {container[:12]}"):
            answer: Json = client.inspect_container(container)
        return answer

    def remove(self, container: str) -> None:
        """Ask for removal with volumes, by full id. Success here is not yet proof: see `is_gone`."""
        client = self._client(REMOVE_SECONDS)
        with _told_apart(f"removing {container[:12]}"):
            client.remove_container(container, v=True, force=True)

    def is_gone(self, container: str) -> bool:
        """True only for a 404 by the full id on this daemon. Raises `DaemonSilent` when nothing is known."""
        if len(container) != 64:
            raise ExecutorError(f"{container!r} is not a full container id: a 404 by name proves nothing")
        try:
            self.inspect(container)
        except NotFound:
            return True
        return False

    def list_containers(self, labels: Mapping[str, str]) -> list[Listed]:
        """Each container with all these labels, in any state (`created` and `dead` too)."""
        client = self._client()
        wanted = [f"{key}={value}" for key, value in labels.items()]
        with _told_apart("listing containers"):
            found = client.containers(all=True, filters={"label": wanted})
        return [
            Listed(c["Id"], (c.get("Names") or ["/"])[0].lstrip("/"), c["State"], dict(c.get("Labels") or {}))
            for c in found
        ]

    def list_ids(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Full id -> name, of the same."""
        return {listed.id: listed.name for listed in self.list_containers(labels)}

    def put_volume(self, name: str, labels: Mapping[str, str]) -> dict[str, str]:
        """Make a volume if none of that name is there; returns the labels of the one that is. The first wins."""
        client = self._client()
        with _told_apart(f"recording {name}"):
            client.create_volume(name, labels=dict(labels))
            # Read apart: to a create of what is there, an engine that was restarted since answers without labels.
            there: Json = client.inspect_volume(name)
        return dict(there.get("Labels") or {})

    def volumes(self, labels: Mapping[str, str]) -> list[dict[str, str]]:
        """The labels of each volume that has all these."""
        client = self._client()
        with _told_apart("listing records"):
            answer: Json = client.volumes(filters={"label": [f"{key}={value}" for key, value in labels.items()]})
        return [dict(found.get("Labels") or {}) for found in answer.get("Volumes") or ()]


def split_image(image: str) -> tuple[str, str | None]:
    """`host:5000/name:tag` -> repository and tag; without a tag `latest`, so that not all tags are fetched."""
    if "@" in image:
        return image, None
    head, _, last = image.rpartition("/")
    name, _, tag = last.partition(":")
    return (f"{head}/{name}" if head else name), tag or "latest"


def _tls_from_environment() -> TLSConfig | bool:
    if not os.environ.get("DOCKER_TLS_VERIFY"):
        return False
    directory = Path(os.environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
    pair = (str(directory / "cert.pem"), str(directory / "key.pem"))
    return TLSConfig(client_cert=pair, ca_cert=str(directory / "ca.pem"), verify=True)
