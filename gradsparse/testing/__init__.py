"""Checks of the laws for a new scheme; they need no test framework."""

from gradsparse.testing.cases import TREES
from gradsparse.testing.cases import Case
from gradsparse.testing.check import check_scheme

__all__ = ('TREES', 'Case', 'check_scheme')
