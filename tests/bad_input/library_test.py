"""Wrong uses of the library: each is refused in words, before it is run.

One table: `factories` has arguments, `use` what is done with what they made.
Each error has its own type, names argument, rule and value, and is raised by
us. Nothing is compiled here.
"""

import time
import tracemalloc

import pytest
from tests.bad_input import cases
from tests.bad_input import factories
from tests.bad_input import use

CASES = (*factories.CASES, *use.CASES)


@pytest.mark.parametrize('case', cases.params(CASES))
def test_what_is_wrong_is_refused_in_words(case):
  case.check()


def test_the_table_is_long_and_repeats_nothing():
  names = [case.name for case in CASES]
  assert len(set(names)) == len(names) >= 300


HUGE = [case for case in CASES if str(10**9) in case.name]


@pytest.mark.parametrize('case', cases.params(HUGE))
def test_absurd_sizes_cost_neither_memory_nor_time(case):
  tracemalloc.start()
  began = time.process_time()
  try:
    with pytest.raises(case.error):
      case.call()
    assert tracemalloc.get_traced_memory()[1] < 1e6
  finally:
    tracemalloc.stop()
  assert time.process_time() - began < 1


def test_there_are_absurd_sizes():
  assert len(HUGE) >= 6
