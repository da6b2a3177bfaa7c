# `make run` does the main job, `make test` the tests; dev.py does the work and needs no make.
PYTHON ?= python3
.PHONY: run test lint
run test lint:
	@$(PYTHON) dev.py $@ $(ARGS)
