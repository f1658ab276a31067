#!/usr/bin/env bash
# Bring the machine to what the tests run against: Docker, PostgreSQL 15, Redis 7, PgBouncer, HAProxy, Chromium. Idempotent.
#
# As root on Debian it installs what is missing, starting no service and making no cluster; otherwise it says what is
# missing and fails. The tests start their own servers; nothing is skipped for want of one.
set -euo pipefail

say() { printf '%s\n' "$*" >&2; }

# what is looked for | the package that brings it
needs="
dockerd|docker.io
docker|docker.io
/usr/lib/postgresql/15/bin/postgres|postgresql-15
redis-server|redis-server
pgbouncer|pgbouncer
haproxy|haproxy
chromium|chromium
chromedriver|chromium-driver
setpriv|util-linux
"

missing=()
for need in $needs; do
  command -v "${need%%|*}" >/dev/null 2>&1 || PATH=$PATH:/usr/sbin:/sbin command -v "${need%%|*}" >/dev/null 2>&1 || missing+=("${need##*|}")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
  say "The tests need what this machine lacks: ${missing[*]}"
  say "On Debian, as root: apt-get install --no-install-recommends ${missing[*]}"
  exit 1
fi

say "installing for the tests: ${missing[*]} ..."
undo=()
log=$(mktemp)
trap 'rm -f "$log" "${undo[@]}"' EXIT

# Only while we install: packages start no service, and PostgreSQL makes no cluster of its own.
if [ ! -e /usr/sbin/policy-rc.d ]; then
  printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
  chmod 755 /usr/sbin/policy-rc.d
  undo+=(/usr/sbin/policy-rc.d)
fi
if [ ! -e /etc/postgresql-common/createcluster.d/wharfinger.conf ]; then
  mkdir -p /etc/postgresql-common/createcluster.d
  echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/wharfinger.conf
  undo+=(/etc/postgresql-common/createcluster.d/wharfinger.conf)
fi

export DEBIAN_FRONTEND=noninteractive
if ! { apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  say "error: these packages could not be installed, see above: ${missing[*]}"
  exit 1
fi
