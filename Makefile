# Every command a person types. Needs Python 3.11 or newer with venv, and make; nothing else.
#
#   make demo                                  offers through Kafka, the model and MongoDB, live
#   make demo MODEL=DIR                        with a model that is there
#   make demo OFFERS=FILE.jsonl[.gz]           your own offers; with TRAIN=FILE your own labels too
#   make baseline                              a lake, data sets, the tuned SVM, served, judged: report.html
#   make baseline LAKE=DIR TAXONOMY=FILE       the same from a lake of your own
#   make baseline TRAIN=FILE VALIDATION=FILE TEST=FILE      the same on sets that are split already
#   make train                                 sample offers: SVM, teacher, student, served, judged against the SVM
#   make seeds                                 the same with five seeds, and a test over all of them
#   make judge                                 that student for CPU (fp32, int8) and Neuron: does the gate let it pass?
#   make benchmark-quality ROW=NAME TRAIN=FILE VALIDATION=FILE TEST=FILE       a row of docs/quality.md
#   make test                                  lint, types and every test, on a real broker and database
#   make faults                                servers and workers die, lines break: is every record accounted for?
#   make faults SEED=N FAULTS=200 COUNT=1000000             longer, and the same again; PLAN=FILE: a saved plan
#   make lint | make format | make bench | make clean
#
# PYTHON chooses the interpreter: make demo PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# An option for pip, where packages come from another index than pip's own: PIP_FLAGS="--index-url ..."
PIP_FLAGS ?=
PYTEST_FLAGS ?=

# Where `make baseline` works; LAKE, TAXONOMY, PRODUCTION or TRAIN, VALIDATION, TEST: what it works on.
# SET: parameters that differ from pipeline.yaml's, as in SET="baseline.costs=[1] dataset.cap=500".
WORK ?= runs/baseline
LAKE ?=
TAXONOMY ?=
PRODUCTION ?=
VALIDATION ?=
TEST ?=
SET ?=
# Of encoder, teacher and student in `make train`, and where they go.
SEED ?= 0
OWN ?= $(WORK)

# `make benchmark-quality`: ROW is a row of benchmarks/quality/rows.yaml, or all; UNLABELLED: offers without
# labels; ENCODER: the directory of a pretrained one; LABELS: labels with their parents. WORK is runs/quality.
ROW ?= all
UNLABELLED ?=
ENCODER ?=
LABELS ?=

# COUNT: how many sample events, or how many offers of OFFERS. OFFERS, TRAIN: files, .jsonl or .jsonl.gz.
# MODEL: an artefact, or a folder with a current one.
COUNT ?=
# `make faults`: COUNT offers, FAULTS faults by a plan drawn from SEED, or PLAN: the file of one.
FAULTS ?=
PLAN ?=
MODEL ?=
OFFERS ?=
TRAIN ?=

CODE := $(wildcard classifier training compile benchmarks research tests)
INPUTS := pyproject.toml constraints.txt

STAGE = $(BIN)/python -m training
SETS := $(foreach each,$(SET),--set '$(each)')

.PHONY: train judge seeds demo baseline benchmark-quality test lint format bench faults constraints clean
.DEFAULT_GOAL := demo

demo: $(VENV)/demo.stamp
	@$(BIN)/python -m classifier demo \
	    $(if $(OFFERS),--offers "$(OFFERS)") $(if $(TRAIN),--train "$(TRAIN)") \
	    $(if $(COUNT),--count "$(COUNT)") $(if $(MODEL),--model "$(MODEL)")

baseline: $(VENV)/train.stamp
ifneq ($(TEST),)
	$(STAGE) given --out $(WORK)/sets --train "$(TRAIN)" --validation "$(VALIDATION)" --test "$(TEST)"
else
ifeq ($(LAKE),)
	$(STAGE) lake --out $(WORK)/lake $(SETS)
endif
	$(STAGE) dataset --out $(WORK)/sets $(SETS) --lake $(or $(LAKE),$(WORK)/lake) \
	    --taxonomy $(or $(TAXONOMY),$(WORK)/lake/taxonomy.json) \
	    $(addprefix --production ,$(or $(PRODUCTION),$(if $(LAKE),,$(WORK)/lake/production.json)))
endif
	$(STAGE) baseline --out $(WORK)/svm $(SETS) --train $(WORK)/sets/train.parquet \
	    --validation $(WORK)/sets/validation.parquet \
	    $(if $(TEST),$(addprefix --taxonomy ,$(TAXONOMY)),--taxonomy $(WORK)/sets/taxonomy.json)
	$(STAGE) endpoint --out $(WORK)/endpoint --model $(WORK)/svm --offers $(WORK)/sets/test.parquet
	$(STAGE) evaluate --out $(WORK)/report $(SETS) --predictions $(WORK)/endpoint/answers.parquet \
	    --train $(WORK)/sets/train.parquet \
	    $(if $(TEST),$(addprefix --taxonomy ,$(TAXONOMY)),--taxonomy $(WORK)/sets/taxonomy.json \
	    --dataset $(WORK)/sets/dataset.json)
	@echo "$(WORK)/report/report.html"

# The way from offers to a served student, on the sample catalogue: training/sample.yaml has its sizes. With
# `make demo MODEL=runs/train/models` the student answers the demo's offers.
train judge student: WORK := runs/train
train judge student: SAMPLE = --pipeline training/sample.yaml $(SETS)
train judge student: MADE = --set encoder.seed=$(SEED) --set teacher.seed=$(SEED) --set student.seed=$(SEED) \
    --set teacher.encoder=$(OWN)/encoder/encoder --set student.encoder=$(OWN)/encoder/encoder
train judge student: LABELLED = --train $(WORK)/sets/train.parquet --validation $(WORK)/sets/validation.parquet \
    --taxonomy $(WORK)/sets/taxonomy.json
.PHONY: student
student: $(VENV)/train.stamp
	$(STAGE) lake --out $(WORK)/lake $(SAMPLE)
	$(STAGE) dataset --out $(WORK)/sets $(SAMPLE) --lake $(WORK)/lake --taxonomy $(WORK)/lake/taxonomy.json \
	    --production $(WORK)/lake/production.json
	$(STAGE) baseline --out $(WORK)/svm $(SAMPLE) $(LABELLED)
	$(STAGE) encoder --out $(OWN)/encoder $(SAMPLE) $(MADE) --train $(WORK)/sets/train.parquet \
	    --transfer $(WORK)/sets/transfer.parquet
	$(STAGE) teacher --out $(OWN)/teacher $(SAMPLE) $(MADE) $(LABELLED)
	$(STAGE) student --out $(OWN)/student $(SAMPLE) $(MADE) $(LABELLED) --teacher $(OWN)/teacher \
	    --transfer $(WORK)/sets/transfer.parquet

train: student
	$(BIN)/python -m compile $(OWN)/student/checkpoint --out $(OWN)/models --current
	$(STAGE) endpoint --out $(WORK)/svm-answers --model $(WORK)/svm --offers $(WORK)/sets/test.parquet
	$(STAGE) endpoint --out $(OWN)/answers --model $(OWN)/models --offers $(WORK)/sets/test.parquet
	$(STAGE) evaluate --out $(OWN)/report $(SAMPLE) --predictions $(OWN)/answers/answers.parquet \
	    --against svm=$(WORK)/svm-answers/answers.parquet --train $(WORK)/sets/train.parquet \
	    --taxonomy $(WORK)/sets/taxonomy.json --dataset $(WORK)/sets/dataset.json
	@echo "$(OWN)/report/report.html"

# The student for each target, verified against its checkpoint and judged on the endpoint that would serve it,
# with the SVM as champion: a verdict each, then what they come to. No refusal keeps the next from being judged.
# Neuron is a stand-in here, whose speed says nothing: tests/neuron_double.
judge: NEURON = PYTHONPATH=tests/neuron_double NEURON_DOUBLE_LOCKS=$(OWN)/judged/cores
judge: GATE = $(STAGE) gate $(SAMPLE) --champion $(WORK)/svm --champion-answers $(WORK)/svm-answers \
    --offers $(WORK)/sets/test.parquet --taxonomy $(WORK)/sets/taxonomy.json
judge: CHECKPOINT = $(OWN)/student/checkpoint
judge: student
	@mkdir -p $(OWN)/judged/cores
	$(BIN)/python -m compile $(CHECKPOINT) --out $(OWN)/judged/fp32 --current
	$(BIN)/python -m compile $(CHECKPOINT) --out $(OWN)/judged/int8 --current --precision int8 \
	    --calibration $(WORK)/sets/train.parquet --validation $(WORK)/sets/validation.parquet
	$(NEURON) $(BIN)/python -m compile $(CHECKPOINT) --out $(OWN)/judged/neuron --current \
	    --target neuron-inf2 --traffic $(WORK)/sets/transfer.parquet
	$(BIN)/python -m compile verify $(CHECKPOINT) $(OWN)/judged/fp32
	$(BIN)/python -m compile verify $(CHECKPOINT) $(OWN)/judged/int8
	$(NEURON) $(BIN)/python -m compile verify $(CHECKPOINT) $(OWN)/judged/neuron
	$(STAGE) endpoint --out $(WORK)/svm-answers --model $(WORK)/svm --offers $(WORK)/sets/test.parquet
	$(GATE) --out $(OWN)/gate/fp32 --model $(OWN)/judged/fp32 || [ $$? -eq 10 ]
	$(GATE) --out $(OWN)/gate/int8 --model $(OWN)/judged/int8 || [ $$? -eq 10 ]
	$(NEURON) $(GATE) --out $(OWN)/gate/neuron --model $(OWN)/judged/neuron \
	    --set gate.least_offers_per_second=1 --set gate.most_cost=1000 || [ $$? -eq 10 ]
	$(STAGE) verdict $(OWN)/gate/fp32 $(OWN)/gate/int8 $(OWN)/gate/neuron

# `make train` with five seeds on the same offers, and whether the students beat the SVM.
seeds: WORK := runs/train
seeds:
	@for seed in 0 1 2 3 4; do \
	    $(MAKE) --no-print-directory train WORK=$(WORK) OWN=$(WORK)/seed-$$seed SEED=$$seed || exit 1; done
	$(BIN)/python -m benchmarks.seeds --against $(WORK)/svm-answers/answers.parquet \
	    $(foreach seed,0 1 2 3 4,$(WORK)/seed-$(seed)/answers/answers.parquet)

benchmark-quality: WORK := runs/quality
benchmark-quality: $(VENV)/train.stamp
	@$(BIN)/python -m benchmarks.quality run "$(ROW)" --work "$(WORK)" \
	    $(if $(TRAIN),--train "$(TRAIN)") $(if $(VALIDATION),--validation "$(VALIDATION)") \
	    $(if $(TEST),--test "$(TEST)") \
	    $(if $(UNLABELLED),--unlabelled "$(UNLABELLED)") $(if $(ENCODER),--encoder "$(ENCODER)") \
	    $(if $(LABELS),--labels "$(LABELS)")

test: lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(PYTEST_FLAGS)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks

faults: $(VENV)/dev.stamp
	@$(BIN)/python -m tests.faults $(if $(filter file default undefined,$(origin SEED)),,--seed "$(SEED)") \
	    $(if $(FAULTS),--faults "$(FAULTS)") $(if $(COUNT),--offers "$(COUNT)") $(if $(PLAN),--plan "$(PLAN)")

# Pins, afresh: what an install without pins brings today.
constraints:
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(PYTHON) -m venv "$$fresh" && \
	    "$$fresh/bin/python" -m pip install --quiet $(PIP_FLAGS) '.[dev,spark]' && \
	    { echo '# Every package of every role, at the versions that the tests ran with: make constraints'; \
	      "$$fresh/bin/python" -m pip freeze --all | \
	        sed -e '/^offer.classifier/d' -e '/^pip==/d' -e 's/+[a-z0-9.]*$$//'; } \
	    > constraints.txt.new && mv constraints.txt.new constraints.txt

# What make itself makes again. What a person trained stays, in runs/ and in MLflow's mlflow.db and mlruns/: rm -r runs
clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist *.egg-info models

# A stamp says that its install is done; it is done again when the dependencies change.
$(VENV)/dev.stamp: $(VENV)/demo.stamp
	@echo "Installing the tools for lint and tests into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/train.stamp: $(VENV)/demo.stamp
	@echo "Installing the packages of training into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -e '.[demo,train]'
	@touch $@

$(VENV)/demo.stamp: $(VENV)/venv.stamp $(INPUTS)
	@echo "Installing the packages of the demo into $(VENV) (once; about 2 GB on disk) ..."
	@$(BIN)/python -m pip install --quiet $(PIP_FLAGS) -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/venv.stamp:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "make: '$(PYTHON)' is not there: install Python 3.11 or newer, or name one: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1), and 3.11 or newer is needed: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "make: $(PYTHON) has no venv: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@
