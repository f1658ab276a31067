#!/usr/bin/env bash
# Run pytest on a machine that has what the tests need: brings it there, starts a Docker daemon if none answers, and ends
# that one (and only that one) afterwards.
#
#   deploy/test.sh PYTHON [pytest arguments]
set -euo pipefail
python=$1
shift
cd "$(dirname "$0")/.."

deploy/test-machine.sh

daemon=
scratch=
stop_daemon() {
  [ -n "$daemon" ] || return 0
  kill "$daemon" 2>/dev/null || true
  wait "$daemon" 2>/dev/null || true
  rm -rf "$scratch"
}
trap stop_daemon EXIT

start_daemon() {
  scratch=$(mktemp -d)
  echo "starting a Docker daemon for the tests ..." >&2
  # In a session of its own: Ctrl-C stops the tests first, and their containers with them.
  setsid dockerd --pidfile "$scratch/dockerd.pid" >"$scratch/dockerd.log" 2>&1 &
  daemon=$!
  for _ in $(seq 120); do
    docker info >/dev/null 2>&1 && return 0
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.5
  done
  tail -n 20 "$scratch/dockerd.log" >&2
  echo "error: no Docker daemon answers and none could be started (see above). Start one, or set DOCKER_HOST." >&2
  return 1
}

if ! docker info >/dev/null 2>&1; then
  if [ "$(id -u)" -ne 0 ]; then
    echo "error: no Docker daemon answers to you. Start one and join its group, or set DOCKER_HOST, or run this as root." >&2
    exit 1
  fi
  start_daemon
fi

"$python" -m pytest "$@"
