"""Compressors: which coordinates and which values go on the wire."""

from gradsparse.compressors import rule
from gradsparse.compressors.dryden import dryden
from gradsparse.compressors.identity import identity
from gradsparse.compressors.low_rank import power_sgd
from gradsparse.compressors.norm_top_k import norm_top_k
from gradsparse.compressors.random_k import random_k
from gradsparse.compressors.rule import by_rule
from gradsparse.compressors.terngrad import terngrad
from gradsparse.compressors.top_k import top_k

__all__ = (
  'by_rule',
  'dryden',
  'identity',
  'norm_top_k',
  'power_sgd',
  'random_k',
  'rule',
  'terngrad',
  'top_k',
)
