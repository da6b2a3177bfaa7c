# `make run` does the main job, `make test` the tests; dev.py does the work and needs no make.
PYTHON ?= python3
.PHONY: run test test-all test-torch lint
run test test-all test-torch lint:
	@$(PYTHON) dev.py $@ $(ARGS)
