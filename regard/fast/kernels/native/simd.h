/* As many numbers at a time as a processor takes: vectors, on which +, -, * and / act lane by lane. */

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

/* Before a loop whose vectors are to stay in registers, each in one of its own. */
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 8")
#endif

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t wholes __attribute__((vector_size(4 * LANES)));
typedef float anywhere __attribute__((vector_size(4 * LANES), aligned(4))); /* wherever numbers lie */

static inline long least(long a, long b) { return a < b ? a : b; }

static inline lanes all(float x) { return x - (lanes){0}; }

static inline lanes load(const float *x) { return *(const anywhere *)x; }

static inline void store(float *x, lanes what) { *(anywhere *)x = what; }

/* Up to as many numbers as there are lanes; of fewer the others are as given. */
static inline lanes get(const float *x, long many, float other) {
  if (many >= LANES) return load(x);
#if defined(__AVX512F__) && LANES == 16
  return _mm512_mask_loadu_ps(all(other), (1 << many) - 1, x);
#else
  lanes some = all(other);
  memcpy(&some, x, sizeof(float) * many);
  return some;
#endif
}

static inline void put(float *x, lanes what, long many) {
  if (many >= LANES)
    store(x, what);
  else
#if defined(__AVX512F__) && LANES == 16
    _mm512_mask_storeu_ps(x, (1 << many) - 1, what);
#else
    memcpy(x, &what, sizeof(float) * many);
#endif
}

static inline lanes chosen(wholes where, lanes a, lanes b) {
  return (lanes)((where & (wholes)a) | (~where & (wholes)b));
}

/* The larger of two numbers, and the smaller; beside what is no number, that. */
#if defined(__aarch64__) && LANES == 4
static inline lanes larger(lanes a, lanes b) { return vmaxq_f32(a, b); }
static inline lanes smaller(lanes a, lanes b) { return vminq_f32(a, b); }
#else
static inline lanes larger(lanes a, lanes b) { return chosen((b > a) | (b != b), b, a); }
static inline lanes smaller(lanes a, lanes b) { return chosen((b < a) | (b != b), b, a); }
#endif

static inline lanes without_sign(lanes x) { return (lanes)((wholes)x & INT32_MAX); }

/* Of all lanes the sum, and the largest. */
static inline float sum(lanes x) {
#if defined(__aarch64__) && LANES == 4
  return vaddvq_f32(x);
#elif defined(__AVX512F__) && LANES == 16
  return _mm512_reduce_add_ps(x);
#else
  float found = 0;
  for (int i = 0; i < LANES; i++) found += x[i];
  return found;
#endif
}

static inline float largest(lanes x) {
#if defined(__aarch64__) && LANES == 4
  return vmaxvq_f32(x);
#elif defined(__AVX512F__) && LANES == 16
  return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) ? NAN : _mm512_reduce_max_ps(x);
#else
  float found = x[0];
  for (int i = 1; i < LANES; i++) found = x[i] <= found || found != found ? found : x[i];
  return found;
#endif
}

/* The sum of the lanes of each of eight vectors. */
static inline void sum_each(const lanes x[8], float found[8]) {
#if defined(__aarch64__) && LANES == 4
  for (int i = 0; i < 8; i += 4)
    store(found + i, vpaddq_f32(vpaddq_f32(x[i], x[i + 1]), vpaddq_f32(x[i + 2], x[i + 3])));
#else
  for (int i = 0; i < 8; i++) found[i] = sum(x[i]);
#endif
}

/* The nearest whole numbers. */
static inline wholes nearest(lanes x) {
#if defined(__aarch64__) && LANES == 4
  return vcvtnq_s32_f32(x);
#elif defined(__AVX512F__) && LANES == 16
  return (wholes)_mm512_cvtps_epi32(x);
#elif defined(__AVX2__) && LANES == 8
  return (wholes)_mm256_cvtps_epi32(x);
#else
  wholes found;
  for (int i = 0; i < LANES; i++) found[i] = lrintf(x[i]);
  return found;
#endif
}

/* x, within ±87, as r + n log 2: returns r, and sets `scale` to 2^n and `p` to Cephes' polynomial, e^r = 1 + r + p r². */
static inline lanes reduce_exponent(lanes x, lanes *p, lanes *scale) {
  x = smaller(larger(x, all(-87)), all(87));
  wholes exponent = nearest(x * 1.44269504f);
  lanes n = __builtin_convertvector(exponent, lanes);
  lanes r = x - n * 0.693359375f + n * 2.12194440e-4f;
  *p = 1.3981999507e-3f + 1.9875691500e-4f * r;
  *p = 8.3334519073e-3f + *p * r;
  *p = 4.1665795894e-2f + *p * r;
  *p = 1.6666665459e-1f + *p * r;
  *p = 5.0000001201e-1f + *p * r;
  *scale = (lanes)((exponent + 127) << 23);
  return r;
}

/* e^x to two units in the last place, of anything up to e^±87; what is no number stays that. */
static inline lanes power(lanes x) {
  lanes p, scale, r = reduce_exponent(x, &p, &scale);
  return (r + 1 + p * r * r) * scale;
}

/* e^x − 1 likewise, which is exact near 0, too, where power(x) − 1 has few digits left. */
static inline lanes exp_minus_one(lanes x) {
  lanes p, scale, r = reduce_exponent(x, &p, &scale);
  return (r + p * r * r) * scale + (scale - 1);
}
