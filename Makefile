# make demo    the main job in a few minutes, on any CPU
# make quick   what starts no process: before every commit
# make test    every rule of the product: before you propose a change
# make lint    format, lint and types
# make test-all  make test, documentation pages, real models, browsers and what needs an idle machine
# make house   limits on walls, sizes, language and duplicates, which only get lower
# make check   what a change must pass: format, lint, types, make house, make test
# make mutants 300 small changes of the package: which do the tests notice?
# make bench   this project's own speed
# make repeats 20 unchanged and 20 handicapped comparisons: counts false alarms and misses
# make busy    verdicts next to busy processes: unchanged code must not be a drop
# make precisions  accuracy and speed of the tiny suite in every precision, as a page and as Markdown
# make energy  how far off energies are, against simulated loads
# make decisions  how often verdicts are wrong, simulated: fails if a promise is broken, in 6 minutes
# make decisions-full  the same at full size, and docs/decisions.md with its rows from it
# make engines one tiny model through every installed engine, compared
# make mlserver a real KServe v2 server, for the tests of engine triton
# make fleet   tests on a real Ray cluster of two nodes, which is installed for it, and on Slurm
# make mlcommons  exported submissions and logs of twins, judged by MLCommons' scripts (MLPERF_INFERENCE=checkout)
# make peers   the openai engine's client compared with MLCommons', AIPerf and GuideLLM on one server
# make servers each faulty server of the tests: its own figures, and the openai engine's
# make duplicates  the places in the package that share six or more lines
# make searches how far off searched rates are, simulated
# make gpu     this machine's GPU: its sensors, its energy and real sizes, in nine minutes
# make gpu-bundle  wheels for a GPU machine without network: build/gpu-bundle
# make train   train the tiny models again
# make pictures  the pictures of README and docs/report.md, by Chromium
# make docs    the documentation, built strictly into build/docs
# make schemas write the published JSON Schemas
# make clean   remove the virtual environment, .mlperf and build files

PYTHON ?= $(shell command -v python3.11 || command -v python3)
# What make quick needs, and no more: none of its tests loads torch.
QUICK_EXTRAS := dev,openai,parquet,speech,triton,videos
EXTRAS ?= dev,lm,quantization,evaluate,diffusion,openai,serving,triton,speech,math,videos
VENV := .venv
MLSERVER := .venv-mlserver
PEERS := .venv-peers-endpoints .venv-peers-aiperf .venv-peers-guidellm
PEERS_PYTHON ?= python3.12
MLC_ENDPOINTS ?= git+https://github.com/mlcommons/endpoints@ea3327530376fef63d706f4105612e17c2c80a8d
BIN := $(VENV)/bin
READY := $(VENV)/.ready
QUICK_READY := $(VENV)/.quick
REWRITTEN := $(VENV)/.rewritten
DEMO := $(VENV)/.demo
# An environment that is there already keeps its Python, whichever that is.
MAKE_VENV = test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Some tests start interpreters. What these import is compiled once, beforehand, also where the
# environment says that nothing compiled is to be kept.
unexport PYTHONDONTWRITEBYTECODE
COMPILED := $(BIN)/python -m compileall -q pytest_mlperf

# Most tests wait more than they compute: eight at once keep two cores busy. Where torch is loaded a
# fork takes 40 ms in place of 3: these tests run beside the others, and are shown after them. Only
# one of the two may write pytest's cache.
PYTEST := $(BIN)/python -m pytest
QUICK := $(COMPILED) && $(PYTEST) -n 3 --dist worksteal -m "not process and not slow and not nightly and not quiet"
TORCH := $(PYTEST) -n 2 --dist worksteal -m "torch and not nightly and not quiet" -p no:cacheprovider
REST := $(PYTEST) -n 6 --dist worksteal -m "not torch and not nightly and not quiet" --durations=10
# A shell lets what runs beside it ignore Ctrl-C: it is ended by the trap.
TEST := $(COMPILED) && { $(TORCH) > $(VENV)/torch.log 2>&1 & torch=$$!; \
    trap "kill $$torch; exit 130" INT TERM; $(REST); rest=$$?; \
    wait $$torch; torch=$$?; echo "Tests that load torch:"; cat $(VENV)/torch.log; \
    test $$rest -eq 0 && exit $$torch; exit $$rest; }
# A quiet test that fails is run once more with the machine to itself, and both runs are shown.
ALONE := { test $$? -eq 1 && echo "What failed, once more and alone:" && $(PYTEST) -m quiet --lf --lfnf=none; }
NIGHTLY := $(PYTEST) -n 2 --dist worksteal -m "nightly and not quiet" --durations=30
QUIET := { $(PYTEST) -p no:xdist -m quiet --durations=10 || $(ALONE); }

.PHONY: demo first-contact pictures quick test test-all lint house check mutants docs bench fleet mlcommons repeats busy precisions energy decisions decisions-full engines servers duplicates searches mlserver peers gpu gpu-bundle train schemas clean

# Other plugins of pytest load themselves in every session: a folder of their own keeps them out of
# all but tests/plugin/test_neighbours.py.
NEIGHBOURS := pytest-html pytest-metadata pytest-randomly pytest-rerunfailures pytest-split pytest-timeout

$(READY): pyproject.toml constraints.txt
	$(MAKE_VENV)
	$(INSTALL) -e '.[$(EXTRAS)]'
	$(INSTALL) --no-deps --upgrade --target $(VENV)/neighbours $(NEIGHBOURS)
	touch $(DEMO) $(QUICK_READY) $@

$(QUICK_READY): pyproject.toml constraints.txt
	$(MAKE_VENV)
	$(INSTALL) -e '.[$(QUICK_EXTRAS)]'
	touch $@

# pytest rewrites the asserts of each file once and keeps the result. In a fresh clone every worker
# would do so for all files, as they collect in step: two processes do it beforehand.
$(REWRITTEN): $(READY)
	$(PYTEST) --collect-only -qq -p no:xdist tests/[a-e]*/ > /dev/null & \
	    $(PYTEST) --collect-only -qq -p no:xdist tests/[f-z]*/ > /dev/null; wait
	touch $@

# What the demo needs, and no more.
$(DEMO): pyproject.toml constraints.txt
	@echo "Installing ONNX Runtime and torch into $(VENV): 2 minutes with a warm package cache"
	$(MAKE_VENV)
	$(subst --quiet ,,$(INSTALL)) --no-compile -e '.[onnx,lm]'
	touch $@

# A real KServe v2 server to test engine triton against; it needs an environment of its own, and
# without it these tests are skipped.
mlserver: $(MLSERVER)

$(MLSERVER):
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check mlserver==1.7.1 onnxruntime==1.31.1
	touch $@

# Other clients, in an environment each; one that cannot be installed is left out.
.venv-peers-endpoints: INSTALLED = '$(MLC_ENDPOINTS)'
.venv-peers-aiperf: INSTALLED = aiperf==0.13.0
.venv-peers-guidellm: INSTALLED = guidellm==0.8.1

$(PEERS):
	-$(PEERS_PYTHON) -m venv $@ && \
	    $@/bin/python -m pip install --quiet --disable-pip-version-check $(INSTALLED) || rm -rf $@

peers: $(READY) $(PEERS)
	$(BIN)/python -m benchmarks.peers

fleet: $(READY)
	$(INSTALL) -e '.[ray]'
	$(PYTEST) tests/addons/fleet

# MLPERF_INFERENCE: a checkout of mlcommons/inference, whose checkers judge exported trees, and whose
# accuracy and compliance scripts read the logs of the tiny twins.
mlcommons: $(READY)
	@test -n "$$MLPERF_INFERENCE" || { echo "make mlcommons: set MLPERF_INFERENCE to a checkout of mlcommons/inference" >&2; exit 1; }
	$(PYTEST) tests/addons/official/test_submission.py tests/suites/test_mlcommons_scripts.py

# Debian's package chromium draws them.
pictures: $(READY)
	$(BIN)/python tools/pictures.py

demo: $(DEMO)
	$(BIN)/python tools/demo.py

# README's quick start and the demo beside other processes: FIRST_CONTACT="--neighbours 2 --tries 5"
first-contact: $(DEMO)
	$(BIN)/python tools/first_contact.py $(FIRST_CONTACT)

quick: $(QUICK_READY)
	$(QUICK)

test: $(REWRITTEN)
	$(TEST)

# A failure of one part leaves out none of the others.
test-all: $(REWRITTEN)
	failed=0; ($(TEST)) || failed=1; $(NIGHTLY) || failed=1; $(QUIET) || failed=1; exit $$failed

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

house: $(READY)
	$(BIN)/python tools/house.py

check: lint house $(REWRITTEN)
	$(TEST)

mutants: $(READY)
	$(BIN)/python tools/mutants.py

docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -n -b html docs build/docs

bench: $(READY)
	$(BIN)/python -m pytest benchmarks --benchmark-enable --benchmark-only -p no:xdist

repeats: $(READY)
	$(BIN)/python tools/repeats.py

busy: $(READY)
	$(BIN)/python tools/busy.py

precisions: $(READY)
	$(BIN)/python -m pytest suites/precision --mlperf-json build/precisions.json \
	    --mlperf-report html=build/precisions.html --mlperf-report markdown=build/precisions.md

energy: $(READY)
	$(BIN)/python research/energy.py

decisions: $(READY)
	$(BIN)/python research/decisions.py

decisions-full: $(READY)
	$(BIN)/python research/decisions.py --full

engines: $(READY)
	$(BIN)/python tools/engines.py

servers: $(READY)
	$(BIN)/python -m tools.servers

duplicates: $(READY)
	$(BIN)/python tools/duplicates.py

searches: $(READY)
	$(BIN)/python research/searches.py

gpu: $(READY)
	$(BIN)/python -m benchmarks.gpu

gpu-bundle: $(READY)
	$(BIN)/python -m benchmarks.gpu.bundle

train: $(READY)
	$(INSTALL) -e '.[train,vision,diffusion,speech]'
	$(BIN)/python twins/train_tiny_resnet50.py
	$(BIN)/python twins/train_tiny_llama2.py
	$(BIN)/python twins/shrink_tiny_llama2.py
	$(BIN)/python twins/train_tiny_bert.py
	$(BIN)/python twins/train_tiny_dlrm.py
	$(BIN)/python twins/train_tiny_dlrm_v3.py
	$(BIN)/python twins/train_tiny_rgat.py
	$(BIN)/python twins/train_tiny_retinanet.py
	$(BIN)/python twins/train_tiny_yolo.py
	$(BIN)/python twins/train_tiny_3d_unet.py
	$(BIN)/python twins/train_tiny_sdxl.py
	$(BIN)/python twins/train_tiny_wan.py
	$(BIN)/python twins/train_tiny_mixtral.py
	$(BIN)/python twins/train_tiny_gptj.py
	$(BIN)/python twins/train_tiny_whisper.py
	$(BIN)/python twins/train_tiny_qwen3_vl.py
	$(BIN)/python twins/train_tiny_qwen3_6.py
	$(BIN)/python twins/train_tiny_llama3_8b.py
	$(BIN)/python twins/train_tiny_llama3_405b.py
	$(BIN)/python twins/train_tiny_deepseek.py
	$(BIN)/python twins/train_tiny_gpt_oss.py

schemas: $(READY)
	$(BIN)/pytest-mlperf schema --write

clean:
	rm -rf $(VENV) .mlperf build dist
