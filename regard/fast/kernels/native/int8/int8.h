/* Layers of an int8 Transformer. */

/* VNNI, AVX2 or SDOT; PLAIN emulates the first, so that it can be tested on any CPU. */
#if !defined(__AVX2__) && !defined(__ARM_FEATURE_DOTPROD) && !defined(PLAIN)
#error this CPU, or its compiler, has neither AVX2 nor SDOT
#endif

#include "../simd.h"
#include "api.h"

#define GROUP 4 /* adjacent numbers of a row in a panel: one lane of a dot product */
#define MIN_SCALE 1e-30f /* lower bound of the largest number of a row */

typedef struct { /* buffers for the activations of a layer */
  float *wide; /* (rows, largest output of a product) */
  float *found, *given, *stream; /* (rows, size) each */
  float *scores; /* of one query */
  long *listed; /* as many as scores */
  QuantizedRows bytes;
} Scratch;

/* Functions of `layers.c`, not exported. */
#pragma GCC visibility push(hidden)

long workspace_bytes(const Stack *stack, long rows, long scores);
Scratch layout_workspace(const Stack *stack, long rows, long scores, char *memory);
int embed(const Embedding *by, const int64_t *tokens, const int64_t *places, long rows, long size, float *x);
void norm(const LayerNorm *by, const float *x, const float *y, long rows, long size, float *out);
void pre_sublayer(const Stack *stack, const LayerNorm *around, const float *x, long rows, Scratch *scratch);
void post_sublayer(const Stack *stack, const LayerNorm *around, float *x, long rows, Scratch *scratch);
void feedforward(const Stack *stack, const Layer *layer, float *x, long rows, Scratch *scratch);
void out_proj(const Stack *stack, const LinearLayer *out, long rows, Scratch *scratch);
void attend(const float *query, const float *keys, const float *values, long apart, const long *listed, long many,
            long head, float *scores, float *found);
float logsumexp(const float *x, long many);

#pragma GCC visibility pop

/* Return the largest of some numbers, NaN if there is one. */
static inline float row_max(const float *x, long many) {
  vfloat most = splat(-INFINITY);
  for (long at = 0; at < many; at += LANES) most = vmax(most, load_n(x + at, many - at, -INFINITY));
  return reduce_max(most);
}

/* Copy a key, and its value at distance `apart`, next to each other. */
static inline void interleave_kv(const float *key, long apart, long head, float *out) {
  memcpy(out, key, sizeof(float) * head);
  memcpy(out + head, key + apart, sizeof(float) * head);
}
