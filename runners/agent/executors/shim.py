"""Stands between a driver and the command it runs: a process of its own, standard library only.

It outlives its driver just long enough to kill: standard input is a pipe from the driver, and its end means that the
driver is gone. Then, as on an ordinary end, everything the command started is killed, and the working directory and
the cgroup are removed. It stays outside of the command's cgroup, so neither the memory limit nor the kill meets it.

Input: one line with the plan, then lines `stop <grace seconds>`. Lines go back through the descriptor whose number is
the first argument; the second, the record's path, only names this process. SIGUSR1 comes from the driver's watchdog:
kill at once, and say that it was so. Plan and answers are marshalled and in hexadecimal: both ends are one and the
same interpreter.

It starts once for each run, so it imports little (of its own `shim_clearing` alone): `json`, `shutil`, `pathlib` and
the enums of `signal` would each take as long as the interpreter itself.
"""

# ruff: noqa: PTH108, PTH123, PTH208, S606, PLC0415

from __future__ import annotations

import ctypes
import errno
import fcntl
import marshal
import os
import resource
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator
    from typing import Any

    from runners.agent.executors import shim_clearing
else:
    import _signal as signal

    import shim_clearing

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
PR_SET_CHILD_SUBREAPER = 36
CLONE_NEWNET = 0x40000000
CLONE_NEWIPC = 0x08000000
SIOCSIFFLAGS = 0x8914
IFF_UP_AND_RUNNING = 0x41
PARENT_CHECK_MS = 2000
KILL_ROUNDS = 500

_libc = ctypes.CDLL(None, use_errno=True)
_status = -1
_fenced = False

if TYPE_CHECKING:
    Plan = dict[str, Any]


def main() -> None:
    """Run one command as planned; ends when nothing of it is left."""
    global _status  # noqa: PLW0603 - a script's one argument
    _status = int(sys.argv[1])
    _run()
    # Nothing is open that would have to be written: the interpreter's own clearing up only takes time.
    os._exit(0)


def _run() -> None:
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    wake, poke = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(poke, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGUSR1, _on_fence)
    driver = os.getppid()
    plan = marshal.loads(bytes.fromhex(_first_line().decode()))  # noqa: S302 - from our parent
    try:
        _hand_over_directory(plan)
        main_pid = _launch(plan)
    except OSError as error:
        _clean(plan)
        _report({"error": f"cannot be started: {error}"})
        return
    # Its write end is now the command's alone: the driver sees the end of the output when the last process is gone.
    os.close(1)
    os.close(2)
    _report({"pid": main_pid})
    code = _Watch(plan, main_pid, driver, wake).until_ended()
    oom = _oom_kills(plan)
    left = _kill_all(plan, main_pid)
    if not left:
        _clean(plan)
    _report({"exit": code, "oom": oom > 0, "left": sorted(left), "fenced": _fenced})


def _on_fence(*_: object) -> None:
    """Noted only: half-way through a launch there would be a child that nobody ends."""
    global _fenced  # noqa: PLW0603 - set by a signal
    _fenced = True


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(0, 1 << 20)
        if not data:
            sys.exit("the driver was gone before it said what to run")
        line += data
    return line


def _report(message: dict[str, Any]) -> None:
    try:
        os.write(_status, marshal.dumps(message).hex().encode() + b"\n")
    except BrokenPipeError:
        return  # The driver is gone; nobody is left to be told.


# -- launching ------------------------------------------------------------------------------------------------------


def _hand_over_directory(plan: Plan) -> None:
    """The number of this process makes a user that no other run on this machine has at the same time."""
    if plan["first_uid"] is not None:
        plan["uid"] = plan["first_uid"] + os.getpid()
    if plan["uid"] is not None:
        os.chown(plan["directory"], plan["uid"], plan["uid"])


def _launch(plan: Plan) -> int:
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    told, tell = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            _become(plan)
        except BaseException as error:  # noqa: BLE001 - the child must never return into the parent's code
            cause = error.errno if isinstance(error, OSError) and error.errno else errno.EINVAL
            os.write(tell, f"{cause} {getattr(error, 'strerror', None) or error}".encode())
        os._exit(127)
    os.close(tell)
    failure = os.read(told, 4096)
    os.close(told)
    if failure:
        number, _, text = failure.decode(errors="replace").partition(" ")
        raise OSError(int(number), text)
    return pid


def _become(plan: Plan) -> None:
    """In the child: take on every limit, give up every right, then become the command."""
    os.setsid()
    for path in plan["join"]:
        with open(path, "w") as file:
            file.write("0")
    if plan["isolate_network"]:
        _empty_network()
    for name, value in plan["limits"].items():
        _lower(getattr(resource, name), value)
    os.chdir(plan["directory"])
    os.umask(0o077)
    if plan["uid"] is not None:
        os.setgroups([])
        os.setresgid(plan["uid"], plan["uid"], plan["uid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    # After the change of user, which clears it: should the shim be killed, the command goes with it.
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.set_inheritable(_status, False)
    _execute(plan["command"], plan["environment"])


def _execute(command: list[str], environment: dict[str, str]) -> None:
    """Not `os.execvpe`: that imports more, and this user may not be able to read the interpreter's library."""
    name = command[0]
    places = [name] if "/" in name else [f"{place}/{name}" for place in environment["PATH"].split(":") if place]
    failure: OSError = FileNotFoundError(errno.ENOENT, f"no {name} in {environment['PATH']}")
    for place in places:
        try:
            os.execve(place, command, environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    raise failure


def _lower(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _empty_network() -> None:
    """A network of its own with nothing but the loopback interface."""
    if _libc.unshare(CLONE_NEWNET | CLONE_NEWIPC) != 0:
        raise OSError(ctypes.get_errno(), "no network namespace of its own")
    import _socket  # the wrapper `socket` takes ten times as long to import

    probe = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    fcntl.ioctl(probe.fileno(), SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", IFF_UP_AND_RUNNING, b""))
    probe.close()


# -- watching -------------------------------------------------------------------------------------------------------


class _Watch:
    """Waits for the command's end, the driver's wish, the driver's end or the last deadline."""

    def __init__(self, plan: Plan, main_pid: int, driver: int, wake: int) -> None:
        self._plan = plan
        self._main = main_pid
        self._driver = driver
        self._wake = wake
        self._code: int | None = None
        self._kill_at = time.clock_gettime(time.CLOCK_BOOTTIME) + plan["backstop_seconds"]
        self._terminated = False
        self._pending = b""

    def until_ended(self) -> int | None:
        """The exit code; None when it is to be killed."""
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            self._reap()
            left = self._kill_at - time.clock_gettime(time.CLOCK_BOOTTIME)
            if self._code is not None or _fenced or left <= 0:
                return self._code
            ready = {fd for fd, _ in poll.poll(min(PARENT_CHECK_MS, left * 1000 + 1))}
            if self._wake in ready:
                os.read(self._wake, 4096)
            # A copy of the pipe's other end may live on in a process the driver forked: ask the kernel as well.
            if os.getppid() != self._driver or (0 in ready and not self._listen()):
                return None

    def _reap(self) -> None:
        for pid, status in _collected():
            if pid == self._main:
                code = os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else 128 - code

    def _listen(self) -> bool:
        data = os.read(0, 4096)
        self._pending += data
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            self._obey(line.decode())
        return bool(data)

    def _obey(self, line: str) -> None:
        word, _, grace = line.partition(" ")
        if word != "stop":
            return
        if not self._terminated:
            self._terminated = True
            _signal(self._main, signal.SIGTERM, os.killpg)
        self._kill_at = min(self._kill_at, time.clock_gettime(time.CLOCK_BOOTTIME) + float(grace))


# -- killing --------------------------------------------------------------------------------------------------------


def _kill_all(plan: Plan, main_pid: int) -> set[int]:
    """Until nothing of it is left; what still is (in uninterruptible sleep) after some time is returned."""
    if plan["pids_max"]:
        _write(plan["pids_max"], "0")
    _signal(main_pid, signal.SIGKILL, os.killpg)
    for turn in range(KILL_ROUNDS):
        left = _members(plan)
        if not left:
            return left
        if plan["kill"]:
            _write(plan["kill"], "1")
        elif not plan["procs"]:
            _stop_all(left)
        for pid in left:
            _signal(pid, signal.SIGKILL)
        list(_collected())
        time.sleep(min(0.001 * 2**turn, 0.05))
    return _members(plan)


def _stop_all(known: set[int]) -> None:
    """Without a cgroup: stop them first. A killed one frees room for a fork, a stopped one does not."""
    seen: set[int] = set()
    while known - seen:
        for pid in known - seen:
            _signal(pid, signal.SIGSTOP)
        seen |= known
        known = _descendants()


def _members(plan: Plan) -> set[int]:
    if not plan["procs"]:
        return _descendants()
    with open(plan["procs"]) as file:
        return {int(line) for line in file}


def _descendants() -> set[int]:
    """As a subreaper we are an ancestor of everything the command started, whatever session it went to."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            parent = _parent(name)
            children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting.extend(below)
    return found


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _collected() -> Iterator[tuple[int, int]]:
    """The command and whatever orphans of it came to us, as they end: number and status."""
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found
    except ChildProcessError:
        return


def _signal(pid: int, number: int, send: Callable[[int, int], None] = os.kill) -> None:
    try:
        send(pid, number)
    except ProcessLookupError:
        return


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


# -- clearing up ----------------------------------------------------------------------------------------------------


def _oom_kills(plan: Plan) -> int:
    if not plan["events"]:
        return 0
    with open(plan["events"]) as file:
        words = [line.split() for line in file]
    return sum(int(word[1]) for word in words if word[0] == "oom_kill")


def _clean(plan: Plan) -> None:
    """The cgroup, the directory and, last, the record by which a later sweep would find us."""
    shim_clearing.remove_groups(plan["cgroups"])
    if plan["keep"] and not _fenced:
        # What the run left is read by the driver, which then removes it; a dead one's record tells a sweep of it.
        return
    shim_clearing.remove_tree(plan["directory"])
    if not os.path.lexists(plan["directory"]):
        try:
            os.unlink(plan["record"])
        except FileNotFoundError:
            return
