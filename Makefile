# `make demo` and `make test` are all a new user needs. The environment is made once and again only when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test certs clean

demo: $(VENV)/.installed
	$(BIN)/fedsketch

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

# CA, server certificate and node folders in ./certs; calling it again keeps what is there.
# make certs NODES=3 NAMES="fl.example.org 192.0.2.7" POLICY=demo.toml
certs: $(VENV)/.installed
	$(BIN)/fedsketch-certs certs --nodes $(or $(NODES),0) $(foreach name,$(NAMES),--name $(name)) $(if $(POLICY),--policy $(POLICY))

$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing fedsketch into $(VENV) (a few minutes the first time)"
	$(INSTALL) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) outputs multirun
