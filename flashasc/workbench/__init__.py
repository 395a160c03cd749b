"""What the Ascend compiler makes of kernels, the package's own and yours: check, estimate, search.

On the command line: `python -m flashasc ascend --help`. Needs the packages of
`pip install 'flashasc[offline]'` when called, and none of them to import.
"""

from flashasc.workbench.case import Case, lower_case
from flashasc.workbench.checks import Verdict, check, require_toolchain
from flashasc.workbench.shipped import DEFAULT_TARGETS, Use, full_name, shipped_cases

__all__ = [
    "DEFAULT_TARGETS",
    "Case",
    "Use",
    "Verdict",
    "check",
    "full_name",
    "lower_case",
    "require_toolchain",
    "shipped_cases",
]
