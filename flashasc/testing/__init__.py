"""What a result is measured against: exact attention, error budgets, and inputs that break things.

For this package's tests and benchmarks, and for checking an attention of your own:

    from flashasc.testing import Case, assert_accurate, normal

    case = Case(Hq=8, Hk=2, Sq=100, Sk=300, D=64, dtype=torch.bfloat16, causal=True)
    q, k, v = normal(case)
    assert_accurate(my_attention(q, k, v), q, k, v, **case.options)

Everything is seeded, plain PyTorch, dense (O(Sq * Sk) memory) and runs on any device.
"""

from ..precision.rounding import relative_error, round_once, share_correctly_rounded, ulps
from ..precision.tolerances import TOLERANCES, Tolerance
from .accuracy import assert_accurate, eager_attention, error_budget, exact_attention
from .eager import Result
from .inputs import (
    INPUTS,
    Case,
    Inputs,
    cut_from_nan,
    ill_conditioned,
    normal,
    poisoned_memory,
    positive,
    rising,
    sink,
)
from .products import ill_conditioned_factors, normal_factors, positive_factors

__all__ = [
    "INPUTS",
    "TOLERANCES",
    "Case",
    "Inputs",
    "Result",
    "Tolerance",
    "assert_accurate",
    "cut_from_nan",
    "eager_attention",
    "error_budget",
    "exact_attention",
    "ill_conditioned",
    "ill_conditioned_factors",
    "normal",
    "normal_factors",
    "poisoned_memory",
    "positive",
    "positive_factors",
    "relative_error",
    "rising",
    "round_once",
    "share_correctly_rounded",
    "sink",
    "ulps",
]
