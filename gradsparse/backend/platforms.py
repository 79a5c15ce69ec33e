"""How a primitive has one form for CPUs and another one for all other chips."""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import contextvars
import functools
from typing import Any, TypeVar

import jax

_Fn = TypeVar('_Fn', bound=Callable[..., Any])


def elsewhere(form: Callable[..., Any]) -> Callable[[_Fn], _Fn]:
  """Decorates the form for CPUs; `form` takes its place on other platforms.

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


_TRACED_FOR: contextvars.ContextVar[str | None] = contextvars.ContextVar(
  'traced_for', default=None
)


@contextlib.contextmanager
def traced_for(platform: str) -> Iterator[None]:
  """What is traced inside is for this platform, whatever devices are here.

  Args:
    platform: 'cpu', 'gpu' or 'tpu'.
  """
  token = _TRACED_FOR.set(platform)
  try:
    yield
  finally:
    _TRACED_FOR.reset(token)


def is_cpu() -> bool:
  """Whether programs are for CPUs, JAX's default devices or as `traced_for`.

  For sizes that are chosen while a program is traced, such as the length of a
  row. The results do not depend on them.
  """
  return (_TRACED_FOR.get() or jax.default_backend()) == 'cpu'


def sends_by_gloo() -> bool:
  """Whether the workers are CPU processes, which Gloo connects."""
  return jax.process_count() > 1 and jax.default_backend() == 'cpu'
