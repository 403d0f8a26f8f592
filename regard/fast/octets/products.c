/* Products of bytes, four at a time (SDOT).

   Of weights and of rows each number is a byte times a scale, of a row of W or of x. Sums of their products are whole
   numbers, exactly; then they are multiplied by both scales. Both are laid out in panels, of W twelve rows each, of x
   eight, in which four numbers of each row stand side by side: a tile of y, 8 by 12, stays in registers. */

#if !defined(__aarch64__) || !defined(__ARM_FEATURE_DOTPROD)
#error this processor has no products of bytes
#endif

#include "octets.h"

/* What is no number counts as the largest. */
static float largest(const float *x, long many) {
  four most = all(0), more = most;
  long at = 0;
  for (; at + 8 <= many; at += 8) {
    most = vmaxq_f32(most, vabsq_f32(vld1q_f32(x + at)));
    more = vmaxq_f32(more, vabsq_f32(vld1q_f32(x + at + 4)));
  }
  for (; at < many; at += 4) most = vmaxq_f32(most, vabsq_f32(get(x + at, many - at, 0)));
  return vmaxvq_f32(vmaxq_f32(most, more));
}

static inline int16x4_t nearest(const float *x, long many, float by) {
  return vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(get(x, many, 0), by)));
}

/* Four groups of four bytes; what is missing is zero. */
static inline int32x4_t bytes(const float *x, long many, float by) {
  int16x4_t part[4];
  for (int i = 0; i < 4; i++) part[i] = many > 4 * i ? nearest(x + 4 * i, many - 4 * i, by) : vdup_n_s16(0);
  int16x8_t low = vcombine_s16(part[0], part[1]), high = vcombine_s16(part[2], part[3]);
  return vreinterpretq_s32_s8(vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
}

void octets_quantise(const float *x, long rows, long inside, Rows to) {
  long groups = (inside + DEEP - 1) / DEEP;
  for (long row = 0; row < rows; row++) {
    const float *here = x + row * inside;
    float top = largest(here, inside), by = top > LEAST ? 127 / top : 0;
    to.scales[row] = top < INFINITY ? top / 127 : NAN;
    int32_t *out = (int32_t *)to.panels + row / TALL * TALL * groups + row % TALL;
    for (long at = 0, group = 0; at < inside; at += 16, group += 4) {
      int32x4_t four = bytes(here + at, inside - at, by);
      vst1q_lane_s32(out + group * TALL, four, 0);
      if (group + 1 < groups) vst1q_lane_s32(out + (group + 1) * TALL, four, 1);
      if (group + 2 < groups) vst1q_lane_s32(out + (group + 2) * TALL, four, 2);
      if (group + 3 < groups) vst1q_lane_s32(out + (group + 3) * TALL, four, 3);
    }
  }
}

#define HALF(DO) DO(0, a0, 0) DO(1, a0, 1) DO(2, a0, 2) DO(3, a0, 3)
#define WHOLE(DO) HALF(DO) DO(4, a1, 0) DO(5, a1, 1) DO(6, a1, 2) DO(7, a1, 3)
#define NOTHING(i, a, lane) int32x4_t s##i = vdupq_n_s32(0), t##i = s##i, u##i = s##i;
/* Spelt out, since compilers make a vector of each lane first. */
#define ADD(sum, b, a, lane) __asm__("sdot %0.4s, %1.16b, %2.4b[" #lane "]" : "+w"(sum) : "w"(b), "w"(a));
#define STEP(i, a, lane) ADD(s##i, b0, a, lane) ADD(t##i, b1, a, lane) ADD(u##i, b2, a, lane)
#define SETTLE(i, a, lane) settle(s##i, t##i, u##i, x_scales[i], scales, bias, y + i * apart, relu);

static inline void settle(int32x4_t s, int32x4_t t, int32x4_t u, float x_scale, const float *scales,
                          const float *bias, float *y, int relu) {
  four sums[] = {vcvtq_f32_s32(s), vcvtq_f32_s32(t), vcvtq_f32_s32(u)};
  for (int i = 0; i < 3; i++) {
    four by = vmulq_n_f32(vld1q_f32(scales + 4 * i), x_scale);
    four found = vfmaq_f32(vld1q_f32(bias + 4 * i), sums[i], by);
    vst1q_f32(y + 4 * i, relu ? vmaxq_f32(found, all(0)) : found);
  }
}

/* Eight rows, or four of them, of twelve columns. */
static inline __attribute__((always_inline)) void tile(const int whole, const int8_t *a, const float *x_scales,
                                                       const int8_t *b, const float *scales, const float *bias,
                                                       long groups, float *y, long apart, int relu) {
  if (whole) {
    WHOLE(NOTHING)
    for (long group = 0; group < groups; group++, a += TALL * DEEP, b += WIDE * DEEP) {
      int8x16_t a0 = vld1q_s8(a), a1 = vld1q_s8(a + 16), b0 = vld1q_s8(b), b1 = vld1q_s8(b + 16), b2 = vld1q_s8(b + 32);
      WHOLE(STEP)
    }
    WHOLE(SETTLE)
  } else {
    HALF(NOTHING)
    for (long group = 0; group < groups; group++, a += TALL * DEEP, b += WIDE * DEEP) {
      int8x16_t a0 = vld1q_s8(a), b0 = vld1q_s8(b), b1 = vld1q_s8(b + 16), b2 = vld1q_s8(b + 32);
      HALF(STEP)
    }
    HALF(SETTLE)
  }
}

/* A tile at the edge, of which some rows and columns are wanted. */
static void edge(const int8_t *a, const float *x_scales, const int8_t *b, const float *scales, const float *bias,
                 long groups, float *y, long apart, int relu, long rows, long columns) {
  float all_of_it[TALL * WIDE], x_all[TALL] = {0};
  memcpy(x_all, x_scales, sizeof(float) * rows);
  if (rows > 4)
    tile(1, a, x_all, b, scales, bias, groups, all_of_it, WIDE, relu);
  else
    tile(0, a, x_all, b, scales, bias, groups, all_of_it, WIDE, relu);
  for (long row = 0; row < rows; row++) memcpy(y + row * apart, all_of_it + row * WIDE, sizeof(float) * columns);
}

void octets_multiply(Rows x, const Product *by, long rows, float *y, int relu) {
  long groups = (by->inside + DEEP - 1) / DEEP;
  for (long j = 0; j < by->outside; j += WIDE) {
    const int8_t *b = by->panels + j * groups * DEEP;
    for (long i = 0; i < rows; i += TALL) {
      const int8_t *a = x.panels + i * groups * DEEP;
      float *here = y + i * by->outside + j;
      if (i + TALL <= rows && j + WIDE <= by->outside)
        tile(1, a, x.scales + i, b, by->scales + j, by->bias + j, groups, here, by->outside, relu);
      else
        edge(a, x.scales + i, b, by->scales + j, by->bias + j, groups, here, by->outside, relu, least(TALL, rows - i),
             least(WIDE, by->outside - j));
    }
  }
}
