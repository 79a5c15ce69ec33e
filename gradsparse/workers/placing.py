"""Which state is worker-local, and its shardings on a mesh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import functools
from typing import Any

from gradsparse import arguments
from gradsparse.collectives import AxisName
from gradsparse.state.inspection import has_local_params
from gradsparse.state.inspection import is_masked
from gradsparse.traffic import demands
from gradsparse.transform.sharding import is_spec
from gradsparse.workers import axis
from gradsparse.workers import differing
from gradsparse.wrappers import local_gradient
from gradsparse.wrappers import skip_rejected
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import optax


def params_spec(
  tx: optax.GradientTransformation, params: Any, axis_name: str = axis.AXIS
) -> P:
  """P(axis_name) if parameters differ between workers, else P().

  `gs.local_gradient` and `gs.outer` make them differ.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> from jax.sharding import PartitionSpec as P
  >>> scheme, params = gs.dense(axis_name='workers'), {'w': jnp.zeros(2)}
  >>> gs.workers.params_spec(scheme, params) == P()
  True

  Args:
    tx: any optax transformation with schemes inside.
    params: arrays or ShapeDtypeStructs, without worker axis.
    axis_name: the axis of the schemes.

  Raises:
    TypeError: tx is not an optax transformation, or a leaf is not an array.
  """
  arguments.transformation('tx', tx)
  arguments.arrays('params', params)
  state = jax.eval_shape(tx.init, params)
  return P(axis_name) if has_local_params(state) else P()


def stack(tree: Any, num_workers: int) -> Any:
  """Copies a tree for each worker, along a leading axis.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> print(gs.workers.stack({'w': jnp.array([1.0, 2.0])}, 2)['w'])
  [[1. 2.]
   [1. 2.]]

  Raises:
    TypeError: num_workers is not a whole number, or a leaf is not an array.
    ValueError: num_workers is out of range.
  """
  arguments.arrays('tree', tree)
  num_workers = arguments.num_workers(num_workers)
  return jax.tree.map(lambda x: _copies(x, (num_workers,)), tree)


def _copies(x: Any, sizes: Sequence[int]) -> jax.Array:
  """Copies an array for each worker, along leading axes of these sizes."""
  return jnp.broadcast_to(x, (*sizes, *jnp.shape(x))).copy()


def specs(
  tx: optax.GradientTransformation,
  params: Any,
  num_workers: int | Mapping[str, int],
  axis_name: AxisName = axis.AXIS,
  *,
  update_kwargs: Mapping[str, Any] | None = None,
) -> Any:
  """PartitionSpecs of the optimizer state: which leaves are worker-local.

  With schemes over several axes, each leaf has the axes along which it differs.
  Below, the memory of DGC is equal on all devices of a node:

    tx = optax.chain(gs.dense(axis_name='device'),
                     gs.dgc(0.001, axis_name='node'), optax.sgd(0.1))
    specs = gs.workers.specs(tx, params, {'node': 4, 'device': 8})

  >>> import gradsparse as gs, jax.numpy as jnp, optax
  >>> from jax.sharding import PartitionSpec as P
  >>> scheme = gs.gradient_dropping(0.01, axis_name='workers')
  >>> tx = optax.chain(scheme, optax.adam(0.1))
  >>> specs = gs.workers.specs(tx, {'w': jnp.zeros((5, 3))}, num_workers=2)
  >>> specs[0].memory.residual['w'] == P('workers'), specs[1][0].mu['w'] == P()
  (True, True)

  Args:
    tx: any optax transformation with schemes inside.
    params: arrays or ShapeDtypeStructs, without worker axis.
    num_workers: P; or a mapping from axis name to P for several axes, the
      outermost first, as in `parallel`. All axes of the schemes must be there,
      each by itself even if a scheme has a tuple of them.
    axis_name: the axis of the schemes, if num_workers is one number.
    update_kwargs: further arguments of `tx.update`, by name, other than those
      of optax's own optimizers (`value`, `grad`, `value_fn`, `obj_fn`,
      `grad_fn`) and of schemes (`second_moment`). They must be equal on all
      workers; of arrays only shape and dtype are used.

  Returns:
    A tree like `tx.init(params)` of PartitionSpecs: P(axis_name) for leaves
    that differ between workers, else P(); with several axes P('node'), say, or
    P('node', 'device'), which has two leading axes.

  Raises:
    TypeError: an argument is of the wrong kind; or `tx.update` needs an
      argument that is not in update_kwargs.
    ValueError: the update of a parameter would differ between workers, because
      no scheme averages it (the message names the first one); or num_workers is
      not positive; or optax.MultiSteps is used with several axes; or one
      `gs.skip_rejected` judges several schemes of `optax.partition`.
    NameError: a scheme has an axis that is not among these.
  """
  axes = axis.axes_of(num_workers, axis_name)
  arguments.transformation('tx', tx)
  arguments.arrays('params', params)
  leaves, treedef = jax.tree.flatten(axis.shapes(params))
  # Settings that decide the types of a traced program.
  names = 'enable_x64', 'numpy_dtype_promotion', 'numpy_rank_promotion'
  config = tuple(getattr(jax.config, f'jax_{name}') for name in names)
  sizes = tuple(axes.items())
  key = tx, treedef, tuple(leaves), sizes, update_kwargs, config
  try:
    hash(key)
  except TypeError:  # the tree and update_kwargs may not be hashable
    return _traced.__wrapped__(*key)
  # Each caller gets its own tree.
  return jax.tree.map(lambda spec: spec, _traced(*key), is_leaf=is_spec)


@functools.lru_cache(maxsize=64)
def _traced(tx, treedef, leaves, sizes, update_kwargs, config):
  """`specs` of checked arguments, cached because it is slow."""
  del config
  params, axes = jax.tree.unflatten(treedef, leaves), dict(sizes)
  # A new function each time: eval_shape caches, and a scheme's `init` must run.
  with demands.heard() as wanted:
    state = jax.eval_shape(lambda p: tx.init(p), params)
  skip_rejected.check_verdicts(state)
  treedef = jax.tree.structure(state)
  update = demands.update_of(tx, wanted, update_kwargs)
  settled = functools.partial(differing.settled, params, state, axes, update)
  varies, updates = settled()
  if has_local_params(state):
    # Only the updates of gs.local_gradient may differ.
    with local_gradient.only_means():
      _, updates = settled()
  if updates:
    name, over = updates[0]
    raise ValueError(
      f'the update of {name} differs between workers: no '
      f'gradsparse scheme averages it over axis {over!r}, so workers '
      'would drift apart. Give every parameter a scheme, gs.dense for '
      'instance (with optax.partition, not optax.masked), or '
      'optax.set_to_zero() if it is frozen. If your own scheme averages it, '
      'its Memory.update may only read means, and fields that its state marks '
      'by gs.extend.shared. A variance-based scheme cannot follow gs.dense of '
      'another axis, over which its second_moment would not be averaged.'
    )
  return jax.tree.unflatten(
    treedef, [P(*(name for name in axes if name in own)) for own in varies]
  )


def init(
  tx: optax.GradientTransformation,
  params: Any,
  num_workers: int | Mapping[str, int],
  axis_name: AxisName = axis.AXIS,
  *,
  update_kwargs: Mapping[str, Any] | None = None,
) -> Any:
  """`tx.init(params)` with leading worker axes on worker-local leaves.

  >>> import gradsparse as gs, jax.numpy as jnp, optax
  >>> scheme = gs.gradient_dropping(0.01, axis_name='workers')
  >>> tx = optax.chain(scheme, optax.adam(0.1))
  >>> state = gs.workers.init(tx, {'w': jnp.zeros((5, 3))}, num_workers=2)
  >>> gs.pending(state)['w'].shape, state[1][0].mu['w'].shape
  ((2, 5, 3), (5, 3))

  Args:
    tx: any optax transformation with schemes inside.
    params: parameters of one worker; equal on all.
    num_workers: P; or a mapping from axis name to P for several axes. A leaf
      has the axes over which it differs, see `specs`.
    axis_name: the axis of the schemes, if num_workers is one number.
    update_kwargs: as in `specs`.

  Raises:
    TypeError, ValueError, NameError: as `specs`.
  """
  axes = axis.axes_of(num_workers, axis_name)
  by_worker = specs(tx, params, axes, update_kwargs=update_kwargs)

  def stacked(x, spec):
    return _copies(x, [axes[name] for name in spec]) if tuple(spec) else x

  return jax.tree.map(stacked, tx.init(params), by_worker)


def shardings(
  tx: optax.GradientTransformation,
  params: Any,
  mesh: Mesh,
  axis_name: AxisName = axis.AXIS,
  *,
  update_kwargs: Mapping[str, Any] | None = None,
) -> Any:
  """The shardings of the state that `gs.workers.init` makes.

  Worker-local leaves are sharded over the worker axes. Subtrees shaped like the
  parameters are also sharded like them: by the `param_specs` of a `gs.sharded`
  scheme, or else by the shardings of `params`.

    state = jax.device_put(gs.workers.init(tx, params, 2, 'replica'),
                           gs.workers.shardings(tx, params, mesh, 'replica'))

  >>> import gradsparse as gs, jax, jax.numpy as jnp
  >>> from jax.sharding import PartitionSpec as P
  >>> mesh = jax.make_mesh((1,), ('workers',))
  >>> tx = gs.gradient_dropping(0.01, axis_name='workers')
  >>> placed = gs.workers.shardings(tx, {'w': jnp.zeros((5, 3))}, mesh)
  >>> placed.memory.residual['w'].spec == P('workers')
  True

  Args:
    tx: any optax transformation with schemes inside.
    params: arrays, or ShapeDtypeStructs with shardings; without worker axis.
      Those without a NamedSharding count as replicated.
    mesh: the program's mesh.
    axis_name: the axis of the schemes; a tuple for several axes, the outermost
      first.
    update_kwargs: further arguments of `tx.update`, as in `gs.workers.specs`.

  Returns:
    Tree of NamedShardings.

  Raises:
    TypeError: an argument is of the wrong kind.
    ValueError: the mesh does not have the axis; or as `gs.workers.specs`.
  """
  arguments.transformation('tx', tx)
  arguments.arrays('params', params)
  axes = axis.axes_on(mesh, axis_name)
  with demands.heard() as told:
    state = jax.eval_shape(lambda p: tx.init(p), params)
  own = specs(tx, params, axes, update_kwargs=update_kwargs)

  def spec_of(path, x):
    sharding = getattr(x, 'sharding', None)
    placed = sharding.spec if isinstance(sharding, NamedSharding) else P()
    return told.param_specs.get(jax.tree_util.keystr(path), placed)

  like = jax.tree_util.tree_map_with_path(spec_of, params)
  shapes = [jnp.shape(x) for x in jax.tree.leaves(params)]
  treedef: Any = jax.tree.structure(params)

  def is_like(node):
    """Whether a node is shaped like the parameters, or like some of them."""
    leaves, own = jax.tree.flatten(node, is_leaf=is_masked)
    return own == treedef and all(
      is_masked(x) or jnp.shape(x) == shape
      for x, shape in zip(leaves, shapes, strict=True)
    )

  def inner(node):
    if not is_like(node):
      return P()
    return jax.tree.map(
      lambda x, spec: x if is_masked(x) else spec, node, like, is_leaf=is_masked
    )

  return jax.tree.map(
    lambda own, inner: NamedSharding(mesh, P(*own, *inner)),
    own,
    jax.tree.map(inner, state, is_leaf=is_like),
  )
