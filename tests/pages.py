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
    said: what it says that they print.
    names: what they define.
    printed: what they do print.
  """

  code: tuple[str, ...]
  said: str
  names: dict[str, Any]
  printed: str


def run(name: str) -> Page:
  """Runs the blocks of Python of a page, one after the other."""
  blocks = re.findall(
    r'```(python|text)\n(.*?)```', (DOCS / name).read_text(), re.DOTALL
  )
  names: dict[str, Any] = {}
  printed = io.StringIO()
  with contextlib.redirect_stdout(printed):
    for number, (kind, block) in enumerate(blocks):
      if kind == 'python':
        exec(compile(block, f'{name}, block {number}', 'exec'), names)
  code, said = (
    tuple(block for kind, block in blocks if kind == wanted)
    for wanted in ('python', 'text')
  )
  return Page(code, ''.join(said), names, printed.getvalue())
