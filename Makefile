# `make` alone lists the targets. Everything lives in .venv; nothing else on the machine is changed, except by `make test`
# as root, which installs the Debian packages that the tests run against (deploy/test-machine.sh says which).

VENV    ?= .venv
ARGS    ?=
WORKERS ?= 2
PYTHON  := $(VENV)/bin/python
# Newer than the lock and pyproject.toml exactly when .venv holds what they say.
STAMP   := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help up test lint format bench soak clean lock

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 16

$(STAMP): requirements.lock pyproject.toml deploy/venv.sh
	@deploy/venv.sh "$(VENV)" >&2

up: $(STAMP) ## run the whole fleet and its demo batch here; ARGS="--once --json", ARGS="--help"
	@exec $(PYTHON) manage.py up $(ARGS)

test: $(STAMP) ## run every test against real servers; WORKERS=2, ARGS="tests/admission -k permit"
	@deploy/test.sh "$(PYTHON)" -n "$(WORKERS)" --dist loadgroup -m "not soak" $(ARGS)

soak: $(STAMP) ## the guarantees at full scale and length (long); ARGS as for test
	@deploy/test.sh "$(PYTHON)" -n 0 -m soak $(ARGS)

bench: $(STAMP) ## print the benchmark table
	@exec $(PYTHON) -m benchmarks $(ARGS)

lint: $(STAMP) ## style, types, layers, Django checks, missing migrations
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/lint-imports
	@$(PYTHON) manage.py check --fail-level WARNING
	@$(PYTHON) -W ignore::RuntimeWarning manage.py makemigrations --check --dry-run # no database is needed for this

format: $(STAMP) ## put the sources into the house format
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

lock: ## resolve requirements.lock anew for Python 3.11 to 3.13 (fetches the resolver into a scratch environment)
	@deploy/lock.sh

clean: ## remove .venv and caches; data of `up` stays
	@rm -rf "$(VENV)" .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build ./*.egg-info
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
