"""Docstrings of the library as reStructuredText.

They are written to be read in a terminal. What is indented there without being
a section is an equation or a piece of code, tables are those of Markdown, and
stars and bars stand for themselves.
"""

import re

_SECTION = re.compile(
  r'(Args|Attributes|Raises|Returns|References|Yields|Note|Example)s?:$'
)
_LIST = re.compile(r'([-*]|\d+\.) ')
_TABLE = re.compile(r'\|.*\|$')
_RESULT = re.compile(r'(\w+): (.*)')
# What would begin a list.
_LETTER = re.compile(r'(?<=: )([A-Za-z]\.)$', re.MULTILINE)
# What is code already, what is strong, and what must be told from both.
_MARKUP = re.compile(r'(`[^`]*`|\*\*\S[^*]*\*\*)|([*|])', re.DOTALL)


def process(app, what, name, obj, options, lines) -> None:
  """Changes `lines` in place."""
  lines[:] = _escaped(_results(_tables(_indented(lines))))


def _depth(line):
  return len(line) - len(line.lstrip())


def _indented(lines):
  """Makes literal blocks of what is indented, outside of sections."""
  out = []
  in_section = in_list = literal = False
  after_blank = True
  for line in lines:
    if line.strip() and not _depth(line):
      in_section = bool(_SECTION.match(line))
      in_list = bool(_LIST.match(line)) or (in_list and not after_blank)
      literal = False
    elif line.strip() and after_blank:
      if not (in_section or in_list or literal):
        out += ['::', '']
        literal = True
    out.append(line)
    after_blank = not line.strip()
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


def _results(lines):
  """Makes a list of several results that have names."""
  out, number = [], 0
  while number < len(lines):
    out.append(lines[number])
    number += 1
    if out[-1] != 'Returns:':
      continue
    end = number
    while end < len(lines) and (_depth(lines[end]) or not lines[end].strip()):
      end += 1
    body = lines[number:end]
    least = min((_depth(line) for line in body if line.strip()), default=0)
    tops = [line for line in body if line.strip() and _depth(line) == least]
    if len(tops) < 2 or not all(_RESULT.match(line.strip()) for line in tops):
      continue
    out[-1:] = ['', ':returns:']
    for line in body:
      named = _depth(line) == least and _RESULT.match(line.strip())
      if named:
        out.append(f'  * **{named[1]}**: {named[2]}')
      else:
        out.append(f'    {line.strip()}' if line.strip() else '')
    number = end
  return out


def _escaped(lines):
  """Puts a backslash before stars and bars of the text."""
  out, text, literal, example = [], [], False, False

  def flush():
    joined = '\n'.join(text)
    fixed = _MARKUP.sub(lambda m: m[1] or '\\' + m[2], joined)
    fixed = _LETTER.sub(r'\\\1', fixed)
    out.extend(fixed.split('\n') if text else [])
    text.clear()

  for line in lines:
    if not line.strip():
      flush()
      out.append(line)
      example = False
      continue
    if literal and not _depth(line):
      literal = False
    if line == '::' or line.lstrip().startswith('>>>'):
      flush()
      literal = literal or line == '::'
      example = example or line != '::'
    if literal or example:
      out.append(line)
      continue
    bullet = re.match(r' *\* ', line)
    if bullet:
      flush()
      text.append(line[bullet.end() :])
      flush_at = len(out)
      flush()
      out[flush_at] = bullet[0] + out[flush_at]
    else:
      text.append(line)
  flush()
  return out
