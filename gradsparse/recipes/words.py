"""Words that arguments of several recipes may be, as types."""

from __future__ import annotations

from typing import Literal

Exchange = Literal['all_gather', 'reduce_scatter']
Scope = Literal['leaf', 'global', 'chunk']
Values = Literal['float32', 'bfloat16', 'exponent4', 'qsgd4', 'ternary']
Indices = Literal['elias_fano', 'run_length', 'word28']
