"""Wrong uses of the library: each is refused in words, before it is run.

One table, with a file for each topic. Each error has its own type, names
argument, rule and value, and is raised by us. Nothing is compiled here.
"""

import time
import tracemalloc

import pytest
from tests.bad_input import axes
from tests.bad_input import cases
from tests.bad_input import losses
from tests.bad_input import recipes
from tests.bad_input import schedules
from tests.bad_input import sockets
from tests.bad_input import states
from tests.bad_input import traffic
from tests.bad_input import trees
from tests.bad_input import workers
from tests.bad_input import wrappers

CASES = tuple(
  case
  for topic in (
    axes,
    losses,
    recipes,
    schedules,
    sockets,
    states,
    traffic,
    trees,
    workers,
    wrappers,
  )
  for case in topic.CASES
)


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
