"""What instructions are, counted: units, roles and memory, with a dual instruction as two operations."""

from collections import Counter

from rocattn_profiling.kernels.read.instructions import Pipe, Role, waits_for_waves


class Counts:
    """How many instructions and operations of each kind."""

    def __init__(self, instructions):
        """Count instructions."""
        instructions = list(instructions)
        operations = [operation for each in instructions for operation in each.operations]
        vector = [operation for operation in operations if operation.unit is Pipe.VECTOR]
        exchanges = [each for each in operations if each.unit is not Pipe.VECTOR and each.role is Role.CROSS_LANE]
        self.instructions = len(instructions)
        self.units = Counter(instruction.unit for instruction in instructions)
        self.roles = Counter(operation.role for operation in vector + exchanges)
        self.vector_operations, self.dual = len(vector), len(operations) - len(instructions)
        self.barriers = sum(waits_for_waves(instruction.mnemonic) for instruction in instructions)
        self.memory = Counter((each.unit, each.access, each.width) for each in operations if each.access)
        self.flops = sum(operation.flops for operation in operations)
        self.matrix = Counter(each.mnemonic for each in instructions if each.unit is Pipe.MATRIX)
        self.spills = sum(instruction.spill for instruction in instructions)

    def accesses(self, unit, access=None):
        """Return the instructions that access a memory, one way or any."""
        return sum(n for (u, a, _), n in self.memory.items() if u is unit and access in {None, a})

    def lane_bytes(self, unit, access=None):
        """Return the bytes that one lane moves to or from a memory, one way or any."""
        return sum(n * width for (u, a, width), n in self.memory.items() if u is unit and access in {None, a})


def counts_of(function, blocks):
    """Count what blocks hold."""
    return Counts(instruction for block in blocks for instruction in function.blocks[block].instructions)
