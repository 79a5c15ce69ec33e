"""Which schemes are measured, each with a step that ends in new parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradsparse as gs
import optax

DENSITY = 0.001
_LEARNING_RATE = 0.1
_MOMENTUM = 0.9
REFERENCE = 'momentum_sgd'


def momentum_sgd() -> optax.GradientTransformation:
  """What every step is compared with."""
  return optax.sgd(_LEARNING_RATE, momentum=_MOMENTUM)


def followed(scheme: optax.GradientTransformation) -> Any:
  """A scheme and the step that a user would take from its mean at least."""
  return optax.chain(scheme, optax.sgd(_LEARNING_RATE))


# One worker: nothing is exchanged, all else is done. Name -> scheme.
SCHEMES: dict[str, Callable[[], Any]] = {
  'dense': lambda: gs.dense(axis_name=None),
  'dropping': lambda: gs.gradient_dropping(DENSITY, axis_name=None),
  'dropping_leaf': lambda: gs.gradient_dropping(
    DENSITY, scope='leaf', axis_name=None
  ),
  'dropping_chunk': lambda: gs.gradient_dropping(
    DENSITY, scope='chunk', axis_name=None
  ),
  'dgc': lambda: gs.dgc(DENSITY, axis_name=None),
  'dgc_chunk': lambda: gs.dgc(DENSITY, scope='chunk', axis_name=None),
  'dgc_sampled': lambda: gs.dgc(DENSITY, sample_rate=0.01, axis_name=None),
  'dgc_exponent4': lambda: gs.dgc(DENSITY, values='exponent4', axis_name=None),
  'dgc_schedule': lambda: gs.dgc(
    gs.schedules.dgc_warmup(DENSITY, 1000), axis_name=None
  ),
  'gtopk': lambda: gs.gtopk(DENSITY, axis_name=None),
  'ef21': lambda: gs.ef21(DENSITY, axis_name=None),
  'strom': lambda: gs.strom(0.5, axis_name=None),
  'variance': lambda: gs.variance_based(2.0, axis_name=None),
  'variance_strom': lambda: gs.variance_strom(
    2.0, threshold=0.5, axis_name=None
  ),
  'ada_comp': lambda: gs.ada_comp(axis_name=None),
  'dryden': lambda: gs.dryden(DENSITY, axis_name=None),
  'random_k': lambda: gs.random_k(0.01, axis_name=None),
  'qsgd4': lambda: gs.qsgd(7, axis_name=None),
  'qsgd_elias': lambda: gs.qsgd(7, code='elias', axis_name=None),
  'qsgd_descent': lambda: gs.qsgd_descent(axis_name=None),
  'terngrad': lambda: gs.terngrad(axis_name=None),
  'one_bit': lambda: gs.one_bit_sgd(axis_name=None),
  'sign_majority': lambda: gs.sign_majority(axis_name=None),
  'power_sgd': lambda: gs.power_sgd(2, axis_name=None),
}
