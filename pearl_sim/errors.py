"""The one error a user can cause: bad input, told in one line that says where, what, and what would be right."""


class InputError(Exception):
    """A file, key or value that cannot be used.  The command line prints it and exits with code 2."""

    def __init__(self, where: object, problem: str) -> None:
        """Say that the input at `where` (a file, with key or row where known) has this problem."""
        super().__init__(where, problem)

    def __str__(self) -> str:
        """Return the line that the user reads."""
        return f"{self.args[0]}: {self.args[1]}"
