"""Layered verification: communication, then computation, then the fused whole, on every rank.

`torchrun --nproc_per_node=N -m flashasc verify` runs it; docs/context-parallel.md says what each
layer proves.
"""

from .faults import FAULTS, KILLED, Fault
from .outcomes import ALL_OPS, LAYERS, OPS, Outcome, Report
from .peer_faults import FUSED_FAULTS
from .reach import require_reach
from .runner import Request, verification_mesh, verify

__all__ = [
    "ALL_OPS",
    "FAULTS",
    "FUSED_FAULTS",
    "KILLED",
    "LAYERS",
    "OPS",
    "Fault",
    "Outcome",
    "Report",
    "Request",
    "require_reach",
    "verification_mesh",
    "verify",
]
