"""Everything a caller can get wrong, checked before anything is computed."""

from .arguments import Arguments
from .attention import validate_attention
from .derivatives import no_forward_mode
from .merging import validate_merge
from .values import check_values

__all__ = ["Arguments", "check_values", "no_forward_mode", "validate_attention", "validate_merge"]
