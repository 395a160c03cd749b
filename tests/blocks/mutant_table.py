"""Mutants of the compensated arithmetic in `blocks`: what is changed in which file."""

from __future__ import annotations

from mutant_table_gemm import GEMM_MUTANTS
from mutant_table_softmax import SOFTMAX_MUTANTS

# name: (file, text that occurs once in it, what becomes of that text)
MUTANTS: dict[str, tuple[str, str, str]] = {
    **SOFTMAX_MUTANTS,
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
        "return high, x - high, exact",
        "return high, high - x, exact",
    ),
    "row_sum: no finite guard": (
        "compensated.py",
        "tl.where(tl.abs(comp) < INF, comp, 0.0)",
        "comp",
    ),
    "row_sum: no guard of the range": (
        "compensated.py",
        "tl.where(exact, power_of_two(exponent), 0.0)[:, None]",
        "power_of_two(exponent)[:, None]",
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
        "last = carried_error + last",
        "last = last",
    ),
    "row_sum2: no rest": ("accurate.py", "last = carried_error + last", "last = carried_error"),
    "row_sum2: no finite guard": (
        "accurate.py",
        "tl.where(finite, total, first), tl.where(finite, error, 0.0)",
        "total, error",
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
    "row_moments: the mean lacks nothing": (
        "reduce.py",
        "return mean, apart_sum / count, spread",
        "return mean, apart_sum * 0.0, spread",
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
    "natural_base: high in one part": (
        "scores.py",
        "tl.where(tl.abs(base) < 2.0**16, base, tl.floor(base * (1 / 256)) * 256.0)",
        "base",
    ),
    "natural_base: low in one part": (
        "scores.py",
        "tl.where(tl.abs(base) < 2.0**16, base, tl.floor(base * (1 / 256)) * 256.0)",
        "tl.floor(base * (1 / 256)) * 256.0",
    ),
    "natural_base: a huge pivot as it is": (
        "scores.py",
        "tl.where(candidate == base, top, base * LN2)",
        "base * LN2",
    ),
    "natural_base: any tile's own pivot": (
        "scores.py",
        "tl.where(candidate == base, top, base * LN2)",
        "top",
    ),
    "natural_base: no upper end": (
        "scores.py",
        "tl.maximum(high, (top - low) - 11.0), low",
        "high, low",
    ),
    "online_update: natural scores in log2 units": (
        "softmax.py",
        "weights = tl.exp((scores - high[:, None]) - low[:, None])",
        "weights = exponential(to_log2(scores) - base[:, None], NATURAL)",
    ),
    **GEMM_MUTANTS,
}
