"""Compressors: which coordinates and which values go on the wire."""

from gradsparse.compressors import rule
from gradsparse.compressors.dryden import dryden
from gradsparse.compressors.identity import identity
from gradsparse.compressors.low_rank import power_sgd
from gradsparse.compressors.one_bit import one_bit
from gradsparse.compressors.qsgd import gradient_descent
from gradsparse.compressors.qsgd import qsgd
from gradsparse.compressors.random_k import random_k
from gradsparse.compressors.rule import by_rule
from gradsparse.compressors.sign import sign
from gradsparse.compressors.terngrad import terngrad
from gradsparse.compressors.top_k import top_k

__all__ = (
  'by_rule',
  'dryden',
  'gradient_descent',
  'identity',
  'one_bit',
  'power_sgd',
  'qsgd',
  'random_k',
  'rule',
  'sign',
  'terngrad',
  'top_k',
)
