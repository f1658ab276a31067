#!/usr/bin/env bash
# Write requirements.lock: one resolution for Python 3.11 to 3.13, with hashes, naming no index. Newcomers need none of this.
set -euo pipefail
cd "$(dirname "$0")/.."
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet uv
"$scratch/venv/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --group dev pyproject.toml -o requirements.lock
