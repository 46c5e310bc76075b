"""Benchmarks of cutwheel against torch: shapes as data, one harness, results as data.

Run as ``python -m benchmarks``; README.md says how the numbers are made.
"""
