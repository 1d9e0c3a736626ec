# Two commands matter: `make quickstart` runs a campaign, `make test` checks everything.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# An index or folder that pip is told about is passed on to uv, which does not read pip's settings.
FIND_LINKS := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS))
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python $(FIND_LINKS) -c constraints.txt
# Hundreds of processes start here, and each would compile all that it imports: half of its start.
export PYTHONDONTWRITEBYTECODE :=
# Children may not write bytecode: what they import is compiled here, a fifth of what uv would compile. Python compiles
# the rest when it is first imported.
# Ray gives its agents 15 s to start, too few on a busy machine where they must be compiled first.
RAY := ray/_private ray/dashboard ray/_common ray/autoscaler ray/util aiohttp google opentelemetry jsonschema yarl multidict
CHILDREN := cuda filelock jax jaxlib ml_dtypes mpmath numpy opt_einsum pydantic pygments sympy torch torchgen triton \
  $(RAY)
UNUSED := /(tests?|testing/_internal|_inductor|onnx|lexers|physics|stats|distutils|f2py)/
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '$(UNUSED)' fitness seeds workers \
  $$(ls -d $(CHILDREN:%=$(VENV)/lib/python3*/site-packages/%) 2>/dev/null)

.PHONY: quickstart test test-all setup lint pytest ruff mypy layers ui report browser clean
.DEFAULT_GOAL := quickstart
# Chromium beside the packages, the checks beside the tests
MAKEFLAGS += -j2

# Python's own pip fills the environment where there is one: to unpack another takes several seconds.
$(BIN)/uv:
	@$(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(BIN)/python install --quiet pip uv \
	  || { $(PYTHON) -m venv --clear $(VENV) && $(BIN)/python -m pip install --quiet uv; }

$(VENV)/.run-installed: pyproject.toml constraints.txt | $(BIN)/uv
	$(INSTALL) -e '.[tpu,ui]'
	-@$(COMPILE)
	@touch $@

$(VENV)/.dev-installed: pyproject.toml constraints.txt | $(BIN)/uv
	$(INSTALL) -e '.[tpu,cuda,llm,dev]'
	-@$(COMPILE)
	@touch $@ $(VENV)/.run-installed

setup: $(VENV)/.run-installed
	@echo "installed; next: source $(BIN)/activate; tilewright doctor"

quickstart: setup
	$(BIN)/tilewright run quickstart
	@echo "for further commands: source $(BIN)/activate"

# The checks run beside the tests, whose workers wait for their children a fifth of the time.
test: pytest lint

pytest: $(VENV)/.dev-installed browser
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# What `test` leaves out as well: slow tests whose ground quicker ones cover more thinly.
test-all: $(VENV)/.dev-installed lint browser
	$(BIN)/python -m pytest -m 'not gpu' $(PYTEST_ARGS)

lint: ruff mypy layers

ruff: $(VENV)/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

mypy: $(VENV)/.dev-installed
	$(BIN)/mypy

layers: $(VENV)/.dev-installed
	$(BIN)/lint-imports --no-cache --no-logo

# The page tests drive a real Chromium; without one, and without the rights to install it, they skip.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
	  || echo "no Chromium here: page tests will be skipped"

ui: setup
	$(BIN)/tilewright ui

report: setup
	$(BIN)/tilewright report

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
