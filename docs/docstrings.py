"""Docstrings of the library as reStructuredText.

They are written to be read in a terminal. What is indented there without being
a section is an equation or a piece of code, and tables are those of Markdown.
"""

import re

_SECTION = re.compile(
  r'(Args|Attributes|Raises|Returns|References|Yields|Note|Example)s?:$'
)
_TABLE = re.compile(r'\|.*\|$')


def process(app, what, name, obj, options, lines):
  """Changes `lines` in place."""
  lines[:] = _tables(_indented(lines))


def _depth(line):
  return len(line) - len(line.lstrip())


def _indented(lines):
  """Makes literal blocks of what is indented, outside of sections."""
  out, in_section, in_list = [], False, False
  literal = False
  for number, line in enumerate(lines):
    depth = _depth(line)
    if line.strip() and not depth:
      in_section = bool(_SECTION.match(line))
      in_list = bool(re.match(r'[-*\d]+\.? ', line)) or (
        in_list and bool(number and lines[number - 1].strip())
      )
      literal = False
    begins = depth and not in_section and not in_list and not literal
    if line.strip() and begins and (not number or not lines[number - 1].strip()):
      out += ['::', '']
      literal = True
    out.append(line)
  return out


def _cells(row):
  """Cells of a row; a bar inside of code is none between cells."""
  parts = re.split(r'\|(?=(?:[^`]*`[^`]*`)*[^`]*$)', row.strip()[1:-1])
  return [cell.strip() for cell in parts]


def _tables(lines):
  """Makes list tables of Markdown's."""
  out, number = [], 0
  while number < len(lines):
    end = number
    while end < len(lines) and _TABLE.match(lines[end].strip()):
      end += 1
    rows = [_cells(line) for line in lines[number:end]]
    if len(rows) < 3:
      out.append(lines[number])
      number += 1
      continue
    pad = ' ' * _depth(lines[number])
    out += ['', f'{pad}.. list-table::', f'{pad}   :header-rows: 1', '']
    for row in [rows[0], *rows[2:]]:
      for place, cell in enumerate(row):
        out.append(f'{pad}   {"* -" if place == 0 else "  -"} {cell}')
    out.append('')
    number = end
  return out
