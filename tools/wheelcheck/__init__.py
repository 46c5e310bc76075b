"""Checks of a built wheel: what `tools/verify_wheel.py` runs before a release."""
