"""Should I compress, and with what? `gs.advise` and its command line.

  python -m gradsparse.advise --params=25e6 --step_ms=150 --workers=8 \
    --bandwidth=1gbit

A verdict comes first ("do not compress" is one), then a table, then the code
to use. docs/choose.md says how to read it.
"""

from gradsparse.advise.advice import Advice
from gradsparse.advise.advice import Row
from gradsparse.advise.advising import advise
from gradsparse.advise.candidates import Candidate

__all__ = ('Advice', 'Candidate', 'Row', 'advise')
