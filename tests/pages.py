"""Pages of the documentation that run as they stand."""

import contextlib
import io
import pathlib
import re
from typing import Any, NamedTuple

DOCS = pathlib.Path(__file__).parents[1] / 'docs'


class Page(NamedTuple):
  """What a page has, and what came of it.

  Attributes:
    code: its blocks of Python.
    differences: how many blocks show a difference between two programs.
    said: what it says that they print.
    names: what they define.
    printed: what they do print.
  """

  code: tuple[str, ...]
  differences: int
  said: str
  names: dict[str, Any]
  printed: str


def _programs(kind: str, block: str) -> list[str]:
  """What a block has to run."""
  if kind != 'diff':
    return [block] if kind == 'python' else []
  lines = block.splitlines()
  return [
    '\n'.join(line[1:] for line in lines if not line.startswith(other))
    for other in '+-'
  ]


def run(name: str) -> Page:
  """Runs the blocks of Python of a page, one after the other.

  A block of `diff` is two of them: first as it was, then as it becomes.
  """
  blocks = re.findall(
    r'```(python|text|diff)\n(.*?)```', (DOCS / name).read_text(), re.DOTALL
  )
  names: dict[str, Any] = {}
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    for number, (kind, block) in enumerate(blocks):
      for code in _programs(kind, block):
        exec(compile(code, f'{name}, block {number}', 'exec'), names)
  code, said = (
    tuple(block for kind, block in blocks if kind == wanted)
    for wanted in ('python', 'text')
  )
  differences = sum(kind == 'diff' for kind, _ in blocks)
  return Page(code, differences, ''.join(said), names, printed.getvalue())
