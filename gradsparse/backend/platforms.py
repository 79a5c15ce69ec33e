"""Selects between the form of a primitive for CPUs and that for other chips."""

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

  The platform is that of the mesh inside `shard_map`, else JAX's default. It
  may decide sizes that are chosen while a program is traced, such as the length
  of a row, on which the results do not depend.
  """
  return name() == 'cpu'


def name() -> str:
  """The platform of the program that is traced now: 'cpu', 'tpu', 'gpu', ..."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


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
