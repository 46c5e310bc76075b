"""The static package index: what `tools/build_index.py` builds and verifies."""
