# The whole of it for a newcomer: `make eval` and `make test`. `make help` lists the rest.
python := .venv/bin/python
ARGS ?=

.PHONY: help setup eval test lint bench clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 10

setup:  ## make .venv: ROS 2, simulators, both packages (idempotent; PYTHON=python3.12 chooses the interpreter)
	@bash environment/setup.sh

eval: setup  ## evaluate the example policy in Genesis over the ROS 2 graph; ARGS='--env mujoco --episodes 10' is passed on
	@$(python) -m openeta_ros.cli eval $(ARGS)

# Tests of robots run in real time, and beside a compiler two processors may not keep it up. What failed (exit code 1)
# is therefore run once more with nothing beside it; what fails again is wrong, and both outcomes are printed.
test: setup  ## run the tests, on two workers; ARGS='-k bridge' is passed on
	@$(python) -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS) || { \
	  [ $$? = 1 ] && echo '[test] once more, alone: what failed above' && $(python) -m pytest --last-failed $(ARGS); }

lint: setup  ## ruff (format and lint) and mypy
	@$(python) -m ruff format --check . && $(python) -m ruff check . && $(python) -m mypy

.venv/bench: environment/requirements-bench.txt
	@$(python) -m pip install -q --no-deps --upgrade --target $@ -r $<
	@touch $@

bench: setup .venv/bench  ## the measurements, each beside its peer
	@set -e; for file in bench/*.py; do echo "== $$file"; $(python) $$file; done

clean:  ## remove the environment and what was built (results/ stays)
	rm -rf .venv build install log
