"""Exit statuses of every command, and the error that carries one."""

from rocattn.errors import RocattnError

OK = 0
FAILED = 1
UNDECIDED = 2
NOT_MEASURED = 3
USAGE = 4


class CommandError(RocattnError):
    """Ends a command with one line and an exit status (USAGE by default)."""

    def __init__(self, message: str, status: int = USAGE) -> None:
        super().__init__(message)
        self.status = status
