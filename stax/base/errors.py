"""The one error tree of Stax. Every error says what was expected, what was found, where, and the next step.

StaxError
├── UserError               the caller can mend it
│   ├── OptionError         a bad option, target, URL or environment value
│   ├── CaptureError        the program can not be traced
│   │   └── DataDependent   an output size depends on data
│   ├── MissingRule         strict_native=True met an operator without a lowering rule
│   └── SpecializationLimit fullgraph=True met the limit of specialisations
├── RequireHitMiss          mode="require-hit" or "offline" found nothing to run
├── VerifyError             a stage value breaks an invariant of its own (a bug in Stax)
├── BuildError              text did not become a binary
│   ├── CompilerFailed      the compiler refused the text
│   ├── BuildTimeout        the compiler ran past its limit
│   └── WorkerLost          the process or node that built died too often
├── StoreError
│   ├── Missing             the name does not exist
│   ├── Corrupt             bytes do not match their digest or schema
│   ├── Refused             the store will never accept this (permission, precondition, bad name)
│   └── Transient           the same call may succeed later (time-out, 503, connection reset)
├── LoadError
│   ├── Incompatible        the artifact's constraints do not hold on this machine
│   └── SchemaError         data from the wire has another shape than its schema
├── LaunchError             the device refused to run a loaded kernel
└── FarmError               the Ray cluster can not take the work
"""

from __future__ import annotations


class StaxError(Exception):
    """Base of all errors.

    ``what`` happened; ``expected`` and ``found`` name the two sides; ``where`` is a file:line, a key or
    a URL; ``hint`` is the next step. All are strings, so an error survives pickling between processes.
    """

    def __init__(
        self, what: str, *, expected: str = "", found: str = "", where: str = "", hint: str = ""
    ) -> None:
        self.what = what
        self.expected = expected
        self.found = found
        self.where = where
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        parts = [self.what]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.found:
            parts.append(f"found {self.found}")
        text = "; ".join(parts)
        if self.where:
            text += f" ({self.where})"
        if self.hint:
            text += f". hint: {self.hint}"
        return text

    def fields(self) -> dict[str, str]:
        """The five fields, for a report."""
        return {k: getattr(self, k) for k in ("what", "expected", "found", "where", "hint")}

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.fields()))


def _rebuild(kind: type[StaxError], fields: dict[str, str]) -> StaxError:
    return kind(**fields)


class UserError(StaxError):
    """The caller can mend it."""


class OptionError(UserError):
    """A bad option, target, URL or environment value."""


class CaptureError(UserError):
    """The program can not be traced."""


class DataDependent(CaptureError):
    """An output size depends on the data of an input."""


class MissingRule(UserError):
    """strict_native=True met an operator without a lowering rule."""


class SpecializationLimit(UserError):
    """fullgraph=True met the limit of specialisations or compilations."""


class RequireHitMiss(StaxError):
    """mode="require-hit" or "offline" found nothing to run."""


class VerifyError(StaxError):
    """A stage value breaks an invariant of its own: a bug in Stax."""


class BuildError(StaxError):
    """Text did not become a binary."""


class CompilerFailed(BuildError):
    """The compiler refused the text."""


class BuildTimeout(BuildError):
    """The compiler ran past its limit."""


class WorkerLost(BuildError):
    """The process or node that built died more often than the retry limit."""


class StoreError(StaxError):
    """Base of what a store may raise."""


class Missing(StoreError):
    """The name does not exist in the store."""


class Corrupt(StoreError):
    """Bytes do not match their digest or their schema."""


class Refused(StoreError):
    """The store will never accept this call as it is."""


class Transient(StoreError):
    """The same call may succeed later."""


class LoadError(StaxError):
    """An artifact can not be loaded here."""


class Incompatible(LoadError):
    """The artifact's constraints do not hold on this machine."""


class SchemaError(LoadError):
    """Data from the wire has another shape than its schema."""


class LaunchError(StaxError):
    """The device refused to run a loaded kernel, or an earlier kernel left it in error."""


class FarmError(StaxError):
    """The Ray cluster can not take the work."""
