# `make demo` and `make test` do their own set-up; a second run reuses it.
PYTHON ?= python3
# ENV=oldest: the versions of constraints/oldest.txt, in .venv-oldest.
ENV ?=
VENV ?= $(if $(ENV),.venv-$(ENV),.venv)
CONSTRAINTS ?= constraints/$(or $(ENV),newest).txt
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.demo-ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
WORKERS ?= 2
# make test ROOM=stalls: a feature's tests, and those of what imports it. With
# ENV the witness against plain Keras and the oracle, or all with TESTS=tests.
WITNESSES := tests/modes/test_witness.py tests/modes/test_corners.py \
	tests/functions/test_functional.py tests/model/test_model.py \
	tests/aggregations/test_clipping.py tests/modes/test_matmul_defect.py \
	tests/test_architecture.py \
	tests/gradient_health/test_model_description.py \
	tests/model/test_custom_step.py tests/privacy/test_training.py
TESTS ?= $(if $(ROOM),$(shell $(PYTHON) tests/rooms.py $(ROOM)),$(if $(ENV),$(WITNESSES),tests))
export TF_CPP_MIN_LOG_LEVEL ?= 3

.PHONY: help setup demo test test-exhaustive test-timing test-gpu test-nightly test-cpu-wheel coverage prices hunt hunt-proof mutants \
	lint format browser docs versions notebooks figures outputs bench bench-gpu bench-venvs release-check audit clean

.DEFAULT_GOAL := help
## make demo         the main job on real data; sets itself up, downloads no data
## make test         the tests of each change (ROOM=stalls: of one feature)
##   TIER=rest, weekly, all     further tests; CI runs `rest`, too
##   ENV=oldest, keras313       the witnesses with other versions
## make lint         ruff and pyright; `make format` mends what ruff can
## make docs         the site, into build/site, and its tests
##
## make test-exhaustive, test-timing                        wide sweeps; times
## make test-nightly, test-cpu-wheel, test-gpu              other wheels, devices
## make hunt, hunt-proof, mutants, coverage, prices         tests of the tests
## make notebooks, figures, outputs, versions, browser      parts of the site
## make bench, bench-gpu                                    side-by-side timings
## make release-check, audit, clean                         before a release
##
## The comments in the Makefile say what each does and takes.
help:
	@sed -n 's/^## \{0,1\}//p' Makefile

setup: $(READY)

$(READY): $(DEMO_READY)
	@echo "Installing what the tests need into $(VENV): a minute or two ..."
	@$(PIP) -c $(CONSTRAINTS) -e . --group dev
	@touch $@

# What the demo needs is half of that; it stands here so that the first look is
# not a long wait. pip knows dependency groups since 25.1.
$(DEMO_READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "Python 3.11, 3.12 or 3.13 is needed; $(PYTHON) is %d.%d. Name another one: make PYTHON=python3.12 ..." % v)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing keras_pergrad and TensorFlow into $(VENV): about a minute ..."
	@$(PIP) 'pip>=25.1'
	@$(PIP) -c $(CONSTRAINTS) -e . --group demo
	@touch $@

demo: $(DEMO_READY)
	$(BIN)/python examples/quickstart.py

# The tests that fit into a few minutes, chosen by their prices (see
# tests/tiers.py); all tests of some files with TESTS. TIER=rest has the next ones
# by price, which CI runs, too; TIER=weekly what both leave out, for each week,
# before a release, and after a change of the engine, of the types or of real
# models' parts. A file's tests stay together: many share what a fixture has
# started.
TIER ?= $(if $(filter tests,$(TESTS)),quick,all)
# Slow tests run only where the command line asks for a tier that has them.
ASKED := $(if $(filter command,$(origin TIER)),$(filter weekly all,$(TIER)))
MARKS ?= $(if $(ASKED),,not slow and )not exhaustive and not timing
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
test: $(READY)
	$(PYTEST) --tier $(TIER) -m "$(MARKS)" $(TESTS)

# Which lines of the package the tests run, in one process; TIER and TESTS as
# for `make test`.
coverage: $(READY)
	mkdir -p build
	COVERAGE_FILE=build/coverage $(BIN)/python -m coverage run \
		--source keras_pergrad -m pytest --tier $(TIER) -m "$(MARKS)" $(TESTS)
	COVERAGE_FILE=build/coverage $(BIN)/python -m coverage report

# What each test costs, on a machine with nothing else to do.
prices: $(READY)
	rm -rf build/prices && mkdir -p build/prices
	$(PYTEST) --prices build/prices/ -m "$(MARKS)" tests
	$(BIN)/python -m tests.tiers build/prices/*

# Wide sweeps, which CI leaves out: before a release, and after a change of the
# engine or of the types.
test-exhaustive: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile \
		-m "exhaustive and not timing" $(TESTS)

# Tests that compare times: one after the other, on an otherwise idle machine.
test-timing: $(READY)
	$(BIN)/python -m pytest -m timing

# On a machine with an NVIDIA GPU: all but what needs none (the mark cpu_only).
# A process takes as much of the card as it needs, and of XLA's compiler a few
# cores. TensorFlow comes from VENV, whose packages must bring CUDA
# (`pip install "tensorflow[and-cuda]"`). The tests switch TensorFloat-32 off.
GPU_WORKERS ?= $(shell n=$$(( $$(nproc) / 3 )); echo $$(( n > 0 ? n : 1 )))
test-gpu: $(READY)
	$(BIN)/python -c "import tensorflow as tf; exit(0 if tf.config.list_physical_devices('GPU') else 'TensorFlow sees no GPU: run python -m keras_pergrad doctor')"
	TF_FORCE_GPU_ALLOW_GROWTH=true $(BIN)/python -m pytest \
		-n $(GPU_WORKERS) --dist loadfile \
		-m "not cpu_only and not slow and not exhaustive and not timing" \
		$(TESTS)

# The next Keras and TensorFlow, in an environment of its own: exactly what
# constraints/next.txt lists. Nothing is resolved: keras-nightly stands where
# other packages ask for keras, and tensorflow-text fits one release only. With
# PINNED= the nightly builds of the day take the places of both.
PINNED ?= yes
NEXT_VENV := $(if $(PINNED),.venv-next,.venv-nightly)
test-nightly: $(NEXT_VENV)/.installed
	touch $(NEXT_VENV)/.demo-ready $(NEXT_VENV)/.ready
	$(MAKE) test VENV=$(NEXT_VENV) CONSTRAINTS=constraints/next.txt

$(NEXT_VENV)/.installed: pyproject.toml constraints/next.txt
	test -x $(NEXT_VENV)/bin/python || $(PYTHON) -m venv $(NEXT_VENV)
	$(NEXT_VENV)/bin/python -m pip install --quiet \
		--disable-pip-version-check --no-deps -r constraints/next.txt
	$(NEXT_VENV)/bin/python -m pip install --quiet \
		--disable-pip-version-check --no-deps -e .
	$(if $(PINNED),,$(NEXT_VENV)/bin/python -m pip uninstall --quiet --yes \
		tensorflow keras-nightly keras-hub-nightly)
	$(if $(PINNED),,$(NEXT_VENV)/bin/python -m pip install --quiet \
		--disable-pip-version-check --pre tf-nightly keras-nightly)
	$(if $(PINNED),,$(NEXT_VENV)/bin/python -m pip install --quiet \
		--disable-pip-version-check --no-deps --pre keras-hub-nightly)
	touch $@

# The tests for which it matters which TensorFlow wheel is installed: with
# `tensorflow-cpu` (Linux on x86-64) the stand-in device is a "GPU", as on a Mac.
CPU_VENV := .venv-cpu
CPU_WHEEL_TESTS ?= tests/placement/test_on_stand_in.py \
	tests/placement/test_comparison.py \
	tests/placement/test_prediction.py \
	tests/placement/test_kernels.py \
	tests/common/test_devices.py \
	tests/doctor/test_command.py \
	tests/checking/test_on_stand_in.py \
	tests/stalls/test_on_stand_in.py \
	tests/modes/test_on_stand_in.py \
	tests/uses/rules/test_cudnn.py
test-cpu-wheel: $(CPU_VENV)/.ready
	$(CPU_VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile \
		$(CPU_WHEEL_TESTS)

# The package asks for `tensorflow`, and `tensorflow-cpu` is the same under
# another name, so it is installed without its dependencies, and they beside it.
$(CPU_VENV)/.ready: pyproject.toml $(CONSTRAINTS)
	test -x $(CPU_VENV)/bin/python || $(PYTHON) -m venv $(CPU_VENV)
	$(CPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c $(CONSTRAINTS) keras numpy pytest pytest-timeout pytest-xdist \
		"$$(sed -n 's/^tensorflow==/tensorflow-cpu==/p' $(CONSTRAINTS))"
	$(CPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		--no-deps -e .
	touch $@

# Random models against single samples and plain Keras; on the oldest pair with
# ENV=oldest. A failure's script is printed at the end.
N ?= 5000
SEED ?= 0
hunt: $(READY)
	$(BIN)/python -m tests.hunt $(N) --seed $(SEED) --workers $(WORKERS)

# After how many draws the hunt finds faults that are planted on purpose. It takes
# hours; PART=1/8 to PART=8/8 are its parts.
PART ?= 1/1
hunt-proof: $(READY)
	$(BIN)/python -m tests.hunt.proof --workers $(WORKERS) --part $(PART)

# Which test finds each wrong line of arithmetic (see tests/mutants.py): a table,
# of some of them with MUTANTS="name name"; an error where one survives.
MUTANTS ?=
mutants: $(READY)
	$(BIN)/python -m tests.mutants $(MUTANTS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The browser in which the site is tested: Debian's Chromium where there is none
# and this may install it. Without one `make docs` tests what the pages hold.
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable
browser:
	@test -n "$${BROWSER_PATH:-}" \
	  || for name in $(BROWSERS); do command -v $$name; done | grep -q . \
	  || { test "$$(id -u)" = 0 && export DEBIAN_FRONTEND=noninteractive \
	       && apt-get -qq update >/dev/null \
	       && apt-get -qq -y install --no-install-recommends chromium >/dev/null; } \
	  || echo "No browser, and apt-get installs none: the site is tested without."

# The site, into build/site, in an environment of its own without TensorFlow.
# A warning is an error: a link that leads nowhere, a public name without
# docstring or place in the reference, a notebook or a figure that is not up to
# date. Then the site is tested, in a browser if Chromium or Chrome is installed.
# (Not --quiet: mkdocs does not count the warnings that it does not show.)
DOCS_VENV := .venv-docs
docs: $(DOCS_VENV)/.ready
	$(DOCS_VENV)/bin/python docs/make_figures.py --check
	$(DOCS_VENV)/bin/python docs/make_notebooks.py --check
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build --strict
	$(DOCS_VENV)/bin/python -m pytest -c docs/site_tests/pytest.ini docs/site_tests

# The pages of this version, beside those of others, into the branch gh-pages:
# `make versions VERSION=1.0`; then push that branch. `mike serve` shows it.
VERSION ?= dev
versions: $(DOCS_VENV)/.ready
	PATH="$(CURDIR)/$(DOCS_VENV)/bin:$$PATH" NO_MKDOCS_2_WARNING=1 \
		mike deploy --update-aliases $(VERSION) latest
	PATH="$(CURDIR)/$(DOCS_VENV)/bin:$$PATH" mike set-default latest

# The notebooks of the first guides, from their pages.
notebooks: $(DOCS_VENV)/.ready
	$(DOCS_VENV)/bin/python docs/make_notebooks.py

# Writes what benchmarks have measured into the pages that quote it.
figures:
	$(PYTHON) docs/make_figures.py

# Runs pages and writes what they print and draw: make outputs PAGES=README.md
PAGES ?= docs/gradient_modes.md docs/guides/*.md
outputs: $(READY)
	$(BIN)/python docs/make_outputs.py $(PAGES)

$(DOCS_VENV)/.ready: docs/requirements.txt constraints/newest.txt
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints/newest.txt -r docs/requirements.txt
	touch $@

# Side-by-side timings: an hour and more on two quiet cores. With BENCH only what
# `benchmarks.steps.per_sample` measures, or a part of it:
# make bench BENCH="--models mnist --rivals ours,plain --rounds 4"
bench: $(READY) $(if $(findstring real_models,$(BENCH)),,bench-venvs)
ifeq ($(strip $(BENCH)),)
	$(BIN)/python -m benchmarks.callbacks.data_stall_overhead
	$(BIN)/python -m benchmarks.callbacks.gradient_variance_overhead
	$(BIN)/python -m benchmarks.extras.input_gradients
	$(BIN)/python -m benchmarks.extras.private_batches
	$(BIN)/python -m benchmarks.callbacks.cockpit
	$(BIN)/python -m benchmarks.steps.accumulation_memory
endif
	$(BIN)/python -m benchmarks.steps.per_sample $(BENCH)

# On a machine with an NVIDIA GPU: rates of methods, and the table of steps, of
# some models with BENCH="--models bert,vit". Peers that the environment itself
# has need none of their own.
bench-gpu: $(READY)
	$(BIN)/python -m benchmarks.steps.rates
	$(BIN)/python -m benchmarks.steps.rates --xla
	$(BIN)/python -m benchmarks.steps.around_a_step
	$(BIN)/python -m benchmarks.steps.gpu $(BENCH)

# The peers live in environments of their own; one that does not install is
# left out of the comparison.
PEERS := torch jax jax_privacy tf_privacy cockpit
bench-venvs: $(READY) $(PEERS:%=.bench-venvs/%/.ready)

.bench-venvs/%/.ready: benchmarks/peers/requirements-%.txt
	test -x .bench-venvs/$*/bin/python || $(PYTHON) -m venv .bench-venvs/$*
	.bench-venvs/$*/bin/python -m pip install --quiet --disable-pip-version-check -r $< \
	  && { test ! -f benchmarks/peers/requirements-$*-no-deps.txt \
	       || .bench-venvs/$*/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/peers/requirements-$*-no-deps.txt; } \
	  && touch $@ || rm -rf .bench-venvs/$*

# What must hold before anybody uploads: both archives, built twice to the same
# bits, tried where nothing else of the package is, with each of PYTHONS that is
# here; the types of public names; what the wheel holds and needs.
RELEASE_VENV := .venv-release
PYTHONS ?= python3.11 python3.12 python3.13
release-check: $(RELEASE_VENV)/.ready
	$(RELEASE_VENV)/bin/python .ci/release_check.py check $(PYTHONS)

# Known holes in what the tests run with, and in the workflows.
audit: $(RELEASE_VENV)/.ready
	for file in newest release; do \
		$(RELEASE_VENV)/bin/pip-audit --strict --no-deps --disable-pip \
			-r constraints/$$file.txt || exit 1; done
	$(RELEASE_VENV)/bin/zizmor --offline .github

$(RELEASE_VENV)/.ready: constraints/release.txt
	test -x $(RELEASE_VENV)/bin/python || $(PYTHON) -m venv $(RELEASE_VENV)
	$(RELEASE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		-r constraints/release.txt
	touch $@

clean:
	rm -rf .venv .venv-oldest .venv-release .venv-cpu .venv-keras313 .venv-next .venv-nightly .venv-docs .bench-venvs build dist .pytest_cache .ruff_cache
