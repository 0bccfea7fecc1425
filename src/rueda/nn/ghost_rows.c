/* Ghost batch norm of channels-last memory in as few passes as there can be; ghost_compiled.py compiles and calls it.

   A ghost is a matrix of n rows and C columns, one column for each channel. Forward, it is read once for its sums and
   once more, from the cache, to be normalised; backward likewise. Sums run over blocks of rows in REAL (float or
   double, as the compiler is told), and over blocks in double. Narrow matrices are viewed as wider ones of r C columns,
   since short loops have much overhead. */

#include <math.h>
#include <stdlib.h>

#define WIDTH 64  /* columns of the wider view, at most */
#define BLOCK 128 /* rows that are added up in REAL before the sum goes to double */

/* The sums of x - shift and its square over the rows of a block, column by column. */
static void sum_moments(const REAL *restrict x, long rows, long columns, const REAL *restrict shift, REAL *restrict a,
                        REAL *restrict b) {
  for (long r = 0; r < rows; r++, x += columns)
    for (long c = 0; c < columns; c++) {
      REAL centred = x[c] - shift[c];
      a[c] += centred;
      b[c] += centred * centred;
    }
}

/* The sums of dy and of dy (x - shift). */
static void sum_products(const REAL *restrict x, const REAL *restrict dy, long rows, long columns,
                         const REAL *restrict shift, REAL *restrict a, REAL *restrict b) {
  for (long r = 0; r < rows; r++, x += columns, dy += columns)
    for (long c = 0; c < columns; c++) {
      a[c] += dy[c];
      b[c] += dy[c] * (x[c] - shift[c]);
    }
}

/* Both sums of a ghost; those of products if `dy` is not NULL. `block` has room for two rows. */
static void sum_ghost(const REAL *x, const REAL *dy, long rows, long columns, const REAL *shift, REAL *block,
                      double *first, double *second) {
  REAL *a = block, *b = block + columns;
  for (long c = 0; c < columns; c++) first[c] = second[c] = 0;
  for (long r = 0; r < rows; r += BLOCK) {
    long height = rows - r < BLOCK ? rows - r : BLOCK;
    for (long c = 0; c < columns; c++) a[c] = b[c] = 0;
    if (dy)
      sum_products(x + r * columns, dy + r * columns, height, columns, shift, a, b);
    else
      sum_moments(x + r * columns, height, columns, shift, a, b);
    for (long c = 0; c < columns; c++) first[c] += a[c], second[c] += b[c];
  }
}

/* out = scale x + shift */
static void normalise(const REAL *restrict x, REAL *restrict out, long rows, long columns, const REAL *restrict scale,
                      const REAL *restrict shift) {
  for (long r = 0; r < rows; r++, x += columns, out += columns)
    for (long c = 0; c < columns; c++) out[c] = x[c] * scale[c] + shift[c];
}

/* out = a dy + b x + d */
static void combine(const REAL *restrict dy, const REAL *restrict x, REAL *restrict out, long rows, long columns,
                    const REAL *restrict a, const REAL *restrict b, const REAL *restrict d) {
  for (long r = 0; r < rows; r++, dy += columns, x += columns, out += columns)
    for (long c = 0; c < columns; c++) out[c] = a[c] * dy[c] + (b[c] * x[c] + d[c]);
}

/* Add the columns of one channel together: the first C of r C sums become those of the channels. */
static void fold(double *sums, long columns, long channels) {
  for (long c = channels; c < columns; c++) sums[c % channels] += sums[c];
}

/* Rows of the wider view: the largest power of two that divides n and keeps r C within WIDTH. */
static long repeats(long n, long channels) {
  long r = 1;
  while (n % (2 * r) == 0 && 2 * r * channels <= WIDTH) r *= 2;
  return r;
}

/* y = w i (x - mu) + b, and the ghosts' means mu and biased variances, [ghosts, C]. Returns 1 if memory is short. */
int ghost_forward(const REAL *x, REAL *y, const REAL *weight, const REAL *bias, double eps, long ghosts, long n,
                  long channels, REAL *mean, REAL *variance, int threads) {
  long r = repeats(n, channels), columns = r * channels, rows = n / r;
  int failed = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(| : failed)
  for (long g = 0; g < ghosts; g++) {
    const REAL *in = x + g * n * channels;
    REAL *out = y + g * n * channels, *mu = mean + g * channels, *var = variance + g * channels;
    double *first = malloc(2 * columns * (sizeof(double) + 2 * sizeof(REAL))), *second = first + columns;
    if (!first) {
      failed = 1;
      continue;
    }
    REAL *scale = (REAL *)(second + columns), *shift = scale + columns, *block = shift + columns;
    long some = rows < BLOCK ? rows : BLOCK; /* their mean is near the ghost's: nothing cancels in the squares */
    for (long c = 0; c < columns; c++) shift[c] = 0;
    sum_ghost(in, NULL, some, columns, shift, block, first, second);
    fold(first, columns, channels);
    for (long c = 0; c < columns; c++) shift[c] = first[c % channels] / (some * r);
    sum_ghost(in, NULL, rows, columns, shift, block, first, second);
    fold(first, columns, channels);
    fold(second, columns, channels);
    for (long c = 0; c < channels; c++) {
      double off = first[c] / n, middle = off + shift[c], spread = second[c] / n - off * off;
      if (spread < 0) spread = 0; /* by rounding; a NaN stays one */
      mu[c] = middle;
      var[c] = spread;
      double factor = (weight ? weight[c] : 1) / sqrt(spread + eps);
      scale[c] = factor;
      shift[c] = (bias ? bias[c] : 0) - middle * factor;
    }
    for (long c = channels; c < columns; c++) scale[c] = scale[c - channels], shift[c] = shift[c - channels];
    normalise(in, out, rows, columns, scale, shift);
    free(first);
  }
  return failed;
}

/* dx, and each ghost's dw and db, [ghosts, C]: dx = a dy + b x + c with one a, b, c for each ghost and channel. */
int ghost_backward(const REAL *dy, const REAL *x, REAL *dx, const REAL *weight, const REAL *mean, const REAL *inverse,
                   long ghosts, long n, long channels, REAL *dw, REAL *db, int threads) {
  long r = repeats(n, channels), columns = r * channels, rows = n / r;
  int failed = 0;
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(| : failed)
  for (long g = 0; g < ghosts; g++) {
    const REAL *in = x + g * n * channels, *grad = dy + g * n * channels, *mu = mean + g * channels;
    REAL *out = dx + g * n * channels;
    double *first = malloc(2 * columns * (sizeof(double) + 3 * sizeof(REAL))), *second = first + columns;
    if (!first) {
      failed = 1;
      continue;
    }
    REAL *a = (REAL *)(second + columns), *b = a + columns, *d = b + columns, *middle = d + columns, *block = middle + columns;
    for (long c = 0; c < columns; c++) middle[c] = mu[c % channels];
    sum_ghost(in, grad, rows, columns, middle, block, first, second);
    fold(first, columns, channels);
    fold(second, columns, channels);
    for (long c = 0; c < channels; c++) {
      double i = inverse[g * channels + c], factor = i * (weight ? weight[c] : 1), slope = second[c] * i;
      dw[g * channels + c] = slope;
      db[g * channels + c] = first[c];
      a[c] = factor;
      b[c] = -factor * i * slope / n;
      d[c] = factor * (i * slope * mu[c] - first[c]) / n;
    }
    for (long c = channels; c < columns; c++)
      a[c] = a[c - channels], b[c] = b[c - channels], d[c] = d[c - channels];
    combine(grad, in, out, rows, columns, a, b, d);
    free(first);
  }
  return failed;
}
