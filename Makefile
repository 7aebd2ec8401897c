# `make demo` and `make test` are all a new user needs. The environment is made once and again only when
# pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check

# Compiled modules are kept, because tests start some hundred processes that import them.
unexport PYTHONDONTWRITEBYTECODE

# Two workers. Tests of one `xdist_group` share a worker, so that those with many processes do not run beside each
# other.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadgroup

.PHONY: demo test test-all test-processors prose bench results lint types run-tests docs certs clean

demo: $(VENV)/.installed
	$(BIN)/fedsketch

# Whether the code works. Types are checked beside the tests; make fails if either does.
test: lint
	$(MAKE) --no-print-directory --jobs=2 types run-tests

# Whether the pages read well, and the committed reference is up to date: words, lines, first sentences, pictures, and
# the format of Python in Markdown. A few seconds. No part of `make test`: first see whether an idea works.
prose: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest tests/prose

# All tests, the slow ones too, and with new examples for the tests that draw their own: half an hour to an hour.
test-all: lint types prose
	$(PYTEST) -m "slow or not slow" --hypothesis-profile=default

# The tests in which rounding matters, on imitations of other processors: a line for each. Takes a quarter of an hour
# or more.
test-processors: $(VENV)/.installed-dev
	$(BIN)/python tests/processors.py

# All benchmarks of speed, beside their peers, to docs/benchmarks.md: about half an hour on two idle cores.
bench: $(VENV)/.installed-dev
	-$(INSTALL) --editable '.[bench]'
	$(BIN)/python benchmarks/bench.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --extend-exclude '*.md' .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

run-tests: $(VENV)/.installed-dev
	$(PYTEST)

# The documentation as a site in ./site, without a network; first the committed pages of the reference, from the code.
docs: $(VENV)/.installed-dev
	$(BIN)/python docs/generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The presets of conf/experiment at five budgets over three seeds, to docs/results.md with its pictures: about an hour
# on two idle cores. An interrupted one is resumed. make results DATA=/where/the/data/sets/are
results: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/results.py --data-root $(or $(DATA),data)

# CA, server certificate and node folders in ./certs; calling it again keeps what is there.
# make certs NODES=3 NAMES="fl.example.org 192.0.2.7" POLICY=demo.toml DATA=digits
certs: $(VENV)/.installed
	$(BIN)/fedsketch-certs certs --nodes $(or $(NODES),0) $(foreach name,$(NAMES),--name $(name)) \
	  $(if $(POLICY),--policy $(POLICY)) $(if $(DATA),--data $(DATA))

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing fedsketch into $(VENV) (a few minutes the first time)"
	$(INSTALL) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) outputs multirun site
