/* Copies numbers past the cache and looks whether all are finite, in one pass; stream_copy.py compiles and calls it.

   A store that goes past the cache ("non-temporal") does not read the line that it is about to overwrite: a copy moves
   two thirds of the bytes. A number is infinite or NaN if all bits of its exponent are set. */

#include <immintrin.h> /* of x86 only; elsewhere, and without AVX2, there is no kernel */
#include <stddef.h>
#include <stdint.h>

#define AHEAD 2048 /* bytes that are fetched before they are needed */

/* Return 1 if all n numbers of TYPE, a whole number as wide as they are, are finite. */
#define COPY(NAME, TYPE, EXPONENT, SET, EQUAL)                                                                      \
  int NAME(TYPE *restrict to, const TYPE *restrict from, size_t n) {                                                \
    const TYPE exponent = EXPONENT;                                                                                 \
    const __m256i exponents = SET((long long)exponent);                                                             \
    const size_t width = sizeof(__m256i) / sizeof(TYPE);                                                            \
    __m256i odd = _mm256_setzero_si256();                                                                           \
    int found = 0;                                                                                                  \
    size_t i = 0;                                                                                                   \
    for (; i < n && ((uintptr_t)(to + i) & 31); i++) {                                                              \
      to[i] = from[i];                                                                                              \
      found |= (from[i] & exponent) == exponent;                                                                    \
    }                                                                                                               \
    for (; i + 4 * width <= n; i += 4 * width) {                                                                    \
      _mm_prefetch((const char *)(from + i) + AHEAD, _MM_HINT_NTA);                                                 \
      _mm_prefetch((const char *)(from + i) + AHEAD + 64, _MM_HINT_NTA);                                            \
      for (size_t k = 0; k < 4; k++) {                                                                              \
        __m256i values = _mm256_loadu_si256((const __m256i *)(from + i + k * width));                               \
        _mm256_stream_si256((__m256i *)(to + i + k * width), values);                                               \
        odd = _mm256_or_si256(odd, EQUAL(_mm256_and_si256(values, exponents), exponents));                          \
      }                                                                                                             \
    }                                                                                                               \
    for (; i < n; i++) {                                                                                            \
      to[i] = from[i];                                                                                              \
      found |= (from[i] & exponent) == exponent;                                                                    \
    }                                                                                                               \
    _mm_sfence();                                                                                                   \
    return !found && _mm256_testz_si256(odd, odd);                                                                  \
  }

COPY(copy_float, uint32_t, 0x7f800000u, _mm256_set1_epi32, _mm256_cmpeq_epi32)
COPY(copy_double, uint64_t, 0x7ff0000000000000ull, _mm256_set1_epi64x, _mm256_cmpeq_epi64)
