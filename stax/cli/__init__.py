"""The command line: ``stax warm | pull | ls | doctor``. The door is main; each verb is a module, loaded when asked for."""

from stax.cli.main import VERBS, main

__all__ = ["VERBS", "main"]
