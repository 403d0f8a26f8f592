/* GEMM tile for ARM: SDOT multiplies four int8 by four, in four lanes. */

#define TILE_ROWS 8 /* rows of a panel of x, and of a tile of y */
#define TILE_COLUMNS 12 /* rows of a panel of W, and columns of a tile */
#define ZERO_POINT 0 /* added to x in panels */

#define HALF(DO) DO(0, a0, 0) DO(1, a0, 1) DO(2, a0, 2) DO(3, a0, 3)
#define WHOLE(DO) HALF(DO) DO(4, a1, 0) DO(5, a1, 1) DO(6, a1, 2) DO(7, a1, 3)
#define NOTHING(i, a, lane) int32x4_t s##i = vdupq_n_s32(0), t##i = s##i, u##i = s##i;
/* Assembly, since compilers would broadcast each lane first. */
#define ADD(sum, b, a, lane) __asm__("sdot %0.4s, %1.16b, %2.4b[" #lane "]" : "+w"(sum) : "w"(b), "w"(a));
#define STEP(i, a, lane) ADD(s##i, b0, a, lane) ADD(t##i, b1, a, lane) ADD(u##i, b2, a, lane)
#define DEQUANTIZE(i, a, lane)                                       \
  dequantize(s##i, x_scales[i], by, j, y + i * apart, relu);         \
  dequantize(t##i, x_scales[i], by, j + 4, y + i * apart + 4, relu); \
  dequantize(u##i, x_scales[i], by, j + 8, y + i * apart + 8, relu);

/* Compute eight rows of y, or four of them, in twelve columns from j on. */
static inline __attribute__((always_inline)) void tile(const int whole, const uint8_t *a, const float *x_scales,
                                                       const LinearLayer *by, long j, float *y, long apart, int relu) {
  long groups = groups_of(by->in_features);
  const int8_t *b = by->panels + j * groups * GROUP;
  if (whole) {
    WHOLE(NOTHING)
    for (long group = 0; group < groups; group++, a += TILE_ROWS * GROUP, b += TILE_COLUMNS * GROUP) {
      uint8x16_t a0 = vld1q_u8(a), a1 = vld1q_u8(a + 16);
      int8x16_t b0 = vld1q_s8(b), b1 = vld1q_s8(b + 16), b2 = vld1q_s8(b + 32);
      WHOLE(STEP)
    }
    WHOLE(DEQUANTIZE)
  } else {
    HALF(NOTHING)
    for (long group = 0; group < groups; group++, a += TILE_ROWS * GROUP, b += TILE_COLUMNS * GROUP) {
      uint8x16_t a0 = vld1q_u8(a);
      int8x16_t b0 = vld1q_s8(b), b1 = vld1q_s8(b + 16), b2 = vld1q_s8(b + 32);
      HALF(STEP)
    }
    HALF(DEQUANTIZE)
  }
}
