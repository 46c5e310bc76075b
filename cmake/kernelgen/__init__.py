"""kernelgen: from the kernel manifests to CUDA sources, dispatch tables and build lists.

Runs when the build is configured and never ships in the wheel. The way through it:
`manifest` reads and validates, `families` knows what can be built, `naming` spells,
`emit` writes, `generate` is the command line. An epilogue is an expression: `expression` parses it
to a `tree`, `epilogue` checks what it means, `spelling` and `cpp` write it as C++.
"""
