"""A line of the tables of wrong uses, and how each is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import math
import pathlib
import re
import traceback
from typing import Any, NamedTuple

import pytest

NAN, INF = math.nan, math.inf
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

NOT_WHOLE = (1.5, 7.0, NAN, True, '2', 1j, (2,), object())
NOT_A_NUMBER = ('1', True, 1j, (1.0,), object())
NOT_A_FLAG = (1, 0.0, 'yes', None)
NOT_AN_AXIS = (3, 0.5, ['w'], ('w', 3))
NOT_A_FUNCTION = (3, 'f', None)

POSITIVE = 'a finite number > 0'
NOT_POSITIVE = (0, 0.0, -1, INF, NAN)
SEEDS = (-1, 2**32, 10**30)


class Case(NamedTuple):
  """A wrong use.

  Attributes:
    name: of the case.
    call: what is wrong; takes nothing, compiles nothing.
    error: the type of the error.
    says: regular expression of its message: argument, rule and value.
  """

  name: str
  call: Callable[[], Any]
  error: type[Exception]
  says: str

  def check(self) -> None:
    """Makes the mistake, and looks at who says what."""
    with pytest.raises(self.error, match=f'(?s){self.says}') as caught:
      self.call()
    assert type(caught.value) is self.error
    last = traceback.extract_tb(caught.value.__traceback__)[-1].filename
    assert REPOSITORY in pathlib.Path(last).parents, f'raised in {last}'


def label(value: Any) -> str:
  """A short name of a value, the same in each process."""
  return re.sub(' at 0x.*', '', repr(value))[:40]


def values(
  where: str,
  call: Callable[[Any], Any],
  name: str,
  wrong: Iterable[Any],
  rule: str,
  error: type[Exception] = ValueError,
) -> Iterator[Case]:
  """A case for each wrong value of one argument.

  Args:
    where: the function.
    call: it, with this argument.
    name: of the argument, in messages.
    wrong: its values.
    rule: what comes after "must be".
    error: the type of the error.
  """
  for value in wrong:
    shown = repr(value) if error is TypeError else str(value)
    yield Case(
      f'{where}-{name}={label(value)}',
      lambda value=value: call(value),
      error,
      rf'{re.escape(name)}.* must .*{re.escape(rule)}.*got .*'
      rf'{re.escape(shown)}',
    )


def whole(
  where: str,
  call: Callable[[Any], Any],
  name: str,
  wrong: Iterable[Any],
  rule: str,
) -> Iterator[Case]:
  """Cases of an argument that is a whole number; `wrong` is out of range."""
  yield from values(where, call, name, wrong, rule)
  yield from values(where, call, name, NOT_WHOLE, 'a whole number', TypeError)


def number(
  where: str,
  call: Callable[[Any], Any],
  name: str,
  wrong: Iterable[Any],
  rule: str,
) -> Iterator[Case]:
  """Cases of an argument that is a number; `wrong` is out of range."""
  yield from values(where, call, name, wrong, rule)
  yield from values(where, call, name, NOT_A_NUMBER, 'a number', TypeError)


def params(cases: Iterable[Case]) -> list[Any]:
  """For `pytest.mark.parametrize`."""
  return [pytest.param(case, id=case.name) for case in cases]
