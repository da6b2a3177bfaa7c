"""Source files, read and parsed once in a process however many tests look at them."""

import ast
import functools


@functools.cache
def parsed(path):
    """Return a file's tree, which nobody changes."""
    return ast.parse(path.read_text())


@functools.cache
def nodes(path):
    """Return the nodes of a file's tree, in the order of `ast.walk`, which takes longer than parsing."""
    return tuple(ast.walk(parsed(path)))
