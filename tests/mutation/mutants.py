"""The mutants of `blocks`: every place where an operator changes a file, and a sample of them."""

from __future__ import annotations

import ast
import difflib
import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

from tests.conftest import ROOT
from tests.mutation.operators import operators

BLOCKS = ROOT / "blocks"


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        file: name of the file in `blocks`.
        operator: name of what changed it.
        function: the function it is in, or "" at the top of the file.
        line: number of the first line that differs.
        old, new: the lines that differ, stripped and joined.
        source: the whole file, changed.
    """

    file: str
    operator: str
    function: str
    line: int
    old: str
    new: str
    source: str

    @property
    def key(self) -> str:
        """The same for the same change of the same file, whatever made it."""
        return hashlib.sha256(f"{self.file}\n{self.source}".encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}: {self.old}  ->  {self.new}"


def block_files() -> list[str]:
    """Files of `blocks` that hold code."""
    return sorted(p.name for p in BLOCKS.glob("*.py") if ast.parse(p.read_text()).body[1:])


def mutants_of(file: str, names: Sequence[str] = (), functions: Sequence[str] = ()) -> list[Mutant]:
    """Every mutant of a file, each change once.

    Args:
        file: name of the file in `blocks`.
        names: only of these operators; all by default.
        functions: only in these functions; everywhere by default.
    """
    source = (BLOCKS / file).read_text()
    found = [
        mutant
        for statement in ast.parse(source).body
        if not functions or getattr(statement, "name", "") in functions
        for mutant in _mutants(file, source, statement, names)
    ]
    return list({mutant.source: mutant for mutant in found}.values())


def _mutants(file: str, source: str, statement: ast.stmt, names: Sequence[str]) -> Iterator[Mutant]:
    """Mutants of one statement at the top of a file, by itself: that is parsed in no time."""
    lines = source.splitlines(keepends=True)
    first, end = statement.lineno - 1, statement.end_lineno or statement.lineno
    code = "".join(lines[first:end])
    function = statement.name if isinstance(statement, ast.FunctionDef) else ""
    for name, operator in operators().items():
        if names and name not in names:
            continue
        nodes = ast_nodes(get_ast(code))
        places = sum(len(list(operator.mutation_positions(node))) for node in nodes)
        for occurrence in range(places):
            changed = mutate_code(code, operator, occurrence)
            if changed is None or not _differs(code, changed):
                continue
            line, old, new = _change(code, changed)
            whole = "".join([*lines[:first], changed, *lines[end:]])
            yield Mutant(file, name, function, first + line, old, new, whole)


def _differs(code: str, changed: str) -> bool:
    try:
        return ast.dump(ast.parse(code)) != ast.dump(ast.parse(changed))
    except SyntaxError as error:
        raise ValueError(f"a mutant is not Python: {error.text}") from error


def _change(code: str, changed: str) -> tuple[int, str, str]:
    before, after = code.splitlines(), changed.splitlines()
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    parts = [block for block in blocks if block[0] != "equal"]
    old = " ".join(line.strip() for _, a, b, _, _ in parts for line in before[a:b])
    new = " ".join(line.strip() for _, _, _, a, b in parts for line in after[a:b])
    return parts[0][1] + 1, old, new


def sample(mutants: Sequence[Mutant], size: int, seed: int, least: int = 10) -> list[Mutant]:
    """Draw mutants at random, of each file its share and no fewer than `least`, if it has as many.

    A larger sample of the same seed contains a smaller one.
    """
    drawn: list[Mutant] = []
    for file in sorted({mutant.file for mutant in mutants}):
        there = [mutant for mutant in mutants if mutant.file == file]
        random.Random(f"{seed} {file}").shuffle(there)
        drawn += there[: max(round(size * len(there) / len(mutants)), least)]
    return drawn


def write_package(folder: Path, mutant: Mutant | None) -> None:
    """Write `blocks` into a folder, with the mutant's file in the place of the original."""
    home = folder / "blocks"
    home.mkdir(parents=True, exist_ok=True)
    for path in BLOCKS.glob("*.py"):
        (home / path.name).write_text(path.read_text())
    if mutant is not None:
        (home / mutant.file).write_text(mutant.source)
