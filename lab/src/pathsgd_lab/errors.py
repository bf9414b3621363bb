"""User-facing errors: the command line prints one line and exits with code 2."""

from __future__ import annotations


class LabError(Exception):
    """What went wrong and what to do about it, in one line."""


class UsageError(LabError):
    """A mistake on the command line."""


class SpecError(LabError, ValueError):
    """A run that cannot be."""


class RunError(LabError, RuntimeError):
    """A run that cannot be started or continued."""


class RecordError(LabError, RuntimeError):
    """A record that cannot be read."""


class CheckpointError(LabError, RuntimeError):
    """A checkpoint that is damaged or of another run."""


class DataError(LabError, RuntimeError):
    """Data that is missing, damaged or not to be had."""


class StudyError(LabError, RuntimeError):
    """Studies that cannot be found or do not exist."""


class PageError(LabError, ValueError):
    """A page that names a table which does not exist."""
