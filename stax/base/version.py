"""The version of this package: part of request and program keys."""

VERSION = "0.1.0"
