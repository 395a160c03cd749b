"""The kernels around those for few queries: new keys into a cache, and raw softmax states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flashasc._configs import TileConfig
from flashasc.ascend.frontend import _import_backend
from flashasc.workbench.case import Case
from flashasc.workbench.shipped import DEFAULT_TARGETS, DTYPES, Use, attention_case, rows_of

_TYPES = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32"}


def cache_cases(
    targets: Sequence[str] = DEFAULT_TARGETS, *, dtype: str | None = None, every_use: bool = True
) -> list[Case]:
    """List the kernel that appends to a cache, and those that make, join and finish states.

    Args:
        targets: processor names in full.
        dtype: "float16", "bfloat16" or "float32"; all by default.
        every_use: each kernel in all its uses; otherwise in the one that needs most room.

    Raises:
        ToolchainError: triton-ascend is not installed.
    """
    # the kernels import triton: without the right one, say what to install
    _import_backend()
    found: list[Case] = []
    for arch in targets:
        for name in [dtype] if dtype else list(_TYPES):
            # heads, D, Dv, keys of a page
            appended = [(32, 256, 256, 0), (8, 128, 128, 64), (1, 255, 1, 16)]
            finished = [(256, True, True), (128, False, True), (1, True, False)]
            if not every_use:
                appended, finished = appended[:1], finished[:1]
            found += [append_case(name, arch, *use) for use in appended]
            found += [finalize_case(name, arch, *use) for use in finished]
        if every_use:
            found += [
                state_case(row, arch)
                for row in rows_of(arch)
                if dtype is None or row.dtype == DTYPES[dtype]
            ]
        # states are float32, whatever the tensors were
        sizes = (256, 128, 1) if every_use else (256,)
        found += [merge_case(arch, Dv, whole) for Dv in sizes for whole in (False, True)]
    return found


def state_case(row: TileConfig, arch: str) -> Case:
    """The forward kernel, whose rows leave their raw state."""
    use = Use(row.max_head, row.max_head, with_lse=False, state=True, options=row.options)
    return attention_case(row, use, arch)


def append_case(dtype: str, arch: str, Hk: int, D: int, Dv: int, page: int) -> Case:
    """New tokens written into a cache of this kind."""
    from flashasc.kernels.append import append_constants, append_kv_kernel

    constants = append_constants(Hk, D, Dv, page=page, wide=False)
    constants |= {f"stride_{tensor}d": 1 for tensor in ("k", "v", "nk", "nv")}
    constants |= {} if page else {"table_ptr": None}
    pointers = dict.fromkeys(("k_ptr", "v_ptr", "new_k_ptr", "new_v_ptr"), _TYPES[dtype])
    types = {**pointers, "lens_ptr": "*i32", "table_ptr": "*i32"}
    use = f"Hk={Hk} D={D} Dv={Dv}{f' page={page}' if page else ''}"
    return _case("append to a cache", dtype, use, append_kv_kernel, constants, types, arch, D, Dv)


def merge_case(arch: str, Dv: int, whole: bool) -> Case:
    """Two states joined."""
    from flashasc.kernels.states import merge_states_kernel, state_blocks

    constants = {**state_blocks(Dv), "WHOLE": whole, "NATURAL": not whole}
    use = f"Dv={Dv} {'whole' if whole else 'natural'} pivots"
    return _case("merge of states", "float32", use, merge_states_kernel, constants, {}, arch, 0, Dv)


def finalize_case(dtype: str, arch: str, Dv: int, sinks: bool, separate_lse: bool) -> Case:
    """A state turned into an output of this dtype."""
    from flashasc.kernels.states import finalize_state_kernel, state_blocks

    whole = dtype == "float32" or not separate_lse
    constants: dict[str, object] = {
        **state_blocks(Dv), "WHOLE": whole, "LOWERED": dtype == "float16", "NATURAL": not whole,
        "SEPARATE_LSE": not whole, "SINKS": sinks,
    }  # fmt: skip
    constants |= {} if sinks else {"sinks_ptr": None}
    use = f"Dv={Dv}{' sinks' if sinks else ''}{'' if whole else ', log-sum-exp apart'}"
    return _case(
        "end of a state", dtype, use, finalize_state_kernel, constants,
        {"out_ptr": _TYPES[dtype]}, arch, 0, Dv,
    )  # fmt: skip


def _case(
    operation: str,
    dtype: str,
    use: str,
    kernel: Any,
    constants: Mapping[str, object],
    types: Mapping[str, str],
    arch: str,
    D: int,
    Dv: int,
) -> Case:
    names = [name for name in kernel.arg_names if name not in constants]
    default = {name: "*fp32" if name.endswith("_ptr") else "i32" for name in names}
    return Case(
        name=f"{operation} {dtype}, {use}",
        arch=arch,
        kernel=kernel,
        signature={name: types.get(name, kind) for name, kind in default.items()},
        constants=constants,
        divisible_by_16=tuple(name for name in names if name.endswith("_ptr")),
        facts={"operation": operation, "use": use, "dtype": dtype, "precision": "any",
               "D": D, "Dv": Dv},
    )  # fmt: skip
