"""Read which functions an LLVM bitcode file defines, without LLVM.

The device libraries in the ascendnpu-ir wheel were written by two versions of LLVM, one of which
common tools refuse. Only the container format is needed here, and it is stable: "LLVM Bitcode File
Format", https://llvm.org/docs/BitCodeFormat.html (blocks, abbreviations, MODULE_CODE_FUNCTION, the
string table).
"""

from __future__ import annotations

from pathlib import Path

_MAGIC = b"BC\xc0\xde"
_MODULE_BLOCK, _STRTAB_BLOCK = 8, 23
_FUNCTION_RECORD, _STRTAB_BLOB = 8, 1
# abbreviation ids that every block has
_END_BLOCK, _ENTER_SUBBLOCK, _DEFINE_ABBREV, _UNABBREV_RECORD = range(4)
_FIXED, _VBR, _ARRAY, _CHAR6, _BLOB = range(1, 6)
_LITERAL = 0

# (encoding, its value: a literal, or a width in bits)
Operand = tuple[int, int]
Record = tuple[list[int], bytes]


def defined_functions(path: Path) -> frozenset[str]:
    """Return the names of the functions that a bitcode file has bodies of.

    Raises:
        ValueError: the file is not LLVM bitcode that keeps its names in a string table.
        OSError: it can't be read.
    """
    data = path.read_bytes()
    if data[:4] != _MAGIC:
        raise ValueError(f"{path}: not LLVM bitcode (it starts with {data[:4]!r})")
    reader = _Reader(data)
    functions: list[list[int]] = []
    names: bytes | None = None
    try:
        # a file may end in zeros up to a multiple of four bytes
        while reader.bit // 8 + 8 <= len(data) and reader.fixed(2) == _ENTER_SUBBLOCK:
            block, width, end = reader.enter()
            if block == _MODULE_BLOCK:
                functions += [
                    record[1:]
                    for record, _ in reader.records(width, end)
                    if record[0] == _FUNCTION_RECORD
                ]
            elif block == _STRTAB_BLOCK:
                names = next(
                    blob for record, blob in reader.records(width, end) if record[0] == _STRTAB_BLOB
                )
            reader.bit = end
        # offset and size of the name, type, calling convention, whether it is only declared
        found = [(at, size) for at, size, _, _, declared, *_ in functions if not declared]
    except (IndexError, StopIteration, ValueError) as error:
        raise ValueError(f"{path}: LLVM bitcode of an unknown form ({error!r})") from error
    if names is None or any(at + size > len(names) for at, size in found):
        raise ValueError(f"{path}: LLVM bitcode without a string table")
    return frozenset(names[at : at + size].decode(errors="replace") for at, size in found)


class _Reader:
    """A cursor over a bit stream: the least significant bit of each byte comes first."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.bit = 8 * len(_MAGIC)

    def fixed(self, width: int) -> int:
        """Read a number of `width` bits."""
        first, last = self.bit // 8, (self.bit + width + 7) // 8
        if last > len(self._data):
            raise IndexError("it ends early")
        value = int.from_bytes(self._data[first:last], "little") >> (self.bit % 8)
        self.bit += width
        return value & ((1 << width) - 1)

    def variable(self, width: int) -> int:
        """Read a number in pieces of `width` bits; the top bit says that another follows."""
        more = 1 << (width - 1)
        value = shift = 0
        while True:
            piece = self.fixed(width)
            value |= (piece & (more - 1)) << shift
            if not piece & more:
                return value
            shift += width - 1

    def enter(self) -> tuple[int, int, int]:
        """Read the head of a block: its id, the width of its abbreviation ids, its end in bits."""
        block, width = self.variable(8), self.variable(4)
        self._align()
        words = self.fixed(32)
        return block, width, self.bit + 32 * words

    def records(self, width: int, end: int) -> list[Record]:
        """Read a block's own records, passing over the blocks inside it."""
        found: list[Record] = []
        abbreviations: list[list[Operand]] = []
        while self.bit < end:
            kind = self.fixed(width)
            if kind == _END_BLOCK:
                break
            if kind == _ENTER_SUBBLOCK:
                self.bit = self.enter()[2]
            elif kind == _DEFINE_ABBREV:
                abbreviations.append(self._abbreviation())
            elif kind == _UNABBREV_RECORD:
                code, count = self.variable(6), self.variable(6)
                found.append(([code, *(self.variable(6) for _ in range(count))], b""))
            else:
                found.append(self._record(abbreviations[kind - 4]))
        return found

    def _abbreviation(self) -> list[Operand]:
        operands: list[Operand] = []
        for _ in range(self.variable(5)):
            if self.fixed(1):
                operands.append((_LITERAL, self.variable(8)))
                continue
            encoding = self.fixed(3)
            operands.append((encoding, self.variable(5) if encoding in (_FIXED, _VBR) else 0))
        return operands

    def _record(self, operands: list[Operand]) -> Record:
        values: list[int] = []
        blob = b""
        remaining = iter(operands)
        for encoding, value in remaining:
            if encoding == _ARRAY:
                element = next(remaining)
                values += [self._scalar(*element) for _ in range(self.variable(6))]
            elif encoding == _BLOB:
                size = self.variable(6)
                self._align()
                blob = self._data[self.bit // 8 : self.bit // 8 + size]
                self.bit += 8 * size
                self._align()
            else:
                values.append(self._scalar(encoding, value))
        return values, blob

    def _scalar(self, encoding: int, value: int) -> int:
        if encoding == _LITERAL:
            return value
        if encoding == _CHAR6:
            return self.fixed(6)
        if encoding not in (_FIXED, _VBR):
            raise ValueError(f"operand encoding {encoding}")
        # a width of zero stands for the number zero
        return (self.fixed if encoding == _FIXED else self.variable)(value) if value else 0

    def _align(self) -> None:
        self.bit = (self.bit + 31) & ~31
