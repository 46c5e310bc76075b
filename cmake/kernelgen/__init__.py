"""kernelgen: from the kernel manifests to CUDA sources, dispatch tables and build lists.

Runs when the build is configured and never ships in the wheel. `manifest` reads and validates,
`families` has the rules of each kernel family, `naming` spells, `emit` writes, `generate` is the
command line. An epilogue is an expression: in `epilogues`, `expression` parses it to a `tree`,
`epilogue` checks its meaning, `spelling` and `header` write it as C++. `tuning` writes the data of
the cost model and of measurements.
"""
