"""Eight CPU devices, caches that do not grow, and one hypothesis profile."""

import os

import hypothesis
import jax
import pytest

# Before anything asks for a device. The tests need no accelerator and use
# none, whatever the machine has, unless JAX_PLATFORMS says so.
jax.config.update('jax_num_cpu_devices', 8)
if not os.environ.get('JAX_PLATFORMS'):
  jax.config.update('jax_platforms', 'cpu')

# A shared machine is slow now and then, so there are no deadlines; the same
# examples each time, because a test that fails must fail again.
_COMMON = dict(deadline=None, derandomize=True)
hypothesis.settings.register_profile('fast', max_examples=20, **_COMMON)
hypothesis.settings.register_profile('thorough', max_examples=500, **_COMMON)
hypothesis.settings.load_profile(
  os.environ.get('HYPOTHESIS_PROFILE', 'fast'),
)


@pytest.fixture(autouse=True, scope='module')
def _clear_caches():
  """Drops compiled programs after each module.

  Each holds about 20 memory maps while JAX's caches live, and Linux allows a
  process 65,530: without this a long session dies of "Cannot allocate memory".
  """
  yield
  jax.clear_caches()


def pytest_collection_modifyitems(items):
  """Tests of one compiled program next to each other.

  Tests that share a `case` read one `tests.runs.run`, which is compiled once a
  process: neighbours stay in one process when pytest-xdist deals out the list.
  """
  first = {}

  def key(item):
    case = getattr(item, 'callspec', None) and item.callspec.params.get('case')
    place = items_order[item]
    if case is None:
      return (place, 0)
    return (first.setdefault((item.module, case), place), place)

  items_order = {item: number for number, item in enumerate(items)}
  items.sort(key=key)
