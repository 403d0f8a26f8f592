/* Layers of a Transformer whose weights are bytes. `library.py` has the same structures. */

/* VNNI of AVX-512 or of AVX, or SDOT; PLAIN spells the former out, so that it can be tested on any processor. */
#if !defined(__AVX512VNNI__) && !defined(__AVXVNNI__) && !defined(__ARM_FEATURE_DOTPROD) && !defined(PLAIN)
#error this CPU, or its compiler, has no int8 dot products
#endif

#include "../simd.h"

#define DEEP 4 /* numbers of a row that stand side by side in a panel: so many one instruction multiplies */
#define LEAST 1e-30f /* what the largest number of a row is taken for, if it is less */

typedef struct { /* y = W x + b */
  const int8_t *panels;
  const float *scales; /* of W's rows */
  const float *bias;
  const int32_t *sums; /* of the bytes of W's rows */
  long inside, outside;
} Product;

typedef struct { /* rows x in bytes, in panels */
  uint8_t *panels;
  float *scales; /* of each row */
} Rows;

typedef struct { /* a layer norm */
  const float *weight, *bias;
  float epsilon;
} Norm;

typedef struct { /* one of an encoder lacks what looks at the source */
  Norm around_attention, around_cross, around_feedforward;
  Product attention, attention_out; /* queries, keys and values; W^O */
  Product cross, cross_out; /* queries alone */
  Product inner, outer;
} Layer;

typedef struct {
  const Layer *layers;
  long count, size, heads, feedforward; /* the last is that of the widest layer */
  int post; /* a norm stands behind what it is around, not before */
  const Norm *last; /* if there is one */
} Stack;

typedef struct { /* E x · scale, plus positions */
  const float *words, *positions; /* count,size and positions,size */
  long count;
  float scale;
} Embedding;

typedef struct { /* where rows are on their way through a layer */
  float *wide; /* rows, as many as any product of a layer gives */
  float *found, *given, *stream; /* rows,size each */
  float *scores; /* of one query */
  long *listed; /* as many */
  Rows bytes;
} Scratch;

/* How many rows of W are in a panel: `weights.py` lays them out. */
long octets_wide(void);

/* Bytes of room for the panels of x rows,inside. */
long octets_room(long rows, long inside);

/* Rows x rows,inside as bytes, the largest number of each as 127. */
void octets_quantise(const float *x, long rows, long inside, Rows to);

/* y rows,outside, the rows of which lie one behind the other. */
void octets_multiply(Rows x, const Product *by, long rows, float *y, int relu);

/* The functions of `sublayers.c`, which nobody outside calls. */
#pragma GCC visibility push(hidden)

long needed(const Stack *stack, long rows, long scores);
Scratch laid_out(const Stack *stack, long rows, long scores, char *memory);
int embed(const Embedding *by, const int64_t *tokens, const int64_t *places, long rows, long size, float *x);
void norm(const Norm *by, const float *x, const float *y, long rows, long size, float *out);
void enter(const Stack *stack, const Norm *around, const float *x, long rows, Scratch *scratch);
void leave(const Stack *stack, const Norm *around, float *x, long rows, Scratch *scratch);
void feedforward(const Stack *stack, const Layer *layer, float *x, long rows, Scratch *scratch);
void combine(const Stack *stack, const Product *out, long rows, Scratch *scratch);
void find(const float *query, const float *keys, const float *values, long apart, const long *listed, long many,
          long head, float *scores, float *found);
float log_sum(const float *x, long many);

#pragma GCC visibility pop

/* The largest of some numbers; what is no number counts as that. */
static inline float top(const float *x, long many) {
  lanes most = all(-INFINITY);
  for (long at = 0; at < many; at += LANES) most = larger(most, get(x + at, many - at, -INFINITY));
  return largest(most);
}

/* A key and, `apart` from it, its value, side by side. */
static inline void pair(const float *key, long apart, long head, float *out) {
  memcpy(out, key, sizeof(float) * head);
  memcpy(out + head, key + apart, sizeof(float) * head);
}
