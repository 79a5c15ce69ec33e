"""Kernels for TPUs and GPUs, interpreted."""

import contextlib

from gradsparse.backend import platforms
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import pytest


@contextlib.contextmanager
def interpreted(platform):
  """Kernels run interpreted, and programs are traced for this platform.

  Results do not overwrite arguments: the interpreter would return the shape of
  whole blocks.
  """
  call = pl.pallas_call

  def anew(*args, input_output_aliases=None, **more):
    del input_output_aliases
    return call(*args, interpret=platform != 'tpu', **more)

  mode = contextlib.nullcontext()
  if platform == 'tpu':
    mode = pltpu.force_tpu_interpret_mode()
  with pytest.MonkeyPatch.context() as patch, mode:
    patch.setattr(platforms, 'name', lambda: platform)
    patch.setattr(pl, 'pallas_call', anew)
    yield
