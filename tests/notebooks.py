"""The cells of a notebook in MyST markdown, and a way to run them.

  python -m tests.notebooks docs/notebooks/start.md

runs the cells of code one after the other, as Jupyter would.
"""

import ast
from collections.abc import Iterator
import pathlib
import re
import sys
from typing import Any, NamedTuple

FOLDER = pathlib.Path(__file__).parents[1] / 'docs' / 'notebooks'
PAGES = sorted(FOLDER.glob('*.md'))

_HEADER = re.compile(r'\A---\n(.*?)\n---\n', re.DOTALL)
_CODE = re.compile(r'^```\{code-cell\}\n(.*?)\n```$', re.DOTALL | re.MULTILINE)


class Cell(NamedTuple):
  """A cell: 'code' or 'markdown', and what is in it."""

  kind: str
  source: str


def header(text: str) -> str:
  """What stands before the first cell, as YAML."""
  found = _HEADER.match(text)
  if not found:
    raise ValueError(f'a notebook begins with a header, got {text[:40]!r}')
  return found[1]


def _cells(text: str) -> Iterator[Cell]:
  # Every other part is the code that divides them.
  parts = _CODE.split(_HEADER.sub('', text))
  for number, part in enumerate(parts):
    kind = 'code' if number % 2 else 'markdown'
    if part.strip():
      yield Cell(kind, part.strip())


def cells(text: str) -> list[Cell]:
  """All cells of a notebook, in order."""
  return list(_cells(text))


def _show(value: Any) -> None:
  """Prints what Jupyter would show of a cell's last expression."""
  if value is not None:
    print(value._repr_html_() if hasattr(value, '_repr_html_') else value)


def run(page: pathlib.Path) -> None:
  """Runs the cells of code in one namespace, and prints what they show."""
  names: dict[str, Any] = {'__name__': '__main__'}
  for number, cell in enumerate(cells(page.read_text())):
    if cell.kind != 'code':
      continue
    name = f'{page.name}, cell {number}'
    body = ast.parse(cell.source, name).body
    last = body.pop() if isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), name, 'exec'), names)
    if last:
      shown = compile(ast.Expression(last.value), name, 'eval')
      _show(eval(shown, names))


if __name__ == '__main__':
  run(pathlib.Path(sys.argv[1]))
