"""Triton device functions that kernels are built from: tiles in, tiles out.

Import the module that holds what you need (`from blocks.softmax import online_update`); the
catalogue and the error bounds are in `blocks/README.md`. Needs a Triton: triton-ascend or upstream.
"""
