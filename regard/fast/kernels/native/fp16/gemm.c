/* GEMM of fp32 matrices in fp16, on ARM CPUs with fp16 arithmetic.

   C = A B, with A (m, k) and B (k, n). Both are packed in panels, of eight rows of A and of 24 columns of B, in which
   the numbers of one step of k are adjacent. Packing converts to fp16, scaled by a power of two that brings the largest
   of A to between 8 and 16, and of B to between 4 and 8. A tile of C, 8 rows by 24 columns, is summed in fp16 over
   CHUNK steps at a time, which cannot overflow (256 · 16 · 8 < 65,504), and these sums are added in fp32. */

#include "api.h"

#include <float.h>

#define TILE_ROWS 8   /* rows of a tile */
#define TILE_COLUMNS 24  /* its columns */
#define CHUNK 256
#define LEFT_DIGITS 4 /* exponent of the largest scaled number of A */
#define RIGHT_DIGITS 3
#define MAX_EXPONENT 120  /* exponent of a scale */
#define PANELS_AT_A_TIME 24  /* panels packed at a time */
#define CACHE_STEPS 1024  /* steps of k that fit in the L1 cache */

typedef float16_t half;

/* Return the power of two that scales a number to below 2^digits. */
static float scale_of(float max_abs, int digits) {
  int exponent;
  frexpf(max_abs, &exponent);
  int fits = digits - exponent < -MAX_EXPONENT  ? -MAX_EXPONENT
             : digits - exponent > MAX_EXPONENT ? MAX_EXPONENT
                                                : digits - exponent;
  return max_abs > 0 && max_abs < INFINITY ? ldexpf(1, fits) : 1;
}

/* Return the scale for the largest of `rows` rows of `columns` numbers, ignoring NaN. */
static float find_scale(const float *x, long rows, long columns, long stride, int digits) {
  float found = 0;
#pragma omp parallel for reduction(max : found) schedule(static) if (rows * columns > 65536)
  for (long row = 0; row < rows; row++) {
    const float *here = x + row * stride;
    float32x4_t max_abs = vdupq_n_f32(0), more = max_abs;
    long at = 0;
    for (; at + 8 <= columns; at += 8) {
      max_abs = vmaxnmq_f32(max_abs, vabsq_f32(vld1q_f32(here + at)));
      more = vmaxnmq_f32(more, vabsq_f32(vld1q_f32(here + at + 4)));
    }
    float one = fmaxf(vmaxnmvq_f32(max_abs), vmaxnmvq_f32(more));
    for (; at < columns; at++) one = fmaxf(one, fabsf(here[at]));
    found = fmaxf(found, one);
  }
  return scale_of(found, digits);
}

static float16x8_t to_fp16(const float *x, float32x4_t scale) {
  float16x4_t first = vcvt_f16_f32(vmulq_f32(vld1q_f32(x), scale));
  return vcvt_high_f16_f32(first, vmulq_f32(vld1q_f32(x + 4), scale));
}

/* Transpose 8 × 8 numbers. */
static void transpose(float16x8_t r[8]) {
  float32x4_t q[8];
  for (int i = 0; i < 8; i += 2) {
    q[i] = vreinterpretq_f32_f16(vtrn1q_f16(r[i], r[i + 1]));
    q[i + 1] = vreinterpretq_f32_f16(vtrn2q_f16(r[i], r[i + 1]));
  }
  float64x2_t d[8];
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      d[i + j] = vreinterpretq_f64_f32(vtrn1q_f32(q[i + j], q[i + j + 2]));
      d[i + j + 2] = vreinterpretq_f64_f32(vtrn2q_f32(q[i + j], q[i + j + 2]));
    }
  for (int i = 0; i < 4; i++) {
    r[i] = vreinterpretq_f16_f64(vtrn1q_f64(d[i], d[i + 4]));
    r[i + 4] = vreinterpretq_f16_f64(vtrn2q_f64(d[i], d[i + 4]));
  }
}

/* Pack contiguous vectors, `stride` apart, into one panel; missing vectors stay zero. */
static void pack_rows_panel(const float *x, long stride, long many, long k, int wide, float scale, half *out) {
  float32x4_t by = vdupq_n_f32(scale);
  for (long first = 0; first < many; first += 8) {
    long step = 0;
    if (first + 8 <= many)
      for (; step + 8 <= k; step += 8) {
        float16x8_t r[8];
        for (int i = 0; i < 8; i++) r[i] = to_fp16(x + (first + i) * stride + step, by);
        transpose(r);
        for (int i = 0; i < 8; i++) vst1q_f16(out + (step + i) * wide + first, r[i]);
      }
    for (; step < k; step++)
      for (long at = first; at < min_long(first + 8, many); at++)
        out[step * wide + at] = (half)(x[at * stride + step] * scale);
  }
}

/* Pack several panels of vectors whose steps are contiguous, `stride` apart. `sums` receives the sum of each vector. */
static void pack_columns_panels(const float *x, long stride, long many, long k, int wide, float scale, half *out,
                                float *sums) {
  float32x4_t by = vdupq_n_f32(scale);
  for (long step = 0; step < k; step++) {
    const float *here = x + step * stride;
    half *there = out + step * wide;
    if (sums)
      for (long at = 0; at < many; at++) sums[at] = here[at] + (step ? sums[at] : 0);
    for (long first = 0; first < many; first += wide, there += k * wide) {
      long at = 0, end = min_long(wide, many - first);
      for (; at + 8 <= end; at += 8) vst1q_f16(there + at, to_fp16(here + first + at, by));
      for (; at < end; at++) there[at] = (half)(here[first + at] * scale);
    }
  }
}

/* Pack all panels of `count` vectors, shared among threads; with `sums`, unless vectors are contiguous, the sum of
 * each. */
static void pack(const float *x, long stride, int dense, long count, long k, int wide, float scale, half *out,
                 float *sums) {
  long whole = dense ? wide : PANELS_AT_A_TIME * wide;
#pragma omp for schedule(static)
  for (long first = 0; first < count; first += whole) {
    long many = min_long(whole, count - first), last = (first + many) / wide * wide;
    if (many % wide) memset(out + last * k, 0, sizeof(half) * wide * k);
    if (dense)
      pack_rows_panel(x + first * stride, stride, many, k, wide, scale, out + first * k);
    else
      pack_columns_panels(x + first, stride, many, k, wide, scale, out + first * k, sums ? sums + first : NULL);
  }
}

float fp16_pack(const float *x, long stride, int dense, long count, long k, half *out) {
  float scale = dense ? find_scale(x, count, k, stride, RIGHT_DIGITS) : find_scale(x, k, count, stride, RIGHT_DIGITS);
#pragma omp parallel if (count * k > 16384)
  pack(x, stride, dense, count, k, TILE_COLUMNS, scale, out, NULL);
  return scale;
}

#define ROWS(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define ZERO_SUMS(i) float16x8_t s##i = vdupq_n_f16(0), t##i = s##i, u##i = s##i;
/* Assembly, since compilers would broadcast each lane first. */
#define ADD(sum, b, a, lane) __asm__("fmla %0.8h, %1.8h, %2.h[" #lane "]" : "+w"(sum) : "w"(b), "x"(a));
#define STEP(i) ADD(s##i, b0, a0, i) ADD(t##i, b1, a0, i) ADD(u##i, b2, a0, i)
#define LEAVE(i) add_tile_row(sums + i * TILE_COLUMNS, s##i, t##i, u##i, c ? c + i * stride : NULL, more, add, scale);

/* Add eight sums to those of earlier chunks, or with these to C. */
static inline void add_eight(float *sums, float16x8_t sum, float *c, int more, int add, float scale) {
  float32x4_t low = vcvt_f32_f16(vget_low_f16(sum)), high = vcvt_high_f32_f16(sum);
  if (more) low = vaddq_f32(low, vld1q_f32(sums)), high = vaddq_f32(high, vld1q_f32(sums + 4));
  if (c) {
    float32x4_t by = vdupq_n_f32(scale);
    vst1q_f32(c, add ? vfmaq_f32(vld1q_f32(c), low, by) : vmulq_f32(low, by));
    vst1q_f32(c + 4, add ? vfmaq_f32(vld1q_f32(c + 4), high, by) : vmulq_f32(high, by));
  } else {
    vst1q_f32(sums, low);
    vst1q_f32(sums + 4, high);
  }
}

static inline void add_tile_row(float *sums, float16x8_t s, float16x8_t t, float16x8_t u, float *c, int more, int add,
                                float scale) {
  add_eight(sums, s, c, more, add, scale);
  add_eight(sums + 8, t, c ? c + 8 : NULL, more, add, scale);
  add_eight(sums + 16, u, c ? c + 16 : NULL, more, add, scale);
}

/* Compute a tile over some steps. */
static inline __attribute__((always_inline)) void tile(long steps, const half *a, const half *b, float *sums, float *c,
                                                       long stride, int more, int add, float scale) {
  ROWS(ZERO_SUMS)
  for (long step = 0; step < steps; step++, a += TILE_ROWS, b += TILE_COLUMNS) {
    float16x8_t a0 = vld1q_f16(a), b0 = vld1q_f16(b), b1 = vld1q_f16(b + 8), b2 = vld1q_f16(b + 16);
    ROWS(STEP)
  }
  ROWS(LEAVE)
}

/* Store the part of an edge tile that is in C. */
static void store_edge(const float *sums, float *c, long stride, long rows, long columns, float scale, int add) {
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < columns; at++)
      c[row * stride + at] = sums[row * TILE_COLUMNS + at] * scale + (add ? c[row * stride + at] : 0);
}

/* Compute one tile over some steps of k and store it to C. Constants are written out for the compiler. */
static void multiply_tile(const half *a, const half *b, long steps, float *c, long stride, long rows, long columns,
                          float scale, int add) {
  float sums[TILE_ROWS * TILE_COLUMNS];
  long step = 0;
  for (; step + CHUNK < steps; step += CHUNK)
    if (step)
      tile(CHUNK, a + step * TILE_ROWS, b + step * TILE_COLUMNS, sums, NULL, 0, 1, 0, 0);
    else
      tile(CHUNK, a, b, sums, NULL, 0, 0, 0, 0);
  long left = steps - step;
  a += step * TILE_ROWS, b += step * TILE_COLUMNS;
  if (rows < TILE_ROWS || columns < TILE_COLUMNS) {
    if (step)
      tile(left, a, b, sums, NULL, 0, 1, 0, 0);
    else
      tile(left, a, b, sums, NULL, 0, 0, 0, 0);
    store_edge(sums, c, stride, rows, columns, scale, add);
  } else if (add) {
    if (step)
      tile(left, a, b, sums, c, stride, 1, 1, scale);
    else
      tile(left, a, b, sums, c, stride, 0, 1, scale);
  } else {
    if (step)
      tile(left, a, b, sums, c, stride, 1, 0, scale);
    else
      tile(left, a, b, sums, c, stride, 0, 0, scale);
  }
}

/* C = scale · A B, or with `add` C + scale · A B, of panels, shared among threads. */
static void multiply(const half *a, const half *b, long m, long n, long k, float *c, long stride, float scale,
                     int add) {
  long row_tiles = (m + TILE_ROWS - 1) / TILE_ROWS, column_tiles = (n + TILE_COLUMNS - 1) / TILE_COLUMNS;
  int by_rows = row_tiles * TILE_ROWS > n;  /* the smaller matrix stays in the L2 cache */
  long outer = by_rows ? row_tiles : column_tiles, inner = by_rows ? column_tiles : row_tiles;
  for (long deep = 0; deep < k; deep += CACHE_STEPS) {
    long steps = min_long(CACHE_STEPS, k - deep);
#pragma omp for schedule(static)
    for (long one = 0; one < outer; one++)
      for (long other = 0; other < inner; other++) {
        long i = TILE_ROWS * (by_rows ? one : other), j = TILE_COLUMNS * (by_rows ? other : one);
        multiply_tile(a + i * k + deep * TILE_ROWS, b + j * k + deep * TILE_COLUMNS, steps, c + i * stride + j, stride,
                      min_long(TILE_ROWS, m - i), min_long(TILE_COLUMNS, n - j), scale, add || deep);
      }
  }
}

void fp16_gemm(const float *x, long x_stride, int dense, float max_abs, const half *b, float right_scale, long m,
               long n, long k, float *c, long stride, int add, half *buffer, float *sums) {
  float scale =
      max_abs > 0 ? scale_of(max_abs, LEFT_DIGITS) : find_scale(x, dense ? m : k, dense ? k : m, x_stride, LEFT_DIGITS);
#pragma omp parallel if (m * n * k > 65536)
  {
    pack(x, x_stride, dense, m, k, TILE_ROWS, scale, buffer, sums);
    multiply(buffer, b, m, n, k, c, stride, fminf(1 / scale * (1 / right_scale), FLT_MAX), add);  /* 0 · ∞ is NaN */
  }
}
