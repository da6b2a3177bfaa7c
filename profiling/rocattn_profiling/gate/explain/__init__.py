"""Causes of what got worse: what changed on its path."""
