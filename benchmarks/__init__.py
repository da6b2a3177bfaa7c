r"""asv suites over the workloads that ``rocattn bench`` runs; see common.py for what they share.

``asv run --quick HEAD^!`` tries them on the newest commit; ``ROCATTN_ASV_FULL=1`` takes whole grids instead of their
quick subsets. Classes named ``Quick…`` are the few that the gate's quick mode measures: ``--bench "\.Quick"``.
"""
