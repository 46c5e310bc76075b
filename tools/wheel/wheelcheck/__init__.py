"""Checks of a built wheel: what `tools/wheel/verify.py` runs before a release."""
