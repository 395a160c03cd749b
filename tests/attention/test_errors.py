"""What a caller can get wrong, one by one: the class of the error, and what its message names."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch

import flashasc
from flashasc import _dispatch, _target, _triton, _validate


def tensor(*shape: int, dtype: torch.dtype = torch.float32, **kwargs: Any) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype, **kwargs)


Q = tensor(2, 4, 5, 8)
KV = tensor(2, 2, 7, 8)
NESTED = torch.nested.nested_tensor([tensor(4, 5, 8), tensor(3, 5, 8)], layout=torch.jagged)

# name of the mistake: (arguments that differ from a right call, error, what the message must name)
MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], tuple[str, ...]]] = {
    "q is a list": ({"q": [1.0]}, TypeError, ("q", "torch.Tensor", "list")),
    "k is None": ({"k": None}, TypeError, ("k", "torch.Tensor", "NoneType")),
    "sparse v": ({"v": KV.to_sparse()}, TypeError, ("v", "strided", "sparse")),
    "nested q": ({"q": NESTED}, TypeError, ("q", "nested", "padded")),
    "8 bits": ({"q": Q.to(torch.float8_e4m3fn)}, TypeError, ("q", "float16", "float8", "Cast")),
    "3 dimensions": ({"q": Q[0]}, ValueError, ("q", "4 dim", "(4, 5, 8)", "unsqueeze")),
    "5 dimensions": ({"k": KV[None]}, ValueError, ("k", "4 dim", "(1, 2, 2, 7, 8)")),
    "integers": ({"v": KV.int()}, TypeError, ("v", "float16", "torch.int32", "Cast")),
    "complex": ({"q": Q.to(torch.complex64)}, TypeError, ("q", "float16", "complex64")),
    "mixed dtypes": ({"k": KV.half()}, TypeError, ("k", "dtype", "float32", "float16", "cast")),
    "mixed v dtype": ({"v": KV.double()}, TypeError, ("v", "dtype", "float64", "cast")),
    "mixed devices": ({"v": KV.to("meta")}, ValueError, ("v", "device", "cpu", "meta")),
    "batch": ({"k": KV[:1]}, ValueError, ("batch", "(1, 2, 7, 8)", "Expand")),
    "batch of v": ({"v": tensor(3, 2, 7, 8)}, ValueError, ("batch", "(3, 2, 7, 8)")),
    "head size": ({"k": tensor(2, 2, 7, 9)}, ValueError, ("head size", "8 and 9")),
    "keys and values": ({"v": tensor(2, 2, 6, 8)}, ValueError, ("k and v", "2 x 7 and 2 x 6")),
    "value heads": ({"v": tensor(2, 1, 7, 8)}, ValueError, ("k and v", "2 x 7 and 1 x 7")),
    "groups": (
        {"q": tensor(2, 3, 5, 8)}, ValueError, ("multiple", "Hq = 3, Hk = 2", 'layout="BSND"')
    ),
    "fewer query heads": ({"q": tensor(2, 1, 5, 8)}, ValueError, ("multiple", "Hq = 1, Hk = 2")),
    "no key heads": (
        {"k": tensor(2, 0, 7, 8), "v": tensor(2, 0, 7, 8)}, ValueError, ("multiple", "Hk = 0")
    ),
    "empty head": (
        {"q": tensor(2, 4, 5, 0), "k": tensor(2, 2, 7, 0)}, ValueError, ("at least 1", "D = 0")
    ),
    "empty value": ({"v": tensor(2, 2, 7, 0)}, ValueError, ("at least 1", "Dv = 0")),
    "layout": ({"layout": "SBHD"}, ValueError, ("layout", "BNSD", "BSND", "'SBHD'")),
    "layout in small letters": ({"layout": "bsnd"}, ValueError, ("layout", "BSND", "'bsnd'")),
    "layout is None": ({"layout": None}, TypeError, ("layout", "BNSD", "None")),
    "wrong layout": ({"layout": "BSND"}, ValueError, ("BSND", "[B, S, H, D]", 'layout="BNSD"')),
    "causal": ({"causal": 1}, TypeError, ("causal", "True or False", "int 1")),
    "causal is None": ({"causal": None}, TypeError, ("causal", "NoneType")),
    "alignment": ({"causal_align": "left"}, ValueError, ("causal_align", "top_left", "'left'")),
    "alignment without causal": (
        {"causal_align": "left", "causal": False}, ValueError, ("causal_align", "'left'")
    ),
    "scale is text": ({"scale": "1"}, TypeError, ("scale", "number", "str '1'")),
    "scale is a flag": ({"scale": True}, TypeError, ("scale", "bool")),
    "scale is a tensor": ({"scale": torch.ones(())}, TypeError, ("scale", "tensor", ".item()")),
    "scale is NaN": ({"scale": float("nan")}, ValueError, ("scale", "finite", "nan")),
    "scale beyond float": ({"scale": 10**400}, ValueError, ("scale", "finite", "1000000", "q")),
    "scale beyond float32": ({"scale": -2.5e38}, ValueError, ("scale", "2.36e+38", "-2.5e+38")),
    "scale is complex": ({"scale": 1j}, TypeError, ("scale", "number", "complex 1j")),
    "scale is inf": ({"scale": float("inf")}, ValueError, ("scale", "finite", "inf")),
    "precision": ({"precision": "best"}, ValueError, ("precision", "compensated", "'best'")),
    "high precision of float32": (
        {"precision": "high"}, NotImplementedError, ("high", "float16", "float32", "compensated")
    ),
    "out_dtype": (
        {"out_dtype": torch.float16}, ValueError, ("out_dtype", "float32", "float16", "Cast")
    ),
    "out_dtype beyond float32": (
        {"out_dtype": torch.float64}, ValueError, ("out_dtype", "torch.float32 where", "float64")
    ),
    "out_dtype of other 16 bits": (
        {"q": Q.half(), "k": KV.half(), "v": KV.half(), "out_dtype": torch.bfloat16},
        ValueError,
        ("out_dtype", "torch.float32 or torch.float16", "bfloat16"),
    ),
    "out_dtype is text": ({"out_dtype": "float32"}, TypeError, ("out_dtype", "'float32'")),
    "return_lse": ({"return_lse": "yes"}, TypeError, ("return_lse", "'yes'")),
    "impl": ({"impl": "cuda"}, ValueError, ("impl", "triton", "reference", "'cuda'")),
    "impl is None": ({"impl": None}, TypeError, ("impl", "None")),
    "kernel in float64": (
        {"q": Q.double(), "k": KV.double(), "v": KV.double(), "impl": "triton"},
        NotImplementedError,
        ("float64", "reference"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "entry", [flashasc.attention, flashasc.explain, flashasc.check], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_named(mistake: str, entry: Any) -> None:
    changes, error, named = MISTAKES[mistake]
    arguments = {"q": Q, "k": KV, "v": KV, **changes}
    with pytest.raises(error) as raised:
        entry(**arguments)
    assert type(raised.value) is error
    message = str(raised.value)
    missing = [name for name in named if name.lower() not in message.lower()]
    assert not missing, message
    # text for users: no private name of ours in it
    assert not re.search(r"(?<![\w.])_[a-z]\w+", message), message


def test_the_right_call_of_the_table_is_right() -> None:
    assert flashasc.attention(Q, KV, KV).shape == Q.shape


@pytest.mark.parametrize(
    "name", ["dropout_p", "is_causal", "attn_mask", "window_size", "enable_gqa", "softmax_scale"]
)
def test_unknown_option_is_a_type_error(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        flashasc.attention(Q, KV, KV, **{name: None})


def test_options_are_keyword_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        flashasc.attention(Q, KV, KV, "BNSD")  # type: ignore[misc]


def test_head_beyond_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dispatch, "require", lambda *a, **k: None)
    wide = tensor(1, 1, 4, 257)
    with pytest.raises(NotImplementedError, match=r"257.*1 to 256.*reference"):
        flashasc.attention(wide, wide, wide, impl="triton")
    assert flashasc.attention(wide, wide, wide).shape == wide.shape


def test_target_without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dispatch, "require", lambda *a, **k: None)
    monkeypatch.setenv("FLASHASC_NATIVE_ARCH", "Ascend310P3")
    with pytest.raises(NotImplementedError, match=r"Ascend310P3.*Ascend910B3.*reference"):
        flashasc.explain(Q, KV, KV, impl="triton")


def test_device_without_kernels() -> None:
    with pytest.raises(NotImplementedError, match=r"xpu.*reference"):
        _target.target_of(torch.device("xpu"))


@pytest.mark.parametrize(
    "found, error",
    [
        (_triton.TritonInfo(None), ImportError),
        (_triton.TritonInfo("upstream", "3.6.0"), RuntimeError),
        (_triton.TritonInfo("shadowed", detail="files of both"), RuntimeError),
    ],
    ids=lambda value: getattr(value, "kind", None) or getattr(value, "__name__", "none"),
)
def test_kernel_without_its_triton(
    found: _triton.TritonInfo, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(_triton, "installed", lambda: found)
    with pytest.raises(error, match=r"flashasc\[offline\]"):
        flashasc.attention(Q, KV, KV, impl="triton")
    # and it is never replaced by something else, nor needed where no kernel is
    assert flashasc.attention(Q, KV, KV).shape == Q.shape


def test_columns_apart_on_an_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    npu = _target.Target("ascend", "Ascend910B3", 20)
    monkeypatch.setattr(_dispatch, "require", lambda *a, **k: None)
    monkeypatch.setattr(_dispatch, "target_of", lambda device: npu)
    apart = KV.repeat_interleave(2, dim=-1)[..., ::2]
    arguments = _validate.Arguments(
        Q, KV, apart, causal_align="top_left", precision="standard", impl="triton"
    )
    problem = _validate.validate_attention(arguments)
    assert not problem.in_pieces
    on_npu = dataclasses.replace(problem, device=torch.device("cuda"))
    with pytest.raises(NotImplementedError, match=r"Ascend910B3.*last stride.*contiguous"):
        _dispatch.plan_attention(on_npu, "triton")
    # columns in one piece are as good as rows
    arguments = arguments._replace(v=KV.mT.contiguous().mT)
    columns = _validate.validate_attention(arguments)
    on_npu = dataclasses.replace(columns, device=torch.device("cuda"))
    assert _dispatch.plan_attention(on_npu, "triton").route == "device"
