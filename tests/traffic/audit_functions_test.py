"""audit() of a function: it is compiled, and its mesh is found."""

import gradsparse as gs
from gradsparse.traffic import audit as audit_module
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import pytest
from tests import marks
from tests import replay


def two_by_two():
  return jax.make_mesh(
    (2, 2), ('node', 'device'), axis_types=(AxisType.Auto,) * 2
  )


def two_sums(x):
  return jax.lax.psum(jax.lax.psum(x, 'device'), 'node')


@pytest.mark.parametrize(
  'form',
  marks.few(
    ['plain', 'jitted', 'shapes', 'lowered', 'placed'], 'plain', 'placed'
  ),
)
def test_a_function_is_compiled_for_its_arguments(form):
  """As it is compiled by hand; the mesh is found."""
  mesh, both = two_by_two(), P(('node', 'device'))
  fn = jax.shard_map(two_sums, mesh=mesh, in_specs=both, out_specs=P())
  x = jnp.ones(16)
  by_hand = jax.jit(fn).lower(x).compile(replay.QUICKLY)
  wanted = gs.audit(by_hand, mesh)
  if form == 'plain':
    audit = gs.audit(fn, x)
  elif form == 'jitted':
    audit = gs.audit(jax.jit(fn), x)
  elif form == 'shapes':
    audit = gs.audit(fn, jax.ShapeDtypeStruct((16,), jnp.float32))
  elif form == 'lowered':
    audit = gs.audit(jax.jit(fn).lower(x), mesh)
  else:
    # Without a shard_map: JAX sums over the axis along which x is divided.
    placed = jax.device_put(x, NamedSharding(mesh, P('node')))
    audit = gs.audit(lambda x: x.sum(), placed)
    assert set(audit.sent_by_axis) == {'node'}
    return
  assert audit == wanted
  assert audit.sent_by_axis == {'device': 16, 'node': 16}


def test_the_mesh_that_is_found_has_devices_if_an_argument_has():
  """Those of several slices are told apart by their devices."""
  mesh, both = two_by_two(), P(('node', 'device'))
  placed = jax.device_put(jnp.ones(16), NamedSharding(mesh, both))
  with jax.set_mesh(mesh):
    fn = jax.shard_map(two_sums, in_specs=both, out_specs=P())
    assert audit_module._program(fn, (placed,))[1] == mesh
    by_shape = jax.ShapeDtypeStruct((16,), jnp.float32)
    found = audit_module._program(fn, (by_shape,))[1]
    assert found == mesh.abstract_mesh


@pytest.mark.parametrize('runner', marks.few(gs.workers.RUNNERS, 'shard_map'))
def test_a_program_of_parallel_is_compiled_for_its_arguments(runner):
  fn = gs.workers.parallel(
    lambda x: gs.workers.mean(x),
    runner=runner,
    num_workers=2,
    in_specs=(P('workers'),),
    out_specs=P(),
  )
  audit = gs.audit(fn, jnp.ones((2, 8)))
  assert audit.sent_bytes == (0 if runner == 'simulate' else 32)
  assert ('simulated' in str(audit)) == (runner == 'simulate')
  if runner == 'shard_map':
    assert audit.sent_by_axis == {'workers': 32}


def test_a_function_that_tells_no_signature_is_compiled_too():
  assert gs.audit(dict, {'a': jnp.ones(2)}).sent_bytes == 0
