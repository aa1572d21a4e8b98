# make demo    the main job in a few minutes, on any CPU
# make test    all tests
# make check   what a commit must pass: format, lint, types, tests
# make bench   this project's own speed
# make repeats 20 unchanged and 20 handicapped comparisons: counts false alarms and misses
# make precisions  accuracy and speed of the tiny suite in every precision, with a plot
# make energy  how far off energies are, against simulated loads
# make decisions  how often every rule of judgement errs, simulated beside other tools
# make engines one tiny model through every engine that is here, beside each other
# make mlserver a real KServe v2 server, for the tests of engine triton
# make searches how far off searched rates are, simulated
# make gpu     this machine's GPU: its sensors, its energy and real sizes, in nine minutes
# make gpu-bundle  wheels for a GPU machine without network: build/gpu-bundle
# make train   train the tiny models anew
# make docs    the documentation, built strictly into build/docs
# make schemas write the published JSON Schemas

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
MLSERVER := .venv-mlserver
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check docs bench repeats precisions energy decisions engines searches mlserver gpu gpu-bundle train schemas clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,lm,quantization,evaluate,diffusion,openai,serving,triton,plots]'
	touch $@

# A real KServe v2 server to test engine triton against; it needs an environment of its own, and
# without it these tests are skipped.
mlserver: $(MLSERVER)

$(MLSERVER):
	$(PYTHON) -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check mlserver==1.7.1 onnxruntime==1.31.1
	touch $@

demo: $(READY)
	$(BIN)/python tools/demo.py

test: $(READY)
	$(BIN)/python -m pytest -n 2

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2

docs: $(READY)
	$(BIN)/python -m sphinx -W --keep-going -n -b html docs build/docs

bench: $(READY)
	$(BIN)/python -m pytest benchmarks --benchmark-enable --benchmark-only -p no:xdist

repeats: $(READY)
	$(BIN)/python tools/repeats.py

precisions: $(READY)
	-$(BIN)/python -m pytest suites/precision --mlperf-json build/precisions.json
	$(BIN)/pytest-mlperf precisions build/precisions.json --plot build/precisions.svg

energy: $(READY)
	$(BIN)/python tools/energy.py

decisions: $(READY)
	$(BIN)/python tools/decisions.py

engines: $(READY)
	$(BIN)/python tools/engines.py

searches: $(READY)
	$(BIN)/python tools/searches.py

gpu: $(READY)
	$(BIN)/python -m benchmarks.gpu

gpu-bundle: $(READY)
	$(BIN)/python -m benchmarks.gpu.bundle

train: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,vision,diffusion]'
	$(BIN)/python tools/train_tiny_resnet50.py
	$(BIN)/python tools/train_tiny_llama2.py
	$(BIN)/python tools/shrink_tiny_llama2.py
	$(BIN)/python tools/train_tiny_bert.py
	$(BIN)/python tools/train_tiny_dlrm.py
	$(BIN)/python tools/train_tiny_retinanet.py
	$(BIN)/python tools/train_tiny_3d_unet.py
	$(BIN)/python tools/train_tiny_sdxl.py
	$(BIN)/python tools/train_tiny_mixtral.py
	$(BIN)/python tools/train_tiny_gptj.py

schemas: $(READY)
	$(BIN)/pytest-mlperf schema --write

clean:
	rm -rf $(VENV) .mlperf build dist
