/* Four numbers at a time, on processors of ARM's. */

#include <arm_neon.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef float32x4_t four;

static inline long least(long a, long b) { return a < b ? a : b; }

static inline four all(float x) { return vdupq_n_f32(x); }

/* Up to four numbers; of fewer the others are as given. */
static inline four get(const float *x, long many, float other) {
  if (many >= 4) return vld1q_f32(x);
  float some[4] = {other, other, other, other};
  memcpy(some, x, sizeof(float) * many);
  return vld1q_f32(some);
}

static inline void put(float *x, four what, long many) {
  if (many >= 4) {
    vst1q_f32(x, what);
  } else {
    float some[4];
    vst1q_f32(some, what);
    memcpy(x, some, sizeof(float) * many);
  }
}

/* e^x to two units in the last place, of anything up to e^±87 (Cephes' polynomial); what is no number stays that. */
static inline four power(four x) {
  x = vminq_f32(vmaxq_f32(x, all(-87.0f)), all(87.0f));
  four n = vrndnq_f32(vmulq_f32(x, all(1.44269504f)));
  four r = vfmaq_f32(vfmsq_f32(x, n, all(0.693359375f)), n, all(2.12194440e-4f));
  four p = vfmaq_f32(all(1.3981999507e-3f), all(1.9875691500e-4f), r);
  p = vfmaq_f32(all(8.3334519073e-3f), p, r);
  p = vfmaq_f32(all(4.1665795894e-2f), p, r);
  p = vfmaq_f32(all(1.6666665459e-1f), p, r);
  p = vfmaq_f32(all(5.0000001201e-1f), p, r);
  p = vfmaq_f32(vaddq_f32(r, all(1)), vmulq_f32(p, r), r);
  return vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23)));
}
