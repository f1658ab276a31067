"""An image with Python, also where no registry can be reached: then built from the distribution's packages.

Only for demonstrations and tests on a Debian-like machine; a real installation names its own images. The packages are
fetched and unpacked, never installed: nothing of the machine changes but apt's own lists.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from runners.agent.executors.base import ExecutorError, ImageUnavailable
from runners.agent.executors.docker_adapter import DockerAdapter

LOCAL_REPOSITORY = "wharfinger/python"
PULL_SECONDS = 20
COMMAND_SECONDS = 120
# Needed by maintainer scripts or documentation only; with them the image would be three times as large.
_UNWANTED = re.compile(
    r"^(lib)?perl|^dpkg$|^tar$|^install-info$|^readline-common$|^media-types$|^mailcap$|^mime-support$"
)
_ADVICE = "make the image available to the daemon (docker pull or docker load), or use Debian 12 or newer with apt"


def ensure_python_image(tag: str = "python:3-slim", adapter: DockerAdapter | None = None) -> str:
    """The name of an image to use for `tag`: itself if present or to be pulled, else one built here.

    Raises:
        ImageUnavailable: when none of these works; says what to do.
    """
    adapter = adapter or DockerAdapter()
    if adapter.image_id(tag) is not None:
        return tag
    local = f"{LOCAL_REPOSITORY}:{tag.rpartition(':')[2]}-local"
    if adapter.image_id(local) is not None:
        return local
    try:
        adapter.pull(tag, PULL_SECONDS)
    except ExecutorError as pull_error:
        build_local_image(adapter, local, str(pull_error))
        return local
    return tag


def build_local_image(adapter: DockerAdapter, image: str, why: str) -> None:
    """Build `image` from packages. `why` is told when this fails too."""
    with tempfile.TemporaryDirectory(prefix="wharfinger-image-") as name:
        directory = Path(name)
        # apt drops to its own user for downloads; it must be able to enter.
        directory.chmod(0o755)
        try:
            tree = _unpacked(directory)
            archive = directory / "root.tar"
            _run(["tar", "--numeric-owner", "--owner=0", "--group=0", "-C", str(tree), "-cf", str(archive), "."])
        except (OSError, subprocess.SubprocessError) as error:
            detail = getattr(error, "stderr", None) or error
            raise ImageUnavailable(f"{why}; building {image} failed as well: {detail}; {_ADVICE}") from error
        repository, _, tag = image.rpartition(":")
        adapter.import_image(archive, repository, tag, ['CMD ["python3"]', "ENV PATH=/usr/local/bin:/usr/bin:/bin"])


def _unpacked(directory: Path) -> Path:
    packages = directory / "packages"
    tree = directory / "root"
    packages.mkdir(mode=0o755)
    tree.mkdir(mode=0o755)
    _merge_usr(tree)
    minimal = _python_package()
    wanted = _closure([minimal, f"lib{minimal.replace('-minimal', '-stdlib')}", "busybox-static"])
    _run(["apt-get", "download", *wanted], cwd=packages)
    for package in sorted(packages.glob("*.deb")):
        _run(["sh", "-c", 'dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"', "-",
              str(package), str(tree)])  # fmt: skip
    _finish(tree, minimal.replace("-minimal", ""))
    return tree


def _merge_usr(tree: Path) -> None:
    """/bin and /lib as links: packages of one release still ship files in both places."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / "usr" / name).mkdir(parents=True)
        (tree / name).symlink_to(f"usr/{name}")


def _finish(tree: Path, python: str) -> None:
    for name in ("tmp", "work", "etc", "proc", "sys", "dev", "root", "var/tmp"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (tree / name).chmod(0o1777)
    for name in ("python", "python3"):
        _link(tree / "usr/bin" / name, python)
    busybox = tree / "bin/busybox"
    names = _run([str(busybox), "--list"]).split()
    for name in names:
        if not os.path.lexists(tree / "bin" / name):
            _link(tree / "bin" / name, "busybox")
    (tree / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
    )
    (tree / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
    for waste in ("usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(tree / waste, ignore_errors=True)


def _link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def _python_package() -> str:
    found = re.search(r"python3\.\d+-minimal", _depends(["python3-minimal"], recurse=False))
    if found is None:
        # A fresh image has no package lists; this is the one step that needs root.
        _run(["apt-get", "update"])
        found = re.search(r"python3\.\d+-minimal", _depends(["python3-minimal"], recurse=False))
    if found is None:
        raise ImageUnavailable(f"apt knows no python3-minimal; {_ADVICE}")
    return found.group()


def _closure(packages: list[str]) -> list[str]:
    lines = _depends(packages, recurse=True).splitlines()
    names = {line for line in lines if re.fullmatch(r"[a-z0-9][a-z0-9+.-]*", line)}
    return sorted(name for name in names if not _UNWANTED.search(name))


def _depends(packages: list[str], *, recurse: bool) -> str:
    options = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"]
    command = ["apt-cache", "depends", *(f"--no-{o}" for o in options), *(["--recurse"] if recurse else [])]
    return _run([*command, *packages], check=recurse)


def _run(command: list[str], cwd: Path | None = None, *, check: bool = True) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        check=check,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout
