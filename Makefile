# Everything sets itself up: a virtual environment in .venv, with the versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := regard tests benchmarks docs
TEST_PROGRAMS := chromium cc openssl curl nginx caddy prometheus

# Keep bytecode, also where the environment says otherwise: the tests start many processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test test-slow coverage checks suite docs learn fuzz test-gpu bench dist clean

setup: .venv/dev

.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) setuptools wheel
	$(PIP) --no-build-isolation --editable '.[tensorboard,serve]'
	@touch $@

.venv/dev: .venv/core
	$(PIP) --no-build-isolation --editable '.[tensorboard,formats,cluster,serve,export,vision,asian,docs,dev]'
	@touch $@

demo: .venv/core
	$(BIN)/regard demo

# Programs that tests start, from Debian's packages where they are missing and may be installed: the page is tested in a real
# browser, and kernels are compiled. Servers are only unpacked, without their services, which would keep ports.
.venv/programs: .venv/dev
	(for program in $(TEST_PROGRAMS); do command -v $$program || exit 1; done) >/dev/null || apt-get update -qq >/dev/null 2>&1 || true
	command -v chromium >/dev/null || apt-get install -y -qq chromium >/dev/null || true
	command -v cc >/dev/null || apt-get install -y -qq gcc libc6-dev >/dev/null || true
	command -v openssl >/dev/null || apt-get install -y -qq openssl >/dev/null || true
	command -v curl >/dev/null || apt-get install -y -qq curl >/dev/null || true
	mkdir -p $@
	for server in nginx caddy prometheus; do command -v $$server >/dev/null || sh tests/unpack.sh $$server $@ || true; done
	@touch $@

# mypy takes a minute of one core without its cache: beside the tests.
test: .venv/dev .venv/programs
	$(MAKE) --jobs=2 --keep-going checks suite

checks: .venv/dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

suite: .venv/dev .venv/programs
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

# The rest of what is deterministic: all combinations, long series, Ray, further browser flows.
test-slow: .venv/dev .venv/programs
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m 'slow and not learn and not gpu'

# The documentation site in build/site; its reference is generated from the code. A broken link is an error.
docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo build/site/index.html

# Lines and branches of regard/ that both suites reach, child processes included; FAST=1: that `make test` reaches alone.
coverage: .venv/dev .venv/programs
	rm -rf build/coverage && mkdir -p build/coverage
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -n 2 --dist worksteal -m '$(if $(FAST),not slow and )not learn and not gpu'; \
	status=$$?; $(BIN)/coverage combine --quiet && $(BIN)/coverage report --skip-covered --ignore-errors --fail-under=$(if $(FAST),85,94) && exit $$status

# About half an hour: models trained until they have learnt, held to stated figures; then their table and pictures.
learn: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m learn
	$(BIN)/python docs/draw.py
	$(BIN)/python docs/examples.py runs/learn
	$(BIN)/python docs/tables.py

# Property-based tests with many random examples each; `make fuzz EXAMPLES=10000` takes hours.
EXAMPLES ?= 1000
fuzz: .venv/dev
	OMP_NUM_THREADS=1 HYPOTHESIS_PROFILE=fuzz EXAMPLES=$(EXAMPLES) $(BIN)/pytest -n 2 -m hypothesis

# On a machine with a GPU, from the bare checkout: uses the Python at hand, installs nothing.
test-gpu:
	$(PYTHON) -m pytest -m gpu tests/fast/test_gpu.py

# On a machine with a GPU: benchmarks/gpu.py and benchmarks/packed_training.py. Those beside other toolkits need theirs as well: sh benchmarks/peers/setup.sh, see docs/speed.md.
bench: .venv/dev
	$(BIN)/python -m benchmarks.training_vs_torch
	$(BIN)/python -m benchmarks.beam_search
	$(BIN)/python -m benchmarks.decoding_backends
	$(BIN)/python -m benchmarks.fast_vs_reference
	$(BIN)/python -m benchmarks.batch_parallelism
	$(BIN)/python -m benchmarks.data_preparation
	$(BIN)/python -m benchmarks.checkpoint
	$(BIN)/python -m benchmarks.corpus_readers
	$(BIN)/regard demo --out runs/demo
	$(BIN)/python -m benchmarks.serve runs/demo

# The wheel and the sdist, each installed in an empty environment and tried there; downloads what they depend on.
dist: .venv/dev
	rm -rf dist build/lib regard.egg-info
	$(BIN)/python -m build --outdir dist
	sh tests/distribution.sh dist/*.whl constraints.txt
	sh tests/distribution.sh dist/*.tar.gz constraints.txt

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
