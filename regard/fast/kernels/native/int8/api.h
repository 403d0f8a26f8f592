/* Structs and functions that Python calls; `build.py: read_api` reads them here. */

#include <stdint.h>

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
  int swish; /* the activation is swish, x / (1 + e^-x), instead of ReLU */
  const LayerNorm *last; /* final norm, or NULL */
} Stack;

typedef struct { /* E x · scale, plus positions */
  const float *words, *positions; /* (count, size) and (positions, size) */
  long count;
  float scale;
} Embedding;

typedef struct { /* rows of a step: hypotheses of `sources` sources */
  long rows; /* a step may be for `num_active` of them only, with indices `row_ids` unless NULL */
  long num_active;
  const int64_t *row_ids;
  long sources, source_length;
  const float *source_kv; /* (layers, sources, heads, source_length, 2 · d_k): keys and values */
  const uint8_t *mask; /* (sources, source_length), True before False */
  long groups, slots; /* rows of a group share a KV cache */
  long positions, num_written; /* of the KV cache, in all and written */
  float *kv_cache; /* (layers, groups, heads, positions, slots, 2 · d_k) */
  const int64_t *table; /* (rows, num_written+1): slot of each position, or -1; NULL with one slot */
} DecodeBatch;

typedef struct { /* whose attention is returned: layer and head (-1: mean of all heads) */
  long layer, head;
} AlignmentSource;

typedef struct { /* limits of a search */
  long min_length;
  const int64_t *max_lengths; /* of each row */
  int64_t eos;
  const int64_t *forbidden; /* tokens */
  long num_forbidden;
  const int64_t *token_ids; /* of the tokens if the vocabulary is restricted, or NULL */
} SearchLimits;

typedef struct { /* open hypotheses */
  int64_t *row_ids, *tokens; /* (num_active,): their indices, and newest tokens */
  int64_t *positions; /* (num_active,): buffer for the positions of the tokens */
  float *log_probs; /* (rows,) */
  int64_t *done; /* (rows,): last step of each */
} ActiveRows;

typedef struct { /* output of some steps */
  int64_t *tokens; /* (steps, rows) */
  float *log_probs; /* (steps, rows), cumulative */
  float *attention; /* (steps, rows, source_length), or NULL */
  float *logits; /* (rows, out_features), buffer */
} StepOutput;

/* Return the rows of W per panel, which `int8.py: WeightArena` packs. */
long int8_panel_width(void);

/* Return the bytes of the panels of x (rows, in_features). */
long int8_panel_bytes(long rows, long in_features);

/* Quantize x (rows, in_features), with 127 for the largest number of each row. */
void int8_quantize(const float *x, long rows, long in_features, QuantizedRows to);

/* Compute y (rows, out_features), contiguous. */
void int8_gemm(QuantizedRows x, const LinearLayer *by, long rows, float *y, int relu);

/* Return the bytes of workspace of `int8_encode`. */
long int8_encode_workspace(const Stack *stack, long places);

/* Encode sources of ids (sources, places); for each of `count` decoder layers, `memory` projects them to interleaved
   keys and values (count, sources, heads, places, 2 · d_k). A few sources at a time, so that activations stay in the
   cache. Returns whether all ids are valid. */
int int8_encode(const Stack *stack, const Embedding *embedding, const int64_t *ids, const int64_t *lengths,
                long sources, long places, const LinearLayer *memory, long count, long heads, float *pairs,
                char *workspace);

/* Return the bytes of workspace for steps up to `last`. */
long int8_step_workspace(const Stack *stack, const DecodeBatch *batch, long last);

/* Take one step: log-probabilities (rows, out_features). Returns whether all token ids are valid. */
int int8_step(const Stack *stack, const DecodeBatch *batch, const Embedding *embedding, const LinearLayer *output,
              AlignmentSource from, const int64_t *tokens, const int64_t *places, float *attention, float *log_probs,
              char *workspace);

/* Search greedily for some steps, or until all rows have ended. */
void int8_greedy(const Stack *stack, DecodeBatch *batch, const Embedding *embedding, const LinearLayer *output,
                 AlignmentSource from, const SearchLimits *search, ActiveRows *active, const StepOutput *output_steps,
                 long steps, char *workspace);
