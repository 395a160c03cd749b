"""Lower a Triton kernel to the Linalg text that the Ascend compiler is given, with no NPU.

What triton-ascend's JIT does before it calls `bishengir-compile`: Triton front end, Triton passes,
`triton-adapter-opt`. No driver, no torch_npu and no CANN take part, and no Triton state changes.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashasc import _triton
from flashasc.ascend.toolchain import ToolchainError, family

# What triton-ascend defaults to when it is built for the A5 generation. Its wheel is built for A2
# and A3 (`is_compile_on_910_95 = False` in backends/ascend/compiler.py, 3.2.0).
_A5_OPTIONS: dict[str, object] = {
    "compile_on_910_95": True,
    "multibuffer": False,
    "enable_auto_bind_sub_block": False,
    "enable_select_analysis": True,
}

# Triton's front end caches parsed sources and hashes on the kernel objects without a lock.
_FRONT_END = threading.Lock()


@dataclass(frozen=True)
class Lowered:
    """A kernel as the Ascend compiler receives it.

    Attributes:
        linalg: MLIR text, exactly what `bishengir-compile` is given.
        kernel_name: name of the one function in it.
        arch: processor it was lowered for, e.g. "Ascend910B3".
        arguments: (name, Triton type) of each argument the function still takes, in order:
            the kernel's own, without those fixed in `constants`. In the text they follow two
            hidden memrefs (lock, workspace) and precede grid sizes and program ids (3 x i32 each).
        options: every option of triton-ascend's NPU backend, as used.
        mix_mode: "aiv" (vector cores only), "aic" (cube cores only) or "mix".
        ttir: Triton's IR that the text was made from, after Triton's own passes.
    """

    linalg: str
    kernel_name: str
    arch: str
    arguments: tuple[tuple[str, str], ...]
    options: Mapping[str, object] = field(hash=False)
    mix_mode: str
    ttir: str = field(default="", repr=False)


def lower(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    arch: str,
    *,
    divisible_by_16: Collection[str] = (),
    options: Mapping[str, object] | None = None,
) -> Lowered:
    """Lower one specialisation of a kernel to Linalg text.

    Args:
        kernel: a function decorated with `@triton.jit`.
        signature: runtime argument name -> Triton type: "*fp16", "*i32", "i32", "i64", "fp32", ...
        constants: name -> value of every constexpr, and of any runtime argument fixed to a value
            (the JIT does that to integers equal to 1 and to None); such a name leaves the
            signature, whether or not it is listed there.
        arch: processor name, e.g. "Ascend910B3".
        divisible_by_16: runtime arguments that the JIT would mark `tt.divisibility = 16`:
            pointers aligned to 16 bytes and integers that are multiples of 16. The mark shows in
            the text; the JIT sets it for every such argument that may be specialised.
        options: options of triton-ascend's NPU backend to override (`multibuffer=False`, ...).

    Returns:
        The lowered kernel.

    Raises:
        ValueError: an unknown processor or option, or names that don't match the kernel's.
        TypeError: `kernel` is not a `@triton.jit` function.
        ToolchainError: triton-ascend is absent, or one of its steps rejects the kernel.

    May be called from several threads at once.
    """
    # an unknown processor is reported even where no toolchain is installed
    is_a5 = family(arch) == "A5"
    ascend = _import_backend()
    name = _check_kernel(kernel)
    types = _runtime_types(kernel, signature, constants, divisible_by_16)
    backend, npu_options = _backend(
        ascend, arch, {**(_A5_OPTIONS if is_a5 else {}), **(options or {})}
    )
    metadata: dict[str, Any] = {**vars(npu_options), "target": backend.target, "hash": ""}
    with _FRONT_END:
        ttir = _to_ttir(
            ascend, backend, npu_options, metadata, kernel, types, constants, divisible_by_16
        )
    try:
        text = ascend.ttir_to_linalg(ttir, metadata, npu_options, named_ops=True)
    except subprocess.CalledProcessError as error:
        log = (error.stderr or b"").decode(errors="replace")
        raise ToolchainError(
            f"kernel {name}, {arch}: triton-adapter-opt cannot lower it to Linalg (status "
            f"{error.returncode}): {_gist(log)}",
            step="triton-adapter-opt",
            kernel=name,
            log=log,
        ) from error
    text, metadata = ascend._parse_linalg_metadata(text, metadata)
    return Lowered(
        linalg=text,
        kernel_name=metadata["kernel_name"],
        arch=arch,
        arguments=tuple(types.items()),
        options=dict(vars(npu_options)),
        mix_mode=metadata["mix_mode"],
        ttir=ttir,
    )


def _import_backend() -> Any:
    """Import triton-ascend's NPU backend, or say which Triton is here instead."""
    found = _triton.installed()
    if found.kind != "ascend":
        raise ToolchainError(
            f"lowering for Ascend needs triton-ascend, but {found.summary}; run: "
            "pip install 'flashasc[offline]' in an environment without another Triton",
            step="find tools",
        )
    try:
        from triton.backends.ascend import compiler
    except ImportError as error:
        raise ToolchainError(
            f"{found.summary}, but can't be imported ({error}); run: "
            "pip install 'flashasc[offline]'",
            step="find tools",
        ) from error
    return compiler


def _check_kernel(kernel: Any) -> str:
    from triton.runtime.jit import JITFunction

    if isinstance(kernel, JITFunction):
        return str(kernel.fn.__name__)
    hint = ""
    if "Interpreted" in type(kernel).__name__:
        hint = "; it was decorated under TRITON_INTERPRET=1: unset that and start again"
    elif isinstance(getattr(kernel, "fn", None), JITFunction):
        hint = "; pass the function under the decorator, kernel.fn, and its meta-parameters"
    raise TypeError(f"kernel: expected a @triton.jit function, got {type(kernel).__name__}{hint}")


def _runtime_types(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    divisible_by_16: Collection[str],
) -> dict[str, str]:
    """Check names against the kernel's and order the runtime arguments as it declares them."""
    own = [param.name for param in kernel.params]
    where = f"of kernel {kernel.fn.__name__}({', '.join(own)})"
    for label, names in (
        ("signature", signature),
        ("constants", constants),
        ("divisible_by_16", divisible_by_16),
    ):
        if unknown := [name for name in names if name not in own]:
            raise ValueError(f"{label}: {unknown} are not arguments {where}")
    constexprs = [param.name for param in kernel.params if param.is_constexpr]
    if missing := [name for name in constexprs if name not in constants]:
        raise ValueError(f"constants: no value for the constexpr {missing} {where}")
    if missing := [name for name in own if name not in constants and name not in signature]:
        raise ValueError(f"signature: no type for {missing} {where}; give each a Triton type")
    if fixed := [name for name in divisible_by_16 if name in constants]:
        raise ValueError(f"divisible_by_16: {fixed} are constants, not runtime arguments {where}")
    return {name: signature[name] for name in own if name not in constants}


def _backend(ascend: Any, arch: str, options: Mapping[str, object]) -> tuple[Any, Any]:
    from triton.backends.compiler import GPUTarget

    # parse_options drops what it does not know
    if unknown := [name for name in options if name not in ascend.NPUOptions.__dataclass_fields__]:
        known = ", ".join(sorted(ascend.NPUOptions.__dataclass_fields__))
        raise ValueError(f"options: triton-ascend has no {unknown}; it has {known}")
    backend = ascend.AscendBackend(GPUTarget("npu", arch, 0))
    return backend, backend.parse_options(dict(options))


def _to_ttir(
    ascend: Any,
    backend: Any,
    options: Any,
    metadata: dict[str, Any],
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, object],
    divisible_by_16: Collection[str],
) -> str:
    """Run the Triton front end and Triton's own passes; returns TTIR text."""
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource

    marked = [param.num for param in kernel.params if param.name in divisible_by_16]
    attrs = ascend.AscendAttrsDescriptor.from_hints(dict.fromkeys(marked, 16))
    source = ASTSource(fn=kernel, signature=dict(types), constants=dict(constants), attrs=attrs)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    name = str(kernel.fn.__name__)
    try:
        module = source.make_ir(
            options, backend.get_codegen_implementation(), backend.get_module_map(), context
        )
        text = str(ascend.make_ttir(module, metadata, options))
    except Exception as error:
        # whatever the kernel's author did wrong surfaces here, as any type of exception
        raise ToolchainError(
            f"kernel {name}, {backend.target.arch}: Triton's front end rejects it: "
            f"{type(error).__name__}: {error}",
            step="triton front end",
            kernel=name,
            log=str(error),
        ) from error
    finally:
        # a process that forks while MLIR's thread pool lives may hang in the child
        context.disable_multithreading()
    return text


def _gist(log: str) -> str:
    """Pick the lines of a log that say what went wrong; its end when none does."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "Assertion" in line]
    return " | ".join(dict.fromkeys(telling[:3] or lines[-3:])) or "(it printed nothing)"
