/* Layers of a Transformer whose weights are bytes. */

#include "../neon.h"

typedef struct { /* y = W x + b */
  const int8_t *panels; /* of W, 12 rows each, four of a row's numbers side by side */
  const float *scales; /* of W's rows */
  const float *bias;
  long in, out;
} Product;

typedef struct { /* numbers in bytes, in panels of 8 rows */
  int8_t *panels;
  float *scales; /* of each row */
} Rows;

/* Rows x rows,in as bytes, each so that its largest number is 127. */
void octets_quantise(const float *x, long rows, long in, Rows to);

/* y rows,out, the rows of which lie one behind the other. */
void octets_multiply(Rows x, const Product *by, long rows, float *y, int relu);

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
  long count, size, heads, feedforward;
  int post; /* a norm stands behind what it is around, not before */
  const Norm *last; /* if there is one */
} Stack;

typedef struct { /* for `rows` rows on their way through a layer */
  float *wide; /* rows, the most that any product gives of layers */
  float *found; /* rows,size */
  float *given; /* rows,size */
  float *stream; /* rows,size */
  float *scores; /* of one query */
  long *listed; /* as many */
  Rows bytes;
} Room;

/* The functions of `sublayers.c`, which nobody outside calls. */
#pragma GCC visibility push(hidden)

long needed(const Stack *stack, long rows, long scores);
Room laid_out(const Stack *stack, long rows, long scores, char *room);
void norm(const Norm *by, const float *x, const float *y, long rows, long size, float *out);
void enter(const Stack *stack, const Norm *around, const float *x, long rows, Room *room);
void leave(const Stack *stack, const Norm *around, float *x, long rows, Room *room);
void feedforward(const Stack *stack, const Layer *layer, float *x, long rows, Room *room);
void combine(const Stack *stack, const Product *out, long rows, Room *room);
void find(const float *query, const float *keys, const float *values, long apart, const long *listed, long many,
          long head, float *scores, float *found);
float log_sum(const float *x, long many);

#pragma GCC visibility pop

/* A key and, `apart` from it, its value, side by side. */
static inline void pair(const float *key, long apart, long head, float *out) {
  memcpy(out, key, sizeof(float) * head);
  memcpy(out + head, key + apart, sizeof(float) * head);
}
