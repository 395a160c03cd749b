"""The kernel in Triton's interpreter, a process of its own: the mode is fixed when it starts."""

from __future__ import annotations

import pytest

from flashasc import _triton
from tests.conftest import RunPython

CODE = """
import sys, torch, flashasc
from flashasc.testing import Case, assert_accurate, normal

dtype = getattr(torch, sys.argv[1])
for case in (
    Case(Hq=2, Hk=1, Sq=70, Sk=130, D=40, Dv=24, dtype=dtype, causal=True),
    Case(Hq=1, Sq=20, Sk=9, D=16, dtype=dtype, causal=True, layout="BSND"),
):
    q, k, v = normal(case)
    plan = flashasc.explain(q, k, v, impl="triton", **case.options)
    assert plan.route == "interpreter", plan
    assert "TRITON_INTERPRET=1" in str(plan)
    for precision in ("standard", "compensated"):
        out, lse = flashasc.attention(
            q, k, v, impl="triton", return_lse=True, precision=precision, **case.options
        )
        assert_accurate(out, q, k, v, lse, **case.options)
assert flashasc.explain(q, k, v, **case.options).route == "reference"
"""


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_interpreter_computes_the_same(run_python: RunPython, dtype: str) -> None:
    if _triton.installed().kind is None:
        pytest.skip("no Triton here")
    run_python(CODE, dtype, env={"TRITON_INTERPRET": "1"})
