"""Wire formats: payloads to `uint32` words and back.

Pure functions on arrays, which can be jitted and vmapped. Shapes are static,
and a plain Python function computes the size of a payload before tracing. Of
the rest of gradsparse, this folder imports `backend` only.

The table has the size of `count` entries out of `size` (n) elements. Words have
32 bits, and index == size marks an empty slot:

| module | holds | size |
|---|---|---|
| `fixed_width` | codes of `width` bits | `ceil(count width / 32)` words |
| `planar` | codes of whole leaves | `32 // width` codes a word |
| `planar_vector` | the same of a vector of all leaves | as `planar` |
| `bitmap` | which of n elements are set | `ceil(n / 32)` words |
| `compaction` | `count` codes out of n, given a bitmap | as `fixed_width` |
| `elias_fano` | sorted indices | 2 + log2(n / count) bits an index |
| `exponent` | values as sign and power of two | 4 bits a value, 8 a tensor |
| `elias` | integers >= 1, variable length | see its table |
| `streams` | codes back to back | block lengths, and the codes |
| `qsgd_codes` | QSGD's signed levels, dense or sparse | as `streams` |

There are three bit orders. Codes of fixed width are little-endian: code i
begins at bit `i width`, and bit b of the message is bit `b mod 32` of word
`b // 32`. Planar codes are little-endian too, but neighbours in a word are far
apart in the leaf. Streams of variable length are big-endian: the first bit is
the top bit of the first word, so that the bits of a number read as the number.
"""
