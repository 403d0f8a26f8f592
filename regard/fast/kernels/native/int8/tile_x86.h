/* GEMM tile for x86: VPDPBUSD multiplies four uint8 by four int8, in eight or sixteen lanes. x is shifted by 128, and
   sums start with the correction for that. Without VNNI, even and odd bytes are widened to int16 and multiplied by
   VPMADDWD; VPMADDUBSW would saturate. Both give the same sums. */

#define TILE_ROWS (LANES / 2) /* rows of a panel of x, and of a tile of y: all sums of a tile are in registers */
#define TILE_VECTORS 3 /* vectors of W */
#define TILE_COLUMNS (TILE_VECTORS * LANES) /* rows of a panel of W, and columns of a tile */
#define ZERO_POINT 128 /* added to x in panels */

/* Add the dot product of four numbers of x and four of W to each lane. */
static inline vint add_dot(vint sums, vint x, vint w) {
#if defined(__AVX512VNNI__) && LANES == 16
  return (vint)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)x, (__m512i)w);
#elif defined(__AVXVNNI__) && LANES == 8
  return (vint)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)x, (__m256i)w);
#elif defined(__AVX512BW__) && LANES == 16
  __m512i even = _mm512_srai_epi16(_mm512_slli_epi16((__m512i)w, 8), 8), odd = _mm512_srai_epi16((__m512i)w, 8);
  __m512i low = _mm512_and_si512((__m512i)x, _mm512_set1_epi16(0xff)), high = _mm512_srli_epi16((__m512i)x, 8);
  return sums + (vint)_mm512_madd_epi16(low, even) + (vint)_mm512_madd_epi16(high, odd);
#elif defined(__AVX2__) && LANES == 8
  __m256i even = _mm256_srai_epi16(_mm256_slli_epi16((__m256i)w, 8), 8), odd = _mm256_srai_epi16((__m256i)w, 8);
  __m256i low = _mm256_and_si256((__m256i)x, _mm256_set1_epi16(0xff)), high = _mm256_srli_epi16((__m256i)x, 8);
  return sums + (vint)_mm256_madd_epi16(low, even) + (vint)_mm256_madd_epi16(high, odd);
#else
  uint8_t from[4 * LANES];
  int8_t by[4 * LANES];
  memcpy(from, &x, sizeof(from));
  memcpy(by, &w, sizeof(by));
  for (int i = 0; i < 4 * LANES; i++) sums[i / 4] += from[i] * by[i];
  return sums;
#endif
}

static inline vint fetch(const void *from) {
  vint found;
  memcpy(&found, from, sizeof(found));
  return found;
}

/* Compute the first rows of a tile of y, in the columns from j on. */
static inline __attribute__((always_inline)) void rows_tile(const int rows, const uint8_t *a, const float *x_scales,
                                                            const LinearLayer *by, long j, float *y, long apart,
                                                            int relu) {
  long groups = groups_of(by->in_features);
  const int8_t *b = by->panels + j * groups * GROUP;
  vint sums[TILE_ROWS][TILE_VECTORS], w[TILE_VECTORS];
  UNROLLED for (int i = 0; i < rows; i++) UNROLLED for (int k = 0; k < TILE_VECTORS; k++) sums[i][k] =
      -ZERO_POINT * fetch(by->sums + j + k * LANES);
  for (long group = 0; group < groups; group++, a += TILE_ROWS * GROUP, b += TILE_COLUMNS * GROUP) {
    UNROLLED for (int k = 0; k < TILE_VECTORS; k++) w[k] = fetch(b + 4 * k * LANES);
    UNROLLED for (int i = 0; i < rows; i++) {
      int32_t x;
      memcpy(&x, a + GROUP * i, sizeof(x));
      UNROLLED for (int k = 0; k < TILE_VECTORS; k++) sums[i][k] = add_dot(sums[i][k], x - (vint){0}, w[k]);
    }
  }
  UNROLLED for (int i = 0; i < rows; i++) UNROLLED for (int k = 0; k < TILE_VECTORS; k++)
      dequantize(sums[i][k], x_scales[i], by, j + k * LANES, y + i * apart + k * LANES, relu);
}

/* Compute all rows of a tile of y, or half of them, in the columns from j on. */
static inline __attribute__((always_inline)) void tile(const int whole, const uint8_t *a, const float *x_scales,
                                                       const LinearLayer *by, long j, float *y, long apart, int relu) {
  if (whole)
    rows_tile(TILE_ROWS, a, x_scales, by, j, y, apart, relu);
  else
    rows_tile(TILE_ROWS / 2, a, x_scales, by, j, y, apart, relu);
}
