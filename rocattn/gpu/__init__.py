"""Everything that talks to a GPU; `driver` is the only module that imports hip-python."""
