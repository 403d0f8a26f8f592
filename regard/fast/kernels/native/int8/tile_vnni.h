/* A tile of a product on processors of Intel's and AMD's: VPDPBUSD multiplies four unsigned bytes by four signed ones,
   in eight or sixteen lanes. Bytes of x are raised by 128, and sums begin with what that makes too much. */

#define TALL (LANES / 2) /* rows of a panel of x, and of a tile of y: all sums of a tile are in registers */
#define BESIDE 3 /* vectors of W */
#define WIDE (BESIDE * LANES) /* rows of a panel of W, and columns of a tile */
#define RAISED 128 /* what is added to bytes of x in panels */

/* To each lane of sums the product of four bytes of x with four of W. */
static inline wholes add_dot(wholes sums, wholes x, wholes w) {
#if defined(__AVX512VNNI__) && LANES == 16
  return (wholes)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)x, (__m512i)w);
#elif defined(__AVXVNNI__) && LANES == 8
  return (wholes)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)x, (__m256i)w);
#else
  uint8_t from[4 * LANES];
  int8_t by[4 * LANES];
  memcpy(from, &x, sizeof(from));
  memcpy(by, &w, sizeof(by));
  for (int i = 0; i < 4 * LANES; i++) sums[i / 4] += from[i] * by[i];
  return sums;
#endif
}

static inline wholes fetch(const void *from) {
  wholes found;
  memcpy(&found, from, sizeof(found));
  return found;
}

/* Of y the first rows of a tile, in its columns from j on. */
static inline __attribute__((always_inline)) void some(const int rows, const uint8_t *a, const float *x_scales,
                                                       const Product *by, long j, float *y, long apart, int relu) {
  long groups = groups_of(by->inside);
  const int8_t *b = by->panels + j * groups * DEEP;
  wholes sums[TALL][BESIDE], w[BESIDE];
  UNROLLED for (int i = 0; i < rows; i++)
    UNROLLED for (int k = 0; k < BESIDE; k++) sums[i][k] = -RAISED * fetch(by->sums + j + k * LANES);
  for (long group = 0; group < groups; group++, a += TALL * DEEP, b += WIDE * DEEP) {
    UNROLLED for (int k = 0; k < BESIDE; k++) w[k] = fetch(b + 4 * k * LANES);
    UNROLLED for (int i = 0; i < rows; i++) {
      int32_t x;
      memcpy(&x, a + DEEP * i, sizeof(x));
      UNROLLED for (int k = 0; k < BESIDE; k++) sums[i][k] = add_dot(sums[i][k], x - (wholes){0}, w[k]);
    }
  }
  UNROLLED for (int i = 0; i < rows; i++)
    UNROLLED for (int k = 0; k < BESIDE; k++)
      settle(sums[i][k], x_scales[i], by, j + k * LANES, y + i * apart + k * LANES, relu);
}

/* Of y all rows of a tile, or half of them, in its columns from j on. */
static inline __attribute__((always_inline)) void tile(const int whole, const uint8_t *a, const float *x_scales,
                                                       const Product *by, long j, float *y, long apart, int relu) {
  if (whole)
    some(TALL, a, x_scales, by, j, y, apart, relu);
  else
    some(TALL / 2, a, x_scales, by, j, y, apart, relu);
}
