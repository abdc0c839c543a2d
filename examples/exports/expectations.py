"""Comparison of found and expected values. A difference ends the program."""

import sys
from pathlib import Path

SCHEMAS = Path(__file__).resolve().parent.parent.parent / "tests/fixtures/schemas"


def fail(message):
    sys.exit(f"FAILED: {message}")


def expect(what, found, expected):
    if found != expected:
        fail(f"{what}: found {found!r}, expected {expected!r}")
