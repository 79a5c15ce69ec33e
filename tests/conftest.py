"""Eight CPU devices, caches that do not grow, and one hypothesis profile."""

import gc
import os
import pathlib

import hypothesis
import jax
import pytest

# Before anything asks for a device. The tests need no accelerator and use
# none, whatever the machine has, unless JAX_PLATFORMS says so.
jax.config.update('jax_num_cpu_devices', 8)
if not os.environ.get('JAX_PLATFORMS'):
  jax.config.update('jax_platforms', 'cpu')

# `make test` asks for programs that are quickly compiled: XLA's older code
# generator, which newer releases do not have, takes less than half the time.
# Without fused multiply-adds, as it fuses other loops than the new one does.
_flags = os.environ.get('XLA_FLAGS', '')
if (
  os.environ.get('JAX_DISABLE_MOST_OPTIMIZATIONS')
  and jax.__version_info__ < (0, 11)
  and 'fusion_emitters' not in _flags
):
  os.environ['XLA_FLAGS'] = (
    f'{_flags} --xla_cpu_use_fusion_emitters=false --xla_cpu_max_isa=AVX'
  )

# A shared machine is slow now and then, so there are no deadlines; the same
# examples each time, because a test that fails must fail again.
_COMMON = dict(deadline=None, derandomize=True)
hypothesis.settings.register_profile('fast', max_examples=6, **_COMMON)
hypothesis.settings.register_profile('thorough', max_examples=500, **_COMMON)
hypothesis.settings.load_profile(
  os.environ.get('HYPOTHESIS_PROFILE', 'fast'),
)


# Tracing makes many objects, and most live on: looking through them every 700
# takes a sixth of the time. What was imported is not looked at any more.
gc.set_threshold(50_000, 20, 20)


def pytest_collection_finish():
  gc.freeze()


def pytest_addoption(parser):
  parser.addoption(
    '--form',
    choices=('gpu', 'tpu'),
    help='CPUs compute as the library does on this platform, where JAX can',
  )


def pytest_configure(config):
  if form := config.getoption('form'):
    from gradsparse.backend import platforms

    platforms.name = lambda: form


# Linux allows a process 65,530 memory maps.
_MAPS = pathlib.Path('/proc/self/maps')
_MANY = 20_000


@pytest.fixture(autouse=True, scope='module')
def _clear_caches():
  """Drops compiled programs after a module when there are many.

  Each holds about 20 memory maps while JAX's caches live: without this a long
  session dies of "Cannot allocate memory". Not after each module, because
  modules share what they trace and compile of single operations.
  """
  yield
  if not _MAPS.exists() or _MAPS.read_bytes().count(b'\n') > _MANY:
    jax.clear_caches()
    gc.collect()


# Their examples compile what no other test shares: a step of a recipe, or many
# small operations.
_SLOW_ROOMS = {'codes', 'compressors', 'recipes', 'selection', 'wire'}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  """Tests of one compiled program next to each other; some examples slow.

  Tests that share a `case` read one `tests.runs.run`, which is compiled once a
  process: neighbours stay in one process when pytest-xdist deals out the list.
  """
  for item in items:
    room = item.path.parent.name
    if isinstance(item, pytest.DoctestItem) and room in _SLOW_ROOMS:
      item.add_marker(pytest.mark.slow)
  first = {}

  def key(item):
    case = getattr(item, 'callspec', None) and item.callspec.params.get('case')
    place = items_order[item]
    if case is None:
      return (place, 0)
    return (first.setdefault((item.module, case), place), place)

  items_order = {item: number for number, item in enumerate(items)}
  items.sort(key=key)
