"""What the package raises of its own. Wrong values raise ValueError or TypeError, as torch does."""


class UnsupportedOperation(RuntimeError):
    """An operation met a path-carrying tensor and no rule says how paths go through it.

    It is raised instead of guessing: a sum over paths that silently skips an operation is wrong.
    """

    def __init__(self, operation: str, where: str, advice: str) -> None:
        self.operation, self.where, self.advice = operation, where, advice
        super().__init__(f"no path rule for `{operation}` in {where}: {advice}")
