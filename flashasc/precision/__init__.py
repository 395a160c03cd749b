"""Is an operator right, how right, and if not, where: for any operator on tensors.

    from flashasc.precision import compare, golden

    exact = golden(torch.nn.functional.softmax, scores, dim=-1)
    report = compare(my_softmax(scores), golden=exact)
    report.show()
    report.assert_ok()

`compare_precision` is the assertion for tests. docs/precision-toolkit.md goes through all of it,
docs/npu-and-gpu-disagree.md uses it on a fault. Plain PyTorch and NumPy; printing in colour needs
rich, pages and plots need jinja2 and matplotlib: pip install 'flashasc[precision]'.
"""

from .assertion import compare_bitwise, compare_precision
from .comparison import compare
from .files import load
from .golden import golden, golden_attention
from .inputs import (
    INPUTS,
    exactly_representable,
    flat,
    ill_conditioned,
    normal,
    outliers,
    sharp,
    uniform_positive,
)
from .report import Check, Report, TensorReport
from .rounding import relative_error, round_once, share_correctly_rounded, ulps
from .statistics import ULP_EDGES, Errors, NonFinite
from .sweeps import Sweep, SweepRow, sweep
from .tags import Tags
from .tolerances import (
    LEVELS,
    SINGLE_STANDARD,
    SMALL_VALUES,
    TOLERANCES,
    Level,
    Ratios,
    Tolerance,
)
from .worst import Element, Neighbour

__all__ = [
    "INPUTS",
    "LEVELS",
    "SINGLE_STANDARD",
    "SMALL_VALUES",
    "TOLERANCES",
    "ULP_EDGES",
    "Check",
    "Element",
    "Errors",
    "Level",
    "Neighbour",
    "NonFinite",
    "Ratios",
    "Report",
    "Sweep",
    "SweepRow",
    "Tags",
    "TensorReport",
    "Tolerance",
    "compare",
    "compare_bitwise",
    "compare_precision",
    "exactly_representable",
    "flat",
    "golden",
    "golden_attention",
    "ill_conditioned",
    "load",
    "normal",
    "outliers",
    "relative_error",
    "round_once",
    "share_correctly_rounded",
    "sharp",
    "sweep",
    "ulps",
    "uniform_positive",
]
