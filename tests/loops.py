"""The loops of a compiled program. XLA on CPUs compiles equal ones once."""

import re


def distinct(text: str) -> int:
  """How many different fusions a compiled program has, names aside."""
  bodies = re.findall(r'^%\S*comput\S* \([^\n]*\{\n(.*?)^\}', text, re.M | re.S)
  return len({_renamed(body) for body in bodies})


def _renamed(body: str) -> str:
  """With numbers, in the order in which they occur, for names."""
  names: dict[str, str] = {}
  body = re.sub(r', metadata=\{[^}]*\}', '', body)
  return re.sub(
    r'%[\w.\-]+',
    lambda name: names.setdefault(name.group(), f'%{len(names)}'),
    body,
  )
