"""Compressors: which coordinates and which values go on the wire."""

from gradsparse.compressors.identity import identity
from gradsparse.compressors.qsgd import qsgd
from gradsparse.compressors.top_k import top_k

__all__ = ('identity', 'qsgd', 'top_k')
