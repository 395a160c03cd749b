"""Mutants of the compensated arithmetic in `blocks`: what is changed in which file."""

from __future__ import annotations

from mutant_table_gemm import GEMM_MUTANTS

# name: (file, text that occurs once in it, what becomes of that text)
MUTANTS: dict[str, tuple[str, str, str]] = {
    "two_sum: no error of a": (
        "compensated.py",
        "error = (a - (total - b_rounded)) + (b - b_rounded)",
        "error = b - b_rounded",
    ),
    "two_sum: no error of b": (
        "compensated.py",
        "error = (a - (total - b_rounded)) + (b - b_rounded)",
        "error = a - (total - b_rounded)",
    ),
    "two_sum: sign of the error of b": (
        "compensated.py",
        "b_rounded)) + (b - b_rounded)",
        "b_rounded)) - (b - b_rounded)",
    ),
    "two_sum: operands swapped in one place": (
        "compensated.py",
        "b_rounded = total - a\n",
        "b_rounded = total - b\n",
    ),
    "fast_two_sum: sign": ("compensated.py", "error = b - (total - a)", "error = (total - a) - b"),
    "fast_two_sum: operands swapped": (
        "compensated.py",
        "error = b - (total - a)",
        "error = a - (total - b)",
    ),
    "fast_two_sum: no error": (
        "compensated.py",
        "error = b - (total - a)",
        "error = total - total",
    ),
    "fold: no finite guard": (
        "compensated.py",
        "comp = tl.where(tl.abs(total) < INF, error, 0.0)",
        "comp = error",
    ),
    "fold: guards the wrong number": (
        "compensated.py",
        "comp = tl.where(tl.abs(total) < INF, error, 0.0)",
        "comp = tl.where(tl.abs(acc) < INF, error, 0.0)",
    ),
    "fold: operands swapped": (
        "compensated.py",
        "fast_two_sum(acc, addend)",
        "fast_two_sum(addend, acc)",
    ),
    "kahan_add: no compensation": ("compensated.py", "fold(acc, x + comp)", "fold(acc, x)"),
    "kahan_add: sign of the compensation": (
        "compensated.py",
        "fold(acc, x + comp)",
        "fold(acc, x - comp)",
    ),
    "merge: no compensations": (
        "compensated.py",
        "error + (comp_a + comp_b)",
        "error",
    ),
    "merge: no error": ("compensated.py", "error + (comp_a + comp_b)", "comp_a + comp_b"),
    "merge: sign of a compensation": (
        "compensated.py",
        "error + (comp_a + comp_b)",
        "error + (comp_a - comp_b)",
    ),
    "merge: compensations in an order": (
        "compensated.py",
        "error + (comp_a + comp_b)",
        "(error + comp_a) + comp_b",
    ),
    "merge: sum of unordered numbers": (
        "compensated.py",
        "total, error = two_sum(acc_a, acc_b)",
        "total, error = fast_two_sum(acc_a, acc_b)",
    ),
    "merge: no finite guard of the sum": (
        "compensated.py",
        "return tl.where(finite, acc, total), ",
        "return acc, ",
    ),
    "merge: no finite guard of the compensation": (
        "compensated.py",
        "total), tl.where(finite, comp, 0.0)",
        "total), comp",
    ),
    "merge: guards the sum before the compensations": (
        "compensated.py",
        "finite = tl.abs(acc) < INF",
        "finite = tl.abs(total) < INF",
    ),
    "power_of_two: not exact": (
        "compensated.py",
        "return (biased << 23).to(tl.float32, bitcast=True)",
        "return tl.where(biased > 0, tl.exp(exponent * 0.6931471805599453), 0.0)",
    ),
    "power_of_two: bias": ("compensated.py", ".to(tl.int32) + 127", ".to(tl.int32) + 126"),
    "power_of_two: never 0": (
        "compensated.py",
        "tl.maximum(exponent, -127.0)",
        "tl.maximum(exponent, -126.0)",
    ),
    "row_sum: grid too fine for the sum": (
        "compensated.py",
        "(2.0 * x.shape[1])",
        "(0.25 * x.shape[1])",
    ),
    "row_sum: grid too coarse": (
        "compensated.py",
        "(2.0 * x.shape[1])",
        "(256.0 * x.shape[1])",
    ),
    "row_sum: no low part": (
        "compensated.py",
        "comp = tl.sum(low, axis=1)",
        "comp = tl.sum(low - low, axis=1)",
    ),
    "row_sum: sign of the low part": (
        "compensated.py",
        "return high, x - high, exponent",
        "return high, high - x, exponent",
    ),
    "row_sum: no finite guard": (
        "compensated.py",
        "exact = exact & (tl.abs(comp) < INF)",
        "exact = exact",
    ),
    "row_sum: no guard of the range": (
        "compensated.py",
        "exact = exact & (tl.abs(comp) < INF)",
        "exact = tl.abs(comp) < INF",
    ),
    "sum2_add: no error of the addition": (
        "accurate.py",
        "fast_two_sum(total, comp + error)",
        "fast_two_sum(total, comp)",
    ),
    "sum2_add: no compensation": (
        "accurate.py",
        "fast_two_sum(total, comp + error)",
        "fast_two_sum(total, error)",
    ),
    "sum2_add: sign of the error": (
        "accurate.py",
        "fast_two_sum(total, comp + error)",
        "fast_two_sum(total, comp - error)",
    ),
    "sum2_add: an unordered sum": ("accurate.py", "two_sum(acc, x)", "fast_two_sum(acc, x)"),
    "sum2_add: no finite guard of the sum": ("accurate.py", "tl.where(finite, acc, total)", "acc"),
    "sum2_add: no finite guard of the compensation": (
        "accurate.py",
        "tl.where(finite, comp, 0.0)",
        "comp",
    ),
    "row_sum2: two extractions less": (
        "accurate.py",
        "tl.static_range(EXTRACTIONS - 1)",
        "tl.static_range(EXTRACTIONS - 3)",
    ),
    "row_sum2: no compensations": ("accurate.py", "row_sum(comp)", "row_sum(comp - comp)"),
    "row_sum2: no errors of the compensations": (
        "accurate.py",
        "carried_error + tl.sum(rest, axis=1)",
        "tl.sum(rest, axis=1)",
    ),
    "row_sum2: no rest": ("accurate.py", "carried_error + tl.sum(rest, axis=1)", "carried_error"),
    "row_sum2: no guard of the range": (
        "accurate.py",
        "exact = exact & (tl.abs(error) < INF)",
        "exact = tl.abs(error) < INF",
    ),
    "row_sum2: no finite guard": (
        "accurate.py",
        "exact = exact & (tl.abs(error) < INF)",
        "exact = exact",
    ),
    "accumulate: Kahan is plain": (
        "reduce.py",
        "acc, comp = kahan_add(acc, comp, x)",
        "acc = acc + x",
    ),
    "accumulate: sum2 is Kahan": (
        "reduce.py",
        "acc, comp = sum2_add(acc, comp, x)",
        "acc, comp = kahan_add(acc, comp, x)",
    ),
    "row_total: no compensations": (
        "reduce.py",
        "error = error + tl.sum(comp, axis=1)",
        "error = error",
    ),
    "row_total: sum2 is Kahan": (
        "reduce.py",
        "total, error = row_sum2(acc, comp)",
        "total, error = row_sum(acc)",
    ),
    "tile_sum: no error": ("reduce.py", "    return total + comp\n", "    return total\n"),
    "row_max: a NaN is lost": (
        "reduce.py",
        'tl.where(nans > 0.0, float("nan"), largest)',
        "largest",
    ),
    "deviations: outside counts": ("reduce.py", "tl.where(inside, x - mean, 0.0)", "x - mean"),
    "corrected_spread: no correction": (
        "reduce.py",
        "squares - deviation_sum * (deviation_sum / count)",
        "squares",
    ),
    "corrected_spread: below 0": ("reduce.py", "tl.where(spread < 0.0, 0.0, spread)", "spread"),
    "row_moments: squares of the numbers": (
        "reduce.py",
        "tile_sum(apart * apart, METHOD)",
        "tile_sum(x * x, METHOD)",
    ),
    "row_norm: not scaled": (
        "reduce.py",
        "square_sum(x * scale[:, None], METHOD)) * unscale",
        "square_sum(x, METHOD))",
    ),
    "row_norm: not scaled back": ("reduce.py", "METHOD)) * unscale", "METHOD))"),
    "scale_of: no lower end": (
        "reduce.py",
        "tl.maximum(exponent, -126.0), 126.0",
        "tl.maximum(exponent, -127.0), 126.0",
    ),
    "scale_of: no upper end": (
        "reduce.py",
        "tl.maximum(exponent, -126.0), 126.0",
        "tl.maximum(exponent, -126.0), 128.0",
    ),
    "pivot_of: not finite": (
        "reduce.py",
        "tl.where(tl.abs(largest) < INF, largest, 0.0)",
        "largest",
    ),
    "row_logsumexp: no pivot": ("reduce.py", "pivot + tl.log", "tl.log"),
    "row_softmax: not divided": (
        "reduce.py",
        "tl.div_rn(weights, tl.broadcast_to(divisor[:, None], weights.shape))",
        "weights",
    ),
    "normalised: no mean": ("reduce.py", "        x = x - mean\n", "        x = x\n"),
    "normalised: no eps": ("reduce.py", "tl.sqrt_rn(mean_square + eps)", "tl.sqrt_rn(mean_square)"),
    "rounded_away: nothing": (
        "gemm.py",
        "(x - rounded.to(tl.float32)).to",
        "(x - x).to",
    ),
    "rounded_away: sign": (
        "gemm.py",
        "(x - rounded.to(tl.float32)).to",
        "(rounded.to(tl.float32) - x).to",
    ),
    "accumulate_product: no compensation": (
        "gemm.py",
        "dot_add(a, b, comp, DOT_PRECISION)",
        "dot(a, b, DOT_PRECISION)",
    ),
    "accumulate_product: operands swapped": (
        "gemm.py",
        "fold(acc, dot_add(a, b, comp, DOT_PRECISION))",
        "fold(dot_add(a, b, comp, DOT_PRECISION), acc)",
    ),
    "accumulate_product: old compensation kept": (
        "gemm.py",
        "acc, comp = fold(acc, dot_add(a, b, comp, DOT_PRECISION))",
        "acc, _ = fold(acc, dot_add(a, b, comp, DOT_PRECISION))",
    ),
    "accumulate_product: plain reads the compensation": (
        "gemm.py",
        "acc = dot_add(a, b, acc, DOT_PRECISION)",
        "acc = dot_add(a, b, acc + comp, DOT_PRECISION)",
    ),
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
        "raise_pivot(pivot, candidate, WHOLE, NATURAL)\n\n    weights",
        "raise_pivot(pivot, tl.max(scores, axis=1), False, NATURAL)\n\n    weights",
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
    "above: constant in one part": (
        "scores.py",
        "(x - pivot * LN2_HIGH) - pivot * LN2_LOW",
        "x - pivot * LN2",
    ),
    "above: no upper end": (
        "scores.py",
        "tl.where(distance > 11.0, 11.0, distance)",
        "distance",
    ),
    "online_update: split weights summed rounded": (
        "softmax.py",
        'METHOD == "plain" or WHOLE:',
        'METHOD == "plain" or (WHOLE and not SPLIT):',
    ),
    "online_update: 16-bit weights summed unrounded": (
        "softmax.py",
        "rescale, factors.to(tl.float32), METHOD",
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
        "rounded_away(weights, factors)",
        "(factors - factors)",
    ),
    "online_update: low part taken for the weights": (
        "softmax.py",
        "rounded_away(weights, factors)",
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
    **GEMM_MUTANTS,
}
