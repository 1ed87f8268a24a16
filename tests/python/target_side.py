"""Loads modules of the target side as the bootstrap does, each under its own name."""

import importlib
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "remote_agent"


def load(name):
    """The module; a second load gives the same one."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)
