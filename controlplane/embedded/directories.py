"""Where the embedded services keep their data, as whom they run, and who owns them at the moment.

As an ordinary user everything is that user's. As root the servers run as the system user `wharfinger` (PostgreSQL
refuses to run as root); its data directories are its own and private, the directory above is root's and open to its
group only.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import socket
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from controlplane.processes import Account

ACCOUNT_NAME = "wharfinger"
# Not the user data directory of root: that lies in a home that no other user may enter.
SYSTEM_HOME = Path("/var/lib/wharfinger")

MARKER = ".wharfinger"


class EmbeddedError(Exception):
    """An embedded service cannot be run here: what, why, and what to do."""


@dataclass(frozen=True, slots=True)
class Home:
    """The directory of one deployment's data, and the account its servers run as (None: ourselves)."""

    path: Path
    account: Account | None

    @classmethod
    def open(cls, path: Path | None = None) -> Home:
        """Make or find the home: `path`, `WHARFINGER_HOME`, a system directory for root, a user data one otherwise."""
        account = _service_account() if os.geteuid() == 0 else None
        home = cls(path or _chosen_path(account), account)
        _refuse_foreign(home.path)
        try:
            home.path.mkdir(parents=True, exist_ok=True)
            (home.path / MARKER).touch()
        except OSError as error:
            raise EmbeddedError(
                f"nothing can be kept in {home.path} ({error.strerror}). "
                "Set WHARFINGER_HOME to a directory that this user may write to."
            ) from error
        if account is not None:
            _refuse_unreachable(home.path.parent, account)
            os.chown(home.path, 0, account.gid)
        home.path.chmod(0o750)
        return home

    def private_directory(self, *parts: str) -> Path:
        """Make a directory that only the servers' account may enter (and root)."""
        path = self.path
        for part in parts:
            path /= part
            path.mkdir(exist_ok=True, mode=0o700)
            self.give(path)
        return path

    def give(self, path: Path) -> None:
        """Hand a file or directory to the servers' account."""
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid)

    def write_private(self, path: Path, text: str, *, for_server: bool) -> None:
        """Replace a file as a whole, mode 0600 from its first byte; `for_server`: the servers' account reads it."""
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if for_server:
            self.give(Path(temporary))
        Path(temporary).replace(path)

    def software(self, root: Path, label: str, parts: list[str]) -> Path:
        """Return a directory below which the servers' account can execute `parts`: `root`, or a copy made once.

        A virtual environment below root's home is closed to every other user. Opening those directories would be
        wrong, so the files are copied, as root's own, under a name that carries the version.
        """
        if self.account is None or all(_reachable(root / part, self.account) for part in parts):
            return root
        target = self.path / "software" / label
        if not target.exists():
            _copy_readable(root, target, parts, self.account)
        return target


def _chosen_path(account: Account | None) -> Path:
    chosen = os.environ.get("WHARFINGER_HOME")
    if chosen:
        return Path(chosen).absolute()
    return SYSTEM_HOME if account else Path(platformdirs.user_data_dir("wharfinger"))


def _service_account() -> Account:
    try:
        entry = pwd.getpwnam(ACCOUNT_NAME)
    except KeyError:
        command = ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir", str(SYSTEM_HOME)]
        made = subprocess.run(
            [*command, "--shell", "/usr/sbin/nologin", ACCOUNT_NAME], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            raise EmbeddedError(
                f"the system user {ACCOUNT_NAME}, whom the embedded servers run as, could not be made: "
                f"{made.stderr.strip()}. Make it by hand, or run as an ordinary user."
            ) from None
        entry = pwd.getpwnam(ACCOUNT_NAME)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _may_enter(directory: Path, account: Account) -> bool:
    status = directory.stat()
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _reachable(path: Path, account: Account) -> bool:
    resolved = path.resolve()
    return all(_may_enter(part, account) for part in (resolved, *resolved.parents))


def _refuse_unreachable(path: Path, account: Account) -> None:
    for part in (path.resolve(), *path.resolve().parents):
        if not _may_enter(part, account):
            raise EmbeddedError(
                f"the user {account.name} cannot enter {part}, so the embedded servers cannot keep data below it. "
                f"Set WHARFINGER_HOME to a directory outside of it (the default for root is {SYSTEM_HOME})."
            )


def _refuse_foreign(path: Path) -> None:
    if path.exists() and not (path / MARKER).exists() and any(path.iterdir()):
        raise EmbeddedError(
            f"{path} holds other files, and its permissions would be changed. "
            "Set WHARFINGER_HOME to an empty directory or to one that does not exist yet."
        )


def _copy_readable(root: Path, target: Path, parts: list[str], account: Account) -> None:
    target.parent.mkdir(exist_ok=True)
    os.chown(target.parent, 0, account.gid)
    target.parent.chmod(0o750)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        copy = Path(scratch) / "copy"
        for part in parts:
            shutil.copytree(root / part, copy / part, symlinks=True)
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                executable = path.is_dir() or path.stat().st_mode & stat.S_IXUSR
                path.chmod(0o755 if executable else 0o644)
        copy.rename(target)  # whole or not at all: an interrupted copy is never taken for the real one


class OwnerLock:
    """One owner per data directory. A kernel lock, so that it goes with its owner however that one dies."""

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        self._what = what
        self._descriptor: int | None = None

    def take(self) -> None:
        """Become the owner, or raise with the pid of the present one. Harmless when we are the owner already."""
        if self._descriptor is not None:
            return
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).decode().strip() or "unknown"
            os.close(descriptor)
            raise EmbeddedError(
                f"{self._what} in {self._path.parent} is already run by process {owner}. Stop that one first "
                "(Ctrl-C in its terminal), or set WHARFINGER_HOME to another directory for a second deployment."
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor

    def free(self) -> None:
        """Stop being the owner; harmless when we are not."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def usable_port(preferred: int | None) -> int:
    """Return `preferred` if it is free on loopback, so that addresses stay the same over restarts, else a free one."""
    for port in (preferred, 0):
        if port is None:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise EmbeddedError("no free port is left on 127.0.0.1: stop something that listens there.")
