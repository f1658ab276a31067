#!/usr/bin/env bash
# Make or update a virtual environment with exactly what requirements.lock says, and this project in it.
#
#   deploy/venv.sh .venv
#
# Plain python3 -m venv and pip. Progress goes to standard output, details to a log that is shown when something fails.
set -euo pipefail
venv=$1
cd "$(dirname "$0")/.."

fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

suits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

# The system's own first: as root, servers and runs use accounts that cannot enter an interpreter below root's home.
# Among them one that can make environments, if any: Debian ships Python without the module that puts pip into them.
find_python() {
  local name fallback=
  for name in ${WHARFINGER_PYTHON:-/usr/bin/python3 python3 python3.13 python3.12 python3.11}; do
    suits "$name" || continue
    if "$name" -c 'import ensurepip' 2>/dev/null; then command -v "$name"; return; fi
    fallback=${fallback:-$(command -v "$name")}
  done
  if [ -n "$fallback" ]; then echo "$fallback"; return; fi
  fail "no Python 3.11, 3.12 or 3.13 was found on PATH. Install one, or name it: WHARFINGER_PYTHON=/path/to/python3.12 make ..."
}

need_ensurepip() {
  "$python" -c 'import ensurepip' 2>/dev/null && return
  if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null && [ "$(dirname "$(readlink -f "$python")")" = /usr/bin ]; then
    echo "installing python3-venv, which Debian keeps apart from Python"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends python3-venv; } >"$log" 2>&1 ||
      { cat "$log" >&2; fail "python3-venv could not be installed, see above"; }
  else
    fail "$python cannot make virtual environments (no ensurepip). On Debian, as root: apt-get install python3-venv"
  fi
}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

if ! suits "$venv/bin/python"; then
  python=$(find_python)
  need_ensurepip
  echo "making $venv with $("$python" --version) and installing the locked packages (about a minute, once) ..."
  rm -rf "$venv"
  "$python" -m venv "$venv" >"$log" 2>&1 || { cat "$log" >&2; fail "python -m venv failed, see above"; }
else
  echo "updating $venv to requirements.lock ..."
fi

started=$SECONDS
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@" >>"$log" 2>&1; }
# Hashes are in the lock: a file that is not the one it was resolved with is refused.
pip install --require-hashes -r requirements.lock || { tail -n 30 "$log" >&2; fail "pip could not install requirements.lock, see above"; }
pip install --no-deps -e . || { tail -n 30 "$log" >&2; fail "pip could not install this project, see above"; }
touch "$venv/.installed"
echo "installed in $((SECONDS - started)) s"
