"""Run Triton kernels, lowered for an Ascend NPU, natively on CPU tensors.

`launch(kernel, grid, args, constants)` runs one `@triton.jit` kernel. `install()` does the same for
`kernel[grid](...)` of your own code, until `uninstall()`. Importing this module does neither, and
loads no Triton. It needs the packages of `pip install 'flashasc[offline]'` and a C compiler.

What is run is the very Linalg text that `bishengir-compile` is given (level "linalg"), or what that
compiler's HFusion passes make of it (level "hfusion": exp2 as exp(x*ln 2), NaN handling of max,
rewritten masks). MLIR and LLVM, as the two packages carry them, turn it into code for x86-64 or
aarch64. (The aarch64 wheel of ascendnpu-ir 1.2.0 lacks the tools of the A5 generation. For the
others, aarch64 gives the bits of x86-64, as far as an emulated processor shows.)

**Arithmetic.** Every operation is rounded as IEEE 754 says, in the order the text gives: nothing is
reassociated, no product is fused with a sum, subnormal numbers are kept, whatever the calling
thread has set. A sum over an axis adds in index order; a matrix product adds its products in the
order of the inner index, in fp32 for 16-bit inputs. exp and exp2 are within 0.51 units in the last
place (exp2 of an integer is exact), other functions are the C library's. The same call gives the
same bits on any number of threads and, but for the C library's functions, on any machine.

**What is not modelled**, so that results on an NPU differ in the last digits, or more:

- how the cube unit rounds inside a product; `input_precision="hf32"` is computed as fp32;
- VEXP, VLN and the other functions of the vector unit;
- the order in which the device library adds up a row (it halves the row again and again);
- whatever the compiler does after HFusion: memory planning, synchronisation, its device library. A
  kernel that is right here can be wrong on the device (a custom combine function in `tl.reduce` is,
  on A2).

**What cannot be run** raises `NativeError`, which names the construct: `tl.sort`, `tl.histogram` at
level "linalg", `tl.device_print`, inline assembly, `tl.reduce` over several values, extern
functions other than tanh, tan, atan, log1p, pow, round, reciprocal, relu, isnan and isinf. Atomics
are plain reads and writes, so a kernel that has them runs on one thread. Programs must not wait for
one another: they run in turns, and such a kernel never ends.

**Speed.** The first call of a kernel and specialisation takes about a second, a third of it in
Triton's front end and the rest in the compiler. Both results are kept in FLASHASC_CACHE_DIR
(~/.cache/flashasc/native), which any number of processes may share and which may be deleted at any
time; a new process then needs milliseconds.

Read from the environment at each call: FLASHASC_NATIVE_LEVEL, FLASHASC_NATIVE_ARCH,
FLASHASC_NATIVE_THREADS, and FLASHASC_NATIVE_KEEP, a folder in which the intermediate files of every
kernel are kept (each is built anew then, once a process).
"""

from flashasc.native.call import launch
from flashasc.native.driver import Installed, install, uninstall
from flashasc.native.errors import NativeError

__all__ = ["Installed", "NativeError", "install", "launch", "uninstall"]
