/* Layers of an int8 Transformer. `int8_weights.py` has the same structs. */

/* VNNI, AVX2 or SDOT; PLAIN emulates the first, so that it can be tested on any CPU. */
#if !defined(__AVX2__) && !defined(__ARM_FEATURE_DOTPROD) && !defined(PLAIN)
#error this CPU, or its compiler, has neither AVX2 nor SDOT
#endif

#include "../simd.h"

#define GROUP 4 /* adjacent numbers of a row in a panel: one lane of a dot product */
#define MIN_SCALE 1e-30f /* lower bound of the largest number of a row */

typedef struct { /* y = W x + b */
  const int8_t *panels;
  const float *scales; /* of the rows of W */
  const float *bias;
  const int32_t *sums; /* of the int8 rows of W */
  long in_features, out_features;
} LinearLayer;

typedef struct { /* rows of x in int8 panels */
  uint8_t *panels;
  float *scales; /* of each row */
} QuantizedRows;

typedef struct { /* a layer norm */
  const float *weight, *bias;
  float epsilon;
} LayerNorm;

typedef struct { /* an encoder layer has no cross-attention */
  LayerNorm around_attention, around_cross, around_feedforward;
  LinearLayer attention, attention_out; /* queries, keys and values; W^O */
  LinearLayer cross, cross_out; /* queries only */
  LinearLayer inner, outer;
} Layer;

typedef struct {
  const Layer *layers;
  long count, size, heads, feedforward; /* the last is the largest of all layers */
  int post; /* post-norm */
  const LayerNorm *last; /* final norm, or NULL */
} Stack;

typedef struct { /* E x · scale, plus positions */
  const float *words, *positions; /* (count, size) and (positions, size) */
  long count;
  float scale;
} Embedding;

typedef struct { /* buffers for the activations of a layer */
  float *wide; /* (rows, largest output of a product) */
  float *found, *given, *stream; /* (rows, size) each */
  float *scores; /* of one query */
  long *listed; /* as many as scores */
  QuantizedRows bytes;
} Scratch;

/* Return the rows of W per panel, which `int8_weights.py` packs. */
long int8_panel_width(void);

/* Return the bytes of the panels of x (rows, in_features). */
long int8_panel_bytes(long rows, long in_features);

/* Quantize x (rows, in_features), with 127 for the largest number of each row. */
void int8_quantize(const float *x, long rows, long in_features, QuantizedRows to);

/* Compute y (rows, out_features), contiguous. */
void int8_gemm(QuantizedRows x, const LinearLayer *by, long rows, float *y, int relu);

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
