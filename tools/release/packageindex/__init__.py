"""The static package index: what `tools/release/index.py` builds and verifies."""
