"""The passes of `bishengir-opt` that turn Linalg on tensors into LLVM's dialect."""

from __future__ import annotations

# Broadcasts and fills as generic operations, so that they fuse with what uses them. Matrix
# products stay named: they become calls.
_BEFORE_FUSION = '["linalg.broadcast", "linalg.fill"]'

TRANSFORMS = f"""
module attributes {{transform.with_named_sequence}} {{
  transform.named_sequence @open_named(%m: !transform.any_op {{transform.consumed}}) {{
    %0 = transform.structured.match ops{{{_BEFORE_FUSION}}} in %m
      : (!transform.any_op) -> !transform.any_op
    %1 = transform.structured.generalize %0 : (!transform.any_op) -> !transform.any_op
    transform.yield
  }}
  // Products that are not calls: (m, n, k) becomes (m, k, n), which vectorises over n.
  // Row reductions: eight rows at a time, so that eight chains of dependent steps run side by side.
  transform.named_sequence @order_loops(%m: !transform.any_op {{transform.consumed}}) {{
    %0 = transform.structured.match ops{{["linalg.matmul"]}} in %m
      : (!transform.any_op) -> !transform.any_op
    %1 = transform.structured.generalize %0 : (!transform.any_op) -> !transform.any_op
    %2 = transform.structured.interchange %1 iterator_interchange = [0, 2, 1]
      : (!transform.any_op) -> !transform.any_op
    %3 = transform.structured.match ops{{["linalg.batch_matmul"]}} in %m
      : (!transform.any_op) -> !transform.any_op
    %4 = transform.structured.generalize %3 : (!transform.any_op) -> !transform.any_op
    %5 = transform.structured.interchange %4 iterator_interchange = [0, 1, 3, 2]
      : (!transform.any_op) -> !transform.any_op
    %6 = transform.structured.match ops{{["linalg.reduce"]}}
      attributes {{dimensions = array<i64: 1>}} in %m : (!transform.any_op) -> !transform.any_op
    %7 = transform.structured.generalize %6 : (!transform.any_op) -> !transform.any_op
    %8, %loop = transform.structured.tile_using_for %7 tile_sizes [8, 0]
      : (!transform.any_op) -> (!transform.any_op, !transform.any_op)
    %9 = transform.structured.interchange %8 iterator_interchange = [1, 0]
      : (!transform.any_op) -> !transform.any_op
    transform.yield
  }}
}}
"""

TO_BUFFERS = (
    "--transform-interpreter=entry-point=open_named",
    "--convert-elementwise-to-linalg",
    "--linalg-fold-unit-extent-dims",
    "--canonicalize",
    "--linalg-fuse-elementwise-ops",
    "--canonicalize",
    "--cse",
    "--eliminate-empty-tensors",
    "--empty-tensor-to-alloc-tensor",
    "--one-shot-bufferize=allow-return-allocs-from-loops=true",
    "--canonicalize",
    "--cse",
    "--buffer-hoisting",
    "--buffer-loop-hoisting",
    # a loop that makes new buffers in each round gives the old ones back
    "--buffer-deallocation-pipeline",
    "--canonicalize",
    "--cse",
)

TO_LLVM = (
    "--transform-interpreter=entry-point=order_loops",
    "--canonicalize",
    "--convert-linalg-to-loops",
    "--fold-memref-alias-ops",
    "--expand-strided-metadata",
    "--lower-affine",
    "--canonicalize",
    "--cse",
    "--loop-invariant-code-motion",
    # 16-bit functions are computed in fp32 and rounded; bf16 arithmetic likewise
    "--math-legalize-to-f32",
    "--arith-emulate-unsupported-floats=source-types=bf16 target-type=f32",
    "--convert-scf-to-cf",
    "--convert-math-to-llvm",
    "--convert-math-to-libm",
    "--convert-complex-to-llvm",
    "--memref-expand",
    "--convert-arith-to-llvm",
    "--convert-index-to-llvm",
    "--finalize-memref-to-llvm",
    "--convert-func-to-llvm",
    "--convert-cf-to-llvm",
    "--lower-affine",
    "--convert-arith-to-llvm",
    "--reconcile-unrealized-casts",
    "--canonicalize",
    "--cse",
)
