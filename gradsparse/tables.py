"""One table in two forms: text for a terminal, HTML for a notebook.

A table is a sequence of lines, each a sequence of cells. The first line is the
head.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
import html

Lines = Sequence[Sequence[str]]


def as_text(lines: Lines, left: Collection[int] = (0,)) -> str:
  """Formats a table as text; the cells of a column have equal width.

  >>> print(as_text([('leaf', 'bytes'), ('w', '400'), ('bias', '8')]))
  leaf  bytes
  w       400
  bias      8

  Args:
    lines: the table.
    left: numbers of the columns that are flush left; others are flush right.
  """
  widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

  def text(line: Sequence[str]) -> str:
    cells = [
      cell.ljust(w) if c in left else cell.rjust(w)
      for c, (cell, w) in enumerate(zip(line, widths, strict=True))
    ]
    return '  '.join(cells).rstrip()

  return '\n'.join(map(text, lines))


def as_html(
  lines: Lines, left: Collection[int] = (0,), notes: Sequence[str] = ()
) -> str:
  """Formats a table as HTML, for `_repr_html_` in notebooks.

  >>> print(as_html([('leaf',), ('a<b',)], notes=['one & all']))
  <table>
  <tr><th style="text-align: left">leaf</th></tr>
  <tr><td style="text-align: left">a&lt;b</td></tr>
  </table>
  <p>one &amp; all</p>

  Args:
    lines: the table, as plain text, which is escaped here. If it is empty, only
      the notes are written.
    left: as in `as_text`.
    notes: paragraphs below the table.
  """

  def row(line: Sequence[str], kind: str) -> str:
    cells = [
      f'<{kind} style="text-align: {"left" if c in left else "right"}">'
      f'{html.escape(cell)}</{kind}>'
      for c, cell in enumerate(line)
    ]
    return f'<tr>{"".join(cells)}</tr>'

  parts = []
  if lines:
    head, *rest = lines
    rows = [row(head, 'th'), *(row(line, 'td') for line in rest)]
    parts = ['<table>', *rows, '</table>']
  return '\n'.join([*parts, *(f'<p>{html.escape(note)}</p>' for note in notes)])
