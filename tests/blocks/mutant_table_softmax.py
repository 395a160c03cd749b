"""Mutants of the online softmax in `blocks`; see `mutant_table`."""

from __future__ import annotations

SOFTMAX_MUTANTS: dict[str, tuple[str, str, str]] = {
    "add_weights: sum not rescaled": (
        "softmax.py",
        "kahan_add(total * rescale, comp * rescale, tile_sum)",
        "kahan_add(total, comp * rescale, tile_sum)",
    ),
    "add_weights: compensation not rescaled": (
        "softmax.py",
        "kahan_add(total * rescale, comp * rescale, tile_sum)",
        "kahan_add(total * rescale, comp, tile_sum)",
    ),
    "exponential: natural as log2": (
        "softmax.py",
        "weight = tl.exp(score)",
        "weight = tl.exp2(score)",
    ),
    "exponential: log2 as natural": (
        "softmax.py",
        "weight = tl.exp2(score)",
        "weight = tl.exp(score)",
    ),
    "raise_pivot: natural rescale in log2 units": (
        "softmax.py",
        "exponential(pivot - base, NATURAL)",
        "exponential(pivot - base, False)",
    ),
    "raise_pivot: rescale not exact": (
        "softmax.py",
        "rescale = power_of_two(pivot - base)",
        "rescale = tl.exp((pivot - base) * LN2)",
    ),
    "raise_pivot: no finite base": (
        "softmax.py",
        "base = tl.where(raised == NEG_INF, 0.0, raised)",
        "base = raised",
    ),
    "pivot_of: not a whole number": (
        "softmax.py",
        "    if WHOLE:\n        pivot = tl.ceil(top)\n",
        "",
    ),
    "online_update: pivot of split weights not a whole number": (
        "softmax.py",
        "WHOLE: tl.constexpr = SPLIT or values.dtype",
        "WHOLE: tl.constexpr = values.dtype",
    ),
    "online_update: row maximum and inexact rescale": (
        "softmax.py",
        "raise_pivot(pivot, candidate, WHOLE, NATURAL)\n\n    if NATURAL_SCORES",
        "raise_pivot(pivot, top, False, NATURAL)\n\n    if NATURAL_SCORES",
    ),
    "pivot_of: fp16 pivot not lowered": (
        "softmax.py",
        "pivot - (FP16_PIVOT_DROP * LN2 if NATURAL else FP16_PIVOT_DROP)",
        "pivot",
    ),
    "pivot_of: fp16 pivot lowered by 14 in natural units": (
        "softmax.py",
        "pivot - (FP16_PIVOT_DROP * LN2 if NATURAL else FP16_PIVOT_DROP)",
        "pivot - FP16_PIVOT_DROP",
    ),
    "pivot_of: fp16 pivot always lowered": (
        "softmax.py",
        "tl.where(tl.abs(pivot) < FP16_PIVOT_DROP_END, lowered, pivot)",
        "lowered",
    ),
    "add_sink: digits of the sink lost": (
        "softmax.py",
        "tl.exp(distance))",
        "tl.exp2(top - base))",
    ),
    "add_sink: pivot not lowered": (
        "softmax.py",
        "pivot_of(top, WHOLE, LOWERED, NATURAL), WHOLE",
        "pivot_of(top, WHOLE, False, NATURAL), WHOLE",
    ),
    "online_update: split weights summed rounded": (
        "softmax.py",
        'METHOD == "plain" or WHOLE:',
        'METHOD == "plain" or (WHOLE and not SPLIT):',
    ),
    "online_update: 16-bit weights summed unrounded": (
        "softmax.py",
        "rescale, rounded.to(tl.float32), METHOD",
        "rescale, weights, METHOD",
    ),
    "online_update: log-sum-exp of rounded weights": (
        "softmax.py",
        "add_weights(lse_sum, lse_sum_comp, rescale, weights, METHOD)",
        "add_weights(lse_sum, lse_sum_comp, rescale, factors.to(tl.float32), METHOD)",
    ),
    "online_update: accumulator not rescaled": (
        "softmax.py",
        "acc * rescale[:, None], comp, factors",
        "acc, comp, factors",
    ),
    "online_update: plain accumulator not rescaled": (
        "softmax.py",
        "acc * rescale[:, None], acc_comp, factors",
        "acc, acc_comp, factors",
    ),
    "online_update: compensation not rescaled": (
        "softmax.py",
        "comp = acc_comp * rescale[:, None]",
        "comp = acc_comp.to(tl.float32)",
    ),
    "online_update: compensation not kept": (
        "softmax.py",
        "acc_comp = comp.to(acc_comp.dtype)",
        "acc_comp = (comp * 0.0).to(acc_comp.dtype)",
    ),
    "online_update: low part of the weights dropped": (
        "softmax.py",
        "rounded_away(weights, rounded)",
        "(factors - factors)",
    ),
    "online_update: low part taken for the weights": (
        "softmax.py",
        "rounded_away(weights, rounded)",
        "factors",
    ),
    "online_update: segment's product added to the accumulator": (
        "softmax.py",
        "            comp = dot_add(factors, values, comp, DOT_PRECISION)\n",
        "            acc = dot_add(factors, values, acc, DOT_PRECISION)\n",
    ),
    "online_update: accumulator rescaled within a segment": (
        "softmax.py",
        "            comp = dot_add(factors, values, comp, DOT_PRECISION)\n",
        "            comp = dot_add(factors, values, comp, DOT_PRECISION)\n"
        "            acc = acc * rescale[:, None]\n",
    ),
    "online_update: segment starts with each tile": (
        "softmax.py",
        "            comp = dot_add(factors, values, comp, DOT_PRECISION)\n",
        "            comp = dot_add(factors, values, comp * 0.0, DOT_PRECISION)\n",
    ),
    "fold_segment: accumulator not rescaled": (
        "softmax.py",
        "return fold(acc * rescale[:, None], acc_comp)",
        "return fold(acc, acc_comp)",
    ),
    "fold_segment: pivots swapped": (
        "softmax.py",
        "raise_pivot(acc_pivot, pivot, WHOLE, NATURAL)",
        "raise_pivot(pivot, acc_pivot, WHOLE, NATURAL)",
    ),
    "fold_segment: operands swapped": (
        "softmax.py",
        "return fold(acc * rescale[:, None], acc_comp)",
        "return fold(acc_comp, acc * rescale[:, None])",
    ),
    "fold_segment: no compensation": (
        "softmax.py",
        "return fold(acc * rescale[:, None], acc_comp)",
        "return acc * rescale[:, None] + acc_comp, acc_comp * 0.0",
    ),
    "fold_segment: rescale in log2 units": (
        "softmax.py",
        "raise_pivot(acc_pivot, pivot, WHOLE, NATURAL)",
        "raise_pivot(acc_pivot, pivot, WHOLE, False)",
    ),
    "online_merge: factors swapped": (
        "softmax.py",
        "raise_pivot(pivot_b, pivot_a, WHOLE, NATURAL)",
        "raise_pivot(pivot_a, pivot_b, WHOLE, NATURAL)",
    ),
    "online_merge: factor in log2 units": (
        "softmax.py",
        "raise_pivot(pivot_b, pivot_a, WHOLE, NATURAL)",
        "raise_pivot(pivot_b, pivot_a, WHOLE, False)",
    ),
    "online_merge: sum's compensation not rescaled": (
        "softmax.py",
        "row_sum_comp_b * rescale_b",
        "row_sum_comp_b",
    ),
    "online_merge: log-sum-exp's compensation not rescaled": (
        "softmax.py",
        "lse_sum_comp_a * rescale_a",
        "lse_sum_comp_a",
    ),
    "online_merge: accumulator's compensation not rescaled": (
        "softmax.py",
        "acc_comp_b * column_b",
        "acc_comp_b.to(tl.float32)",
    ),
    "online_finalize: no compensation of the sum": (
        "softmax.py",
        "divisor = row_sum + row_sum_comp",
        "divisor = row_sum",
    ),
    "online_finalize: no compensation of the output": (
        "softmax.py",
        "tl.div_rn(acc + acc_comp, ",
        "tl.div_rn(acc, ",
    ),
    "online_finalize: no compensation of the log-sum-exp": (
        "softmax.py",
        "total = lse_sum + lse_sum_comp",
        "total = lse_sum",
    ),
    "online_finalize: log-sum-exp of the divisor": (
        "softmax.py",
        "    if SEPARATE_LSE:\n        total",
        "    if False:\n        total",
    ),
    "online_finalize: natural pivot converted": (
        "softmax.py",
        "    if not NATURAL:\n        pivot",
        "    if True:\n        pivot",
    ),
    "online_finalize: log2 pivot not converted": (
        "softmax.py",
        "pivot = pivot * LN2",
        "pivot = pivot * 1.0",
    ),
    "online_finalize: lowered pivot not raised before the sum": (
        "softmax.py",
        """        total = total * FP16_PIVOT_FACTOR
        pivot = pivot + (FP16_PIVOT_DROP * LN2 if NATURAL else FP16_PIVOT_DROP)
""",
        """        total = total * 1.0
""",
    ),
    "online_finalize: empty rows not zeroed": (
        "softmax.py",
        "out = tl.where(empty[:, None], 0.0, out)",
        "out = out * 1.0",
    ),
}
