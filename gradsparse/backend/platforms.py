"""What differs between platforms, and which form of a primitive each gets.

Outside of `backend` only what differs has a name. `name` and `is_cpu` are for
the primitives of `backend` itself.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import importlib.util
import re
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

_Fn = TypeVar('_Fn', bound=Callable[..., Any])


def elsewhere(form: Callable[..., Any]) -> Callable[[_Fn], _Fn]:
  """Decorates the form for CPUs; other platforms run `form` instead.

  Args:
    form: a function of the same arrays, whose results have the same shapes and
      dtypes, and the same bits.
  """

  def decorate(on_cpus):
    @functools.wraps(on_cpus)
    def run(*arrays):
      return jax.lax.platform_dependent(*arrays, cpu=on_cpus, default=form)

    return run

  return decorate


def is_cpu() -> bool:
  """Whether a program that is traced now is for CPUs.

  It may decide sizes that are chosen while a program is traced, such as the
  length of a row, on which the results do not depend.
  """
  return name() == 'cpu'


def name() -> str:
  """The platform of the program that is traced now: 'cpu', 'tpu', 'gpu', ...

  It is that of the mesh inside `shard_map`, else JAX's default.
  """
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def stores_tiles() -> bool:
  """Whether arrays are stored in tiles, and copied to another shape: TPUs.

  XLA writes out what is read in another shape, or by several operations. This
  takes as long as three or four reads, by its estimate for a v5e
  (docs/accelerators.md). So messages stay in rows, codes in slabs and planes,
  and several results share a read.
  """
  return name() == 'tpu'


def launches_each() -> bool:
  """Whether each operation of each turn of a loop is a launch: GPUs.

  A step of 250 to 1,500 launches takes an H200 2 to 24 ms, most of them gaps
  between launches (docs/accelerators.md). So loops are written out, and
  messages are decoded all at once.
  """
  return name() == 'gpu'


def loops_freely() -> bool:
  """Whether a turn of a loop costs nothing but its work: CPUs.

  Its condition may be data, and its arrays are changed in place. A GPU would
  ask its host before each turn, and a branch would copy the arrays.
  """
  return is_cpu()


def reads_singly() -> bool:
  """Whether single elements are read and written fast, of any type: CPUs.

  TPUs gather one number at a time, and other chips sort faster than they
  scatter.
  """
  return is_cpu()


def needs_long_rows() -> bool:
  """Whether XLA has vector instructions for long rows alone: CPUs.

  It reduces rows without them. Numbers that are added up lane by lane, in rows
  of 32, take up to a sixth of the time (`reductions`).
  """
  return is_cpu()


def has_triton() -> bool:
  """Whether Triton compiles for the GPUs that are here, or if there are none.

  It knows NVIDIA's from compute capability 8.0 on. JAX says that it will drop
  Pallas for Triton some day.
  """
  if importlib.util.find_spec('jax.experimental.pallas.triton') is None:
    return False
  return all(
    re.fullmatch(r'([89]|\d\d)\.\d', str(device.compute_capability))
    for device in jax.devices()
    if device.platform == 'gpu'
  )


def narrowed(x: jax.Array, dtype: Any) -> jax.Array:
  """Integers in a narrow type, or in 32 bits on TPUs.

  A TPU computes with 32 bits. In a loop that computes and reads such integers,
  each conversion takes as long as several operations.

  Args:
    x: integers.
    dtype: an integer type that holds them.
  """
  if name() == 'tpu':
    signed = jnp.issubdtype(dtype, jnp.signedinteger)
    dtype = jnp.int32 if signed else jnp.uint32
  return x.astype(dtype)


def sends_by_gloo() -> bool:
  """Whether the workers are CPU processes that Gloo connects."""
  return jax.process_count() > 1 and jax.default_backend() == 'cpu'
