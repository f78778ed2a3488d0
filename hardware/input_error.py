"""The one exception for input that a user gave and that breaks a rule."""

from __future__ import annotations


class InputError(ValueError):
    """Input that breaks a rule, said in one line: where it stands, what is wrong, what to do.

    Parameters
    ----------
    rule : str
        The rule that is broken and, where it is not obvious, what to do about it.
    place : str
        Where in the input: a JSON path (``$.tensors[3].bytes``), a TOML key, a line number. Empty if unknown.
    source : str
        The file or argument that the input came from. Empty if it came from code.
    """

    def __init__(self, rule: str, *, place: str = "", source: str = "") -> None:
        self.rule = " ".join(rule.split())
        self.place = place
        self.source = source
        super().__init__(": ".join(part for part in (source, place, self.rule) if part))

    def within(self, source: str) -> InputError:
        """Return the same error with the file or argument that it came from."""
        return InputError(self.rule, place=self.place, source=source)
