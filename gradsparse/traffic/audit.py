"""`audit()`: the bytes of a compiled program's collectives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
import dataclasses
import inspect
import math
import re
from typing import Any

from gradsparse import arguments
from gradsparse import tables
from gradsparse.traffic import instructions
from gradsparse.traffic import participants
from gradsparse.traffic.instructions import Collective
import jax
from jax.sharding import AbstractMesh
from jax.sharding import Mesh
import numpy as np


@dataclasses.dataclass(frozen=True)
class Audit:
  """The collectives of a compiled program, or of one branch of it.

  >>> import gradsparse as gs, jax.numpy as jnp
  >>> audit = gs.audit(jnp.square, 2.0)  # one worker exchanges nothing
  >>> audit.sent_bytes, audit.collectives
  (0, ())

  Attributes:
    collectives: those outside any branch.
    conditionals: the branches of each conditional that holds collectives (the
      sizes of a message that changes in a run: each step takes one branch).
    axis_names: axes of the mesh that `audit` got or found; None without one.
  """

  collectives: tuple[Collective, ...]
  conditionals: tuple[tuple[Audit, ...], ...] = ()
  axis_names: tuple[str, ...] | None = None

  @property
  def branches(self) -> tuple[tuple[int, ...], ...]:
    """Sent bytes of each branch of each conditional that holds collectives."""
    return tuple(
      tuple(branch.sent_bytes for branch in branches)
      for branches in self.conditionals
    )

  @property
  def fixed_bytes(self) -> int:
    """Bytes outside branches, sent by the worker that sends most."""
    return _most_sent(self.collectives)

  @property
  def sent_bytes(self) -> int:
    """`fixed_bytes` plus the largest branch of each conditional."""
    return self.fixed_bytes + sum(max(b) for b in self.branches)

  @property
  def sent_by_axis(self) -> dict[Any, int]:
    """Bytes across each mesh axis, sent by the device that sends most there.

    A key is an axis name. Collectives across several axes are under the tuple
    of names, in the order of the mesh; those across none (each device is alone
    in its group) under (), with 0 bytes. `Plan.sent_by_axis` has the same keys.

    As in `sent_bytes`, the branch with the largest total of each conditional is
    included; another branch may send more across one axis. Each axis is rounded
    up to whole bytes, so their sum may slightly exceed `sent_bytes`.

    Raises:
      ValueError: `audit` got no mesh, and found none.
    """
    if self.axis_names is None:
      raise ValueError(
        'mesh must be given to audit() to tell the bytes by axis, got None'
      )
    by_axis: dict[Any, list[Collective]] = {}
    for c in self.collectives:
      axes = c.axes or ()
      by_axis.setdefault(axes[0] if len(axes) == 1 else axes, []).append(c)
    sent = {axis: _most_sent(over) for axis, over in by_axis.items()}
    for branches in self.conditionals:
      largest = max(branches, key=lambda branch: branch.sent_bytes)
      for axis, nbytes in largest.sent_by_axis.items():
        sent[axis] = sent.get(axis, 0) + nbytes
    return sent

  def __str__(self) -> str:
    lines = [
      f'{c.kind:<15}{c.nbytes:>14,} B of {c.workers} workers'
      + (f' over {_axes_name(c.axes)}' if c.axes else '')
      for c in self.collectives
    ]
    notes = self._notes()
    return '\n'.join([*lines, *notes, *(f'  {x}' for x in self._by_axis())])

  def _repr_html_(self) -> str:
    """The audit as HTML, for notebooks."""
    lines = self._rows()
    head = ('collective', 'operand B', 'workers', 'over')
    return tables.as_html(
      [head, *lines] if lines else [],
      left=(0, 3),
      notes=[*self._notes(), *self._by_axis()],
    )

  def _rows(self, where: str = '') -> list[tuple[str, ...]]:
    """A row a collective; those of a branch begin with the branch."""
    rows: list[tuple[str, ...]] = [
      (
        where + c.kind,
        f'{c.nbytes:,}',
        f'{c.workers}',
        _axes_name(c.axes) if c.axes else '-',
      )
      for c in self.collectives
    ]
    for branches in self.conditionals:
      for number, branch in enumerate(branches, 1):
        rows += branch._rows(f'{where}branch {number} of {len(branches)}: ')
    return rows

  def _notes(self) -> list[str]:
    """The lines below the collectives."""
    notes = [
      'one of          ' + ', '.join(f'{s:,} B' for s in sizes)
      for sizes in self.branches
    ]
    notes.append(f'sent by a worker: {self.sent_bytes:,} B')
    if not self.collectives and not self.conditionals:
      notes.append(
        'the program has no collectives: nothing is exchanged between devices. '
        'Workers that are simulated (jax.vmap) exchange nothing either; '
        'gs.plan counts what their scheme would send'
      )
    return notes

  def _by_axis(self) -> list[str]:
    if self.axis_names is None:
      return []
    return [
      f'over {_axes_name(axis)}: {sent:,} B'
      for axis, sent in self.sent_by_axis.items()
      if axis != ()
    ]


def _axes_name(axes: Any) -> str:
  return ' and '.join(map(str, arguments.axis_names(axes)))


def _most_sent(collectives: Iterable[Collective]) -> int:
  """Bytes of the device that sends most in all collectives together."""
  collectives = tuple(collectives)
  sent = np.zeros(max((len(c.sent) for c in collectives), default=0))
  for c in collectives:
    sent[: len(c.sent)] += c.sent
  return math.ceil(sent.max(initial=0.0))


_COMPUTATION = re.compile(r'^\s*(?:ENTRY\s+)?%?([\w.\-]+)\s*\(.*->.*\{\s*$')
_BRANCHES = re.compile(r'branch_computations=\{([^}]*)\}')
_TRUE_FALSE = re.compile(
  r'true_computation=%?([\w.\-]+).*?false_computation=%?([\w.\-]+)'
)
_CALLS = re.compile(r'(?:to_apply|calls|body|condition)=%?([\w.\-]+)')
_HEADER = re.compile(r'\b(?:replica_count|num_partitions)=(\d+)')


def _program(fn: Any, args: Sequence[Any]) -> tuple[Any, Any]:
  """Compiles a function for its arguments; also returns its mesh."""
  lowers = fn if hasattr(fn, 'lower') else jax.jit(fn)
  meshes = [
    x.sharding.mesh
    for x in jax.tree.leaves(args)
    if isinstance(getattr(x, 'sharding', None), jax.sharding.NamedSharding)
  ]
  try:
    traced = lowers.trace(*args)
  except AttributeError:  # jax.pmap has no stage before lowering
    lowered = lowers.lower(*args)
  else:
    meshes = [*_meshes(traced.jaxpr), *meshes]
    lowered = traced.lower()
  # Under jax.set_mesh a shard_map's mesh lacks the devices; the arguments' mesh
  # has them.
  same = [
    mesh
    for mesh in meshes
    if isinstance(mesh, Mesh) and mesh.shape == meshes[0].shape
  ]
  return lowered.compile(), next(iter([*same, *meshes]), None)


def _meshes(jaxpr: Any) -> Iterator[Any]:
  """The meshes of the `shard_map`s in a program, outermost first."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name == 'shard_map':
      yield eqn.params['mesh']
    for x in jax.tree.leaves(list(eqn.params.values())):
      if hasattr(x, 'eqns'):
        yield from _meshes(x)


def audit(
  program: Any, *args: Any, mesh: Mesh | AbstractMesh | None = None
) -> Audit:
  """Reads the bytes of a program's collectives.

  A collective in the body of a loop (`lax.scan`, `lax.while_loop`) counts once,
  however often the body runs.

    print(gs.audit(train_step, params, state, batch))

  The text of a compiled program will do, too:

  >>> import gradsparse as gs
  >>> print(gs.audit('''HloModule step, num_partitions=2
  ... ENTRY main (p: f32[100]) -> f32[100] {
  ...   ROOT sum = f32[100] all-reduce(p), replica_groups={{0,1}}
  ... }'''))
  all_reduce                400 B of 2 workers
  sent by a worker: 400 B

  Args:
    program: a function, under `jax.jit` or not, which is compiled here; or the
      result of `jax.jit(f).lower(...).compile()`, or its text.
    *args: the function's arguments, arrays or ShapeDtypeStructs (with a
      sharding where it matters). Nothing is run, and no argument changes. For a
      compiled program: none, or the mesh.
    mesh: the mesh that the program was compiled for. With it, each collective
      is assigned to the axes that it crosses; see `Audit.sent_by_axis`. None
      takes the mesh of a function's first `shard_map`, or of its first sharded
      argument. A compiled program of several TPU slices needs it.

  Returns:
    The collectives, with bytes by the formulas of counting.py. Under `jax.vmap`
    (simulated workers) there are none, and `str()` says so.

  Raises:
    TypeError: program is neither a function nor compiled, a function cannot be
      called with args, mesh is neither a Mesh nor an AbstractMesh, or a
      compiled program is given arguments.
    ValueError: the text is not that of a compiled program; neither the mesh nor
      each of its slices has the program's number of devices; a collective's
      groups are written in an unknown form; or transfers between slices need a
      mesh.
  """
  stages = jax.stages.Compiled, jax.stages.Lowered
  compiled = isinstance(program, (str, *stages))
  if compiled and len(args) == 1 and mesh is None:
    (mesh,), args = args, ()
  if not isinstance(mesh, Mesh | AbstractMesh | None):
    raise TypeError(
      f'mesh must be a jax.sharding.Mesh or AbstractMesh, got {mesh!r}'
    )
  if compiled and args:
    raise TypeError(
      f'a compiled program takes no arguments here, got {len(args)}'
    )
  if isinstance(program, jax.stages.Lowered):
    program = program.compile()
  elif not compiled:
    _check_call(program, args)
    program, found = _program(program, args)
    mesh = mesh or found
  text = program if isinstance(program, str) else program.as_text() or ''
  return _read(text, mesh)


def _check_call(program: Any, args: Sequence[Any]) -> None:
  """Refuses a program that cannot be called with these arguments."""
  if not callable(program):
    raise TypeError(
      'program must be a function, or a compiled program or its text, got '
      f'{type(program).__name__}'
    )
  try:
    signature = inspect.signature(program)
  except ValueError:  # some functions not written in Python have none
    return
  try:
    signature.bind(*args)
  except TypeError as e:
    raise TypeError(f'program cannot be called with args: {e}') from e


def _read(text: str, mesh: Mesh | AbstractMesh | None) -> Audit:
  """The collectives in the text of a compiled program."""
  if not text.startswith('HloModule'):
    raise ValueError(
      'program must be the text of a compiled program, which begins with '
      f'HloModule, got {text[:40]!r}'
    )
  devices = math.prod(map(int, _HEADER.findall(text.partition('\n')[0])))
  where = participants.slices_of(devices, mesh)
  own: dict[str, list[Collective]] = {}
  calls: dict[str, list[str]] = {}
  switches: dict[str, list[list[str]]] = {}
  name = entry = ''
  for line in text.splitlines():
    header = _COMPUTATION.match(line)
    if header:
      name = header.group(1)
      entry = name if line.lstrip().startswith('ENTRY') else entry
      own[name], calls[name], switches[name] = [], [], []
      continue
    found = instructions.parse(line, where, mesh)
    if found:
      own[name].append(found)
      continue
    branches, pair = _BRANCHES.search(line), _TRUE_FALSE.search(line)
    if branches:
      switches[name].append(re.findall(r'[\w.\-]+', branches.group(1)))
    elif pair:
      switches[name].append(list(pair.groups()))
    elif name:
      calls[name].extend(_CALLS.findall(line))

  axis_names = None if mesh is None else tuple(mesh.axis_names)

  def collect(name):
    """The collectives of a computation and of those that it calls."""
    flat, conditionals = list(own.get(name, [])), []
    for callee in calls.get(name, []):
      inner = collect(callee)
      flat += inner.collectives
      conditionals += inner.conditionals
    for switch in switches.get(name, []):
      branches = tuple(map(collect, switch))
      if any(branch.sent_bytes for branch in branches):
        conditionals.append(branches)
    return Audit(tuple(flat), tuple(conditionals), axis_names)

  return collect(entry)
