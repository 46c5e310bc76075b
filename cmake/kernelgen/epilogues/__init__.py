"""Epilogues: expressions of manifests, parsed, checked and written as C++."""
