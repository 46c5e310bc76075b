"""A project downstream of cutwheel: its ops in eager Python, and in a program saved to a file."""

from __future__ import annotations

from .model import Classifier
from .program import export, load, save

__all__ = ["Classifier", "export", "load", "save"]
