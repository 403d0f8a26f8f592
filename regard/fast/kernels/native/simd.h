/* Portable SIMD: vectors as wide as the CPU has, on which +, -, * and / act lane by lane. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef LANES
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#endif

/* Before a loop whose vectors must stay in registers. */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 8")
#endif

typedef float vfloat __attribute__((vector_size(4 * LANES)));
typedef int32_t vint __attribute__((vector_size(4 * LANES)));
typedef float vfloat_u __attribute__((vector_size(4 * LANES), aligned(4))); /* unaligned */

static inline long min_long(long a, long b) { return a < b ? a : b; }

static inline vfloat splat(float x) { return x - (vfloat){0}; }

static inline vfloat load(const float *x) { return *(const vfloat_u *)x; }

static inline void store(float *x, vfloat value) { *(vfloat_u *)x = value; }

/* Load up to LANES numbers; missing ones are `fill`. */
static inline vfloat load_n(const float *x, long count, float fill) {
  if (count >= LANES) return load(x);
#if defined(__AVX512F__) && LANES == 16
  return _mm512_mask_loadu_ps(splat(fill), (1 << count) - 1, x);
#else
  vfloat some = splat(fill);
  memcpy(&some, x, sizeof(float) * count);
  return some;
#endif
}

static inline void store_n(float *x, vfloat value, long count) {
  if (count >= LANES)
    store(x, value);
  else
#if defined(__AVX512F__) && LANES == 16
    _mm512_mask_storeu_ps(x, (1 << count) - 1, value);
#else
    memcpy(x, &value, sizeof(float) * count);
#endif
}

static inline vfloat vselect(vint mask, vfloat a, vfloat b) { return (vfloat)((mask & (vint)a) | (~mask & (vint)b)); }

/* Maximum and minimum; NaN if one of the two is NaN. */
#if defined(__aarch64__) && LANES == 4
static inline vfloat vmax(vfloat a, vfloat b) { return vmaxq_f32(a, b); }
static inline vfloat vmin(vfloat a, vfloat b) { return vminq_f32(a, b); }
#else
static inline vfloat vmax(vfloat a, vfloat b) { return vselect((b > a) | (b != b), b, a); }
static inline vfloat vmin(vfloat a, vfloat b) { return vselect((b < a) | (b != b), b, a); }
#endif

static inline vfloat vabs(vfloat x) { return (vfloat)((vint)x & INT32_MAX); }

/* Sum and maximum of all lanes. */
static inline float sum(vfloat x) {
#if defined(__aarch64__) && LANES == 4
  return vaddvq_f32(x);
#elif defined(__AVX512F__) && LANES == 16
  return _mm512_reduce_add_ps(x);
#else
  float result = 0;
  for (int i = 0; i < LANES; i++) result += x[i];
  return result;
#endif
}

static inline float reduce_max(vfloat x) {
#if defined(__aarch64__) && LANES == 4
  return vmaxvq_f32(x);
#elif defined(__AVX512F__) && LANES == 16
  return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) ? NAN : _mm512_reduce_max_ps(x);
#else
  float result = x[0];
  for (int i = 1; i < LANES; i++) result = x[i] <= result || result != result ? result : x[i];
  return result;
#endif
}

/* The sum of the lanes of each of eight vectors. */
static inline void sum_each(const vfloat x[8], float result[8]) {
#if defined(__aarch64__) && LANES == 4
  for (int i = 0; i < 8; i += 4)
    store(result + i, vpaddq_f32(vpaddq_f32(x[i], x[i + 1]), vpaddq_f32(x[i + 2], x[i + 3])));
#else
  for (int i = 0; i < 8; i++) result[i] = sum(x[i]);
#endif
}

/* Round to the nearest integers. */
static inline vint vround(vfloat x) {
#if defined(__aarch64__) && LANES == 4
  return vcvtnq_s32_f32(x);
#elif defined(__AVX512F__) && LANES == 16
  return (vint)_mm512_cvtps_epi32(x);
#elif defined(__AVX2__) && LANES == 8
  return (vint)_mm256_cvtps_epi32(x);
#else
  vint result;
  for (int i = 0; i < LANES; i++) result[i] = lrintf(x[i]);
  return result;
#endif
}

/* Split x, clamped to ±87, into r + n log 2: returns r, sets `scale` to 2^n and `p` to Cephes' polynomial, e^r = 1 + r
 * + p r². */
static inline vfloat reduce_exponent(vfloat x, vfloat *p, vfloat *scale) {
  x = vmin(vmax(x, splat(-87)), splat(87));
  vint exponent = vround(x * 1.44269504f);
  vfloat n = __builtin_convertvector(exponent, vfloat);
  vfloat r = x - n * 0.693359375f + n * 2.12194440e-4f;
  *p = 1.3981999507e-3f + 1.9875691500e-4f * r;
  *p = 8.3334519073e-3f + *p * r;
  *p = 4.1665795894e-2f + *p * r;
  *p = 1.6666665459e-1f + *p * r;
  *p = 5.0000001201e-1f + *p * r;
  *scale = (vfloat)((exponent + 127) << 23);
  return r;
}

/* e^x to two units in the last place, clamped to e^±87; NaN stays NaN. */
static inline vfloat vexp(vfloat x) {
  vfloat p, scale, r = reduce_exponent(x, &p, &scale);
  return (r + 1 + p * r * r) * scale;
}

/* e^x − 1 likewise, accurate near 0, where vexp(x) − 1 cancels. */
static inline vfloat vexpm1(vfloat x) {
  vfloat p, scale, r = reduce_exponent(x, &p, &scale);
  return (r + p * r * r) * scale + (scale - 1);
}
