# Each target works from a fresh clone: what it needs is installed into .venv first.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
ifndef beside_tests
.NOTPARALLEL:
endif
.PHONY: help install peers demo test checks suite unit spark format lint types imports drift docs fix proto reference clean

uv_version := 0.13.8
python := .venv/bin/python
packages := weir transport scanner spark_source pyspark_weir bench tests tools
sources = $(shell find $(packages) -name '*.py' ! -name '*_pb2.py')
# What the first process compiles, the next ones read: the tests start hundreds of them.
unexport PYTHONDONTWRITEBYTECODE
# Most users' Python buffers what it writes: a machine that sets this would hide what fails with a buffer.
unexport PYTHONUNBUFFERED
# Inside a recipe: the Java that `make install` found or installed.
with_java := JAVA_HOME="$$(tools/find-java)"
# uv installs into .venv, with its interpreter, whatever the caller's shell has activated; compiled, since Spark gives a
# Python worker ten seconds to start.
uv := env -u VIRTUAL_ENV UV_COMPILE_BYTECODE=1 UV_PROJECT_ENVIRONMENT=.venv UV_PYTHON_DOWNLOADS=never .venv/bin/uv

help: ## This list
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

install: .venv/installed ## .venv with what is pinned in uv.lock, and a Java for Spark
	@tools/find-java --install >/dev/null

demo: install ## The whole story on real data; writes demo.json
	$(with_java) $(python) -m bench demo

peers: .venv/node/installed .venv/go/peer ## The foreign clients and proxies that the interop tests talk to
	@tools/find-peers --install

test: install peers ## Everything that must hold before a change is merged
	@$(MAKE) --no-print-directory --jobs 2 beside_tests=checks suite checks

suite:
	tools/in-memory env $(with_java) $(python) -m pytest --quiet --no-header --numprocesses $$(( $$(nproc) * 2 )) \
	    --dist loadfile --no-loadscope-reorder --durations 25

# One at a time, while the tests wait for their sockets and disks. What `drift` asks, one of the tests does.
checks:
	@$(MAKE) --no-print-directory beside_tests= format lint types imports docs

unit: .venv/installed peers ## The tests that need no JVM
	$(python) -m pytest -m "not spark"

spark: install ## The tests that need a JVM
	$(with_java) $(python) -m pytest -m spark

format: .venv/installed ## Is every file formatted?
	.venv/bin/ruff format --check .

lint: .venv/installed .venv/cancellation ## ruff, and flake8-async's rules on cancellation that ruff does not have
	.venv/bin/ruff check .

# flake8-async takes a quarter of a second for a file. So it sees those that have changed, and of them those that have
# what one of its rules looks at; no comment silences it.
.venv/cancellation: .venv/installed $(sources)
	@echo 'flake8-async'
	@$(python) -m tools.cancellation $(if $(filter .venv/installed,$?),$(sources),$?) \
	    | xargs -r -n 20 -P "$$(nproc)" .venv/bin/flake8-async --disable-noqa --enable=ASYNC101,ASYNC102,ASYNC103,ASYNC104
	@touch $@

types: .venv/installed ## mypy, strict
	.venv/bin/mypy

imports: .venv/installed ## Who may import whom
	.venv/bin/lint-imports --no-logo

drift: .venv/installed ## Do the generated files say what the .proto files say?
	$(python) -m pytest --quiet --no-header tests/test_proto.py

docs: .venv/installed ## The documentation as a site, in build/site; strict
	$(python) -m tools.build_site

fix: .venv/installed ## Formats, and applies what ruff can repair by itself
	.venv/bin/ruff check --fix --unsafe-fixes --exit-zero .
	.venv/bin/ruff format .

proto: .venv/installed ## Regenerates the *_pb2 files from the .proto files
	$(python) -m tools.generate_protos

reference: .venv/installed ## Rewrites docs/reference from the docstrings and the commands' help
	$(python) -m tools.write_reference

clean: ## Removes .venv, caches and results
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo.json spark-warehouse
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/installed: pyproject.toml uv.lock
	@test -x $(python) || "$$(tools/find-python)" -m venv .venv
	@test -x .venv/bin/uv && .venv/bin/uv --version | grep -qF ' $(uv_version) ' \
	    || $(python) -m pip install --quiet --disable-pip-version-check uv==$(uv_version)
	@echo 'installing what uv.lock pins into .venv'
	@$(uv) sync --frozen --all-extras --quiet
	@touch $@

# Beside the Python packages, so that no tool that walks the tree walks through it.
.venv/node/installed: .venv/installed tests/interop/node/package.json tests/interop/node/package-lock.json
	@tools/find-peers --install
	@mkdir -p .venv/node && cp tests/interop/node/package.json tests/interop/node/package-lock.json .venv/node
	@echo 'installing what package-lock.json pins into .venv/node'
	@npm ci --prefix .venv/node --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null
	@touch $@

# From Debian's sources of grpc-go alone: nothing is fetched.
.venv/go/peer: .venv/installed $(wildcard tests/interop/go/*.go)
	@tools/find-peers --install
	@mkdir -p .venv/go
	@echo 'building the client of grpc-go into .venv/go'
	@cd tests/interop/go && GO111MODULE=off GOFLAGS= GOPATH=/usr/share/gocode \
	    GOCACHE=$(CURDIR)/.venv/go/cache go build -o $(CURDIR)/$@ .
