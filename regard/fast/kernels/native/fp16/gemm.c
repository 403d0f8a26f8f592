/* Products of single precision counted in half precision, on processors of ARM's that do so twice as fast.

   C = A B, with A m,k and B k,n. Both are first laid out in panels: of A eight rows each, of B 24 columns, so that what
   belongs to one step of k lies side by side; on the way numbers become halves, multiplied by a power of two that brings
   the largest of A to between 8 and 16, and of B to between 4 and 8. A tile of C, 8 rows by 24 columns, is summed up in
   halves over CHUNK steps at a time, which cannot overflow (256 · 16 · 8 < 65,504), and these sums are added in single
   precision. */

#include "require_fp16.h"

#include "../simd.h"

#include <float.h>

#define TALL 8   /* rows of a tile */
#define WIDE 24  /* its columns */
#define CHUNK 256
#define LEFT 4 /* binary digits of the largest number of A before its point, at the most */
#define RIGHT 3
#define FARTHEST 120  /* exponent of a scale */
#define SOME 24  /* panels that are written at a time */
#define DEEP 1024  /* steps of k after which panels would leave the innermost cache */

typedef float16_t half;

/* The power of two that leaves a number so many binary digits before its point. */
static float scale_of(float most, int digits) {
  int exponent;
  frexpf(most, &exponent);
  int fits = digits - exponent < -FARTHEST ? -FARTHEST : digits - exponent > FARTHEST ? FARTHEST : digits - exponent;
  return most > 0 && most < INFINITY ? ldexpf(1, fits) : 1;
}

/* The same for the largest of `rows` rows of `columns` numbers; one that is no number is not the largest. */
static float fitting(const float *x, long rows, long columns, long apart, int digits) {
  float found = 0;
#pragma omp parallel for reduction(max : found) schedule(static) if (rows * columns > 65536)
  for (long row = 0; row < rows; row++) {
    const float *here = x + row * apart;
    float32x4_t most = vdupq_n_f32(0), more = most;
    long at = 0;
    for (; at + 8 <= columns; at += 8) {
      most = vmaxnmq_f32(most, vabsq_f32(vld1q_f32(here + at)));
      more = vmaxnmq_f32(more, vabsq_f32(vld1q_f32(here + at + 4)));
    }
    float one = fmaxf(vmaxnmvq_f32(most), vmaxnmvq_f32(more));
    for (; at < columns; at++) one = fmaxf(one, fabsf(here[at]));
    found = fmaxf(found, one);
  }
  return scale_of(found, digits);
}

static float16x8_t halved(const float *x, float32x4_t scale) {
  float16x4_t first = vcvt_f16_f32(vmulq_f32(vld1q_f32(x), scale));
  return vcvt_high_f16_f32(first, vmulq_f32(vld1q_f32(x + 4), scale));
}

/* Eight rows of eight halves, each column as a row. */
static void turn(float16x8_t r[8]) {
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

/* A panel of vectors that are dense, `apart` from each other; of those that are missing all is zero. */
static void dense_panel(const float *x, long apart, long many, long k, int wide, float scale, half *out) {
  float32x4_t by = vdupq_n_f32(scale);
  for (long first = 0; first < many; first += 8) {
    long step = 0;
    if (first + 8 <= many)
      for (; step + 8 <= k; step += 8) {
        float16x8_t r[8];
        for (int i = 0; i < 8; i++) r[i] = halved(x + (first + i) * apart + step, by);
        turn(r);
        for (int i = 0; i < 8; i++) vst1q_f16(out + (step + i) * wide + first, r[i]);
      }
    for (; step < k; step++)
      for (long at = first; at < least(first + 8, many); at++)
        out[step * wide + at] = (half)(x[at * apart + step] * scale);
  }
}

/* Several panels of vectors of which each step is dense, the steps `apart`: it is read as far as it goes. With `sums`
   the numbers of each vector are added up on the way. */
static void panels(const float *x, long apart, long many, long k, int wide, float scale, half *out, float *sums) {
  float32x4_t by = vdupq_n_f32(scale);
  for (long step = 0; step < k; step++) {
    const float *here = x + step * apart;
    half *there = out + step * wide;
    if (sums)
      for (long at = 0; at < many; at++) sums[at] = here[at] + (step ? sums[at] : 0);
    for (long first = 0; first < many; first += wide, there += k * wide) {
      long at = 0, end = least(wide, many - first);
      for (; at + 8 <= end; at += 8) vst1q_f16(there + at, halved(here + first + at, by));
      for (; at < end; at++) there[at] = (half)(here[first + at] * scale);
    }
  }
}

/* All panels of `count` vectors, shared out among those who come here; with `sums`, if they are not dense, the sum of
   each. */
static void pack(const float *x, long apart, int dense, long count, long k, int wide, float scale, half *out,
                 float *sums) {
  long whole = dense ? wide : SOME * wide;
#pragma omp for schedule(static)
  for (long first = 0; first < count; first += whole) {
    long many = least(whole, count - first), last = (first + many) / wide * wide;
    if (many % wide) memset(out + last * k, 0, sizeof(half) * wide * k);
    if (dense)
      dense_panel(x + first * apart, apart, many, k, wide, scale, out + first * k);
    else
      panels(x + first, apart, many, k, wide, scale, out + first * k, sums ? sums + first : NULL);
  }
}

/* The columns of a right matrix in panels, and what they were multiplied by. */
float halves_pack(const float *x, long apart, int dense, long count, long k, half *out) {
  float scale = dense ? fitting(x, count, k, apart, RIGHT) : fitting(x, k, count, apart, RIGHT);
#pragma omp parallel if (count * k > 16384)
  pack(x, apart, dense, count, k, WIDE, scale, out, NULL);
  return scale;
}

#define ROWS(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define NOTHING(i) float16x8_t s##i = vdupq_n_f16(0), t##i = s##i, u##i = s##i;
/* Spelt out, since compilers make a vector of each lane first. */
#define ADD(sum, b, a, lane) __asm__("fmla %0.8h, %1.8h, %2.h[" #lane "]" : "+w"(sum) : "w"(b), "x"(a));
#define STEP(i) ADD(s##i, b0, a0, i) ADD(t##i, b1, a0, i) ADD(u##i, b2, a0, i)
#define LEAVE(i) leave(sums + i * WIDE, s##i, t##i, u##i, c ? c + i * apart : NULL, more, add, scale);

/* Eight sums: to those of the chunks before, if there are any, or with them to where they belong in C. */
static inline void eight(float *sums, float16x8_t sum, float *c, int more, int add, float scale) {
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

static inline void leave(float *sums, float16x8_t s, float16x8_t t, float16x8_t u, float *c, int more, int add,
                         float scale) {
  eight(sums, s, c, more, add, scale);
  eight(sums + 8, t, c ? c + 8 : NULL, more, add, scale);
  eight(sums + 16, u, c ? c + 16 : NULL, more, add, scale);
}

/* A tile over so many steps. */
static inline __attribute__((always_inline)) void tile(long steps, const half *a, const half *b, float *sums, float *c,
                                                       long apart, int more, int add, float scale) {
  ROWS(NOTHING)
  for (long step = 0; step < steps; step++, a += TALL, b += WIDE) {
    float16x8_t a0 = vld1q_f16(a), b0 = vld1q_f16(b), b1 = vld1q_f16(b + 8), b2 = vld1q_f16(b + 16);
    ROWS(STEP)
  }
  ROWS(LEAVE)
}

/* What a tile at the edge has of C. */
static void carry(const float *sums, float *c, long apart, long rows, long columns, float scale, int add) {
  for (long row = 0; row < rows; row++)
    for (long at = 0; at < columns; at++)
      c[row * apart + at] = sums[row * WIDE + at] * scale + (add ? c[row * apart + at] : 0);
}

/* One tile over so many steps of k, to where it belongs in C. What is known when it is compiled is spelt out. */
static void place(const half *a, const half *b, long steps, float *c, long apart, long rows, long columns, float scale,
                  int add) {
  float sums[TALL * WIDE];
  long step = 0;
  for (; step + CHUNK < steps; step += CHUNK)
    if (step)
      tile(CHUNK, a + step * TALL, b + step * WIDE, sums, NULL, 0, 1, 0, 0);
    else
      tile(CHUNK, a, b, sums, NULL, 0, 0, 0, 0);
  long left = steps - step;
  a += step * TALL, b += step * WIDE;
  if (rows < TALL || columns < WIDE) {
    if (step)
      tile(left, a, b, sums, NULL, 0, 1, 0, 0);
    else
      tile(left, a, b, sums, NULL, 0, 0, 0, 0);
    carry(sums, c, apart, rows, columns, scale, add);
  } else if (add) {
    if (step)
      tile(left, a, b, sums, c, apart, 1, 1, scale);
    else
      tile(left, a, b, sums, c, apart, 0, 1, scale);
  } else {
    if (step)
      tile(left, a, b, sums, c, apart, 1, 0, scale);
    else
      tile(left, a, b, sums, c, apart, 0, 0, scale);
  }
}

/* C = scale · A B, or with `add` C + scale · A B, of panels, shared out among those who come here. */
static void multiply(const half *a, const half *b, long m, long n, long k, float *c, long apart, float scale, int add) {
  long above = (m + TALL - 1) / TALL, beside = (n + WIDE - 1) / WIDE;
  int by_rows = above * TALL > n;  /* the smaller of the two matrices stays in the second cache */
  long outer = by_rows ? above : beside, inner = by_rows ? beside : above;
  for (long deep = 0; deep < k; deep += DEEP) {
    long steps = least(DEEP, k - deep);
#pragma omp for schedule(static)
    for (long one = 0; one < outer; one++)
      for (long other = 0; other < inner; other++) {
        long i = TALL * (by_rows ? one : other), j = WIDE * (by_rows ? other : one);
        place(a + i * k + deep * TALL, b + j * k + deep * WIDE, steps, c + i * apart + j, apart, least(TALL, m - i),
              least(WIDE, n - j), scale, add || deep);
      }
  }
}

/* C = A B, or with `add` C + A B, of A as it is, its rows or its columns dense, and of B in panels that were multiplied
   by `known`. Rows of C are dense, and `apart` from each other. There is room for the panels of A; with `sums`, if A's
   columns are dense, those of its rows are made on the way. No number of A is larger than `most`; 0: that is looked up. */
void halves_multiply(const float *x, long x_apart, int dense, float most, const half *b, float known, long m, long n,
                     long k, float *c, long apart, int add, half *room, float *sums) {
  float scale = most > 0 ? scale_of(most, LEFT) : fitting(x, dense ? m : k, dense ? k : m, x_apart, LEFT);
#pragma omp parallel if (m * n * k > 65536)
  {
    pack(x, x_apart, dense, m, k, TALL, scale, room, sums);
    multiply(room, b, m, n, k, c, apart, fminf(1 / scale * (1 / known), FLT_MAX), add);  /* 0 · ∞ is no number */
  }
}
