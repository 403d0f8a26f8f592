/* Decoder step of a Transformer, and greedy search. */

#include "int8.h"

static void axpy(float *x, const float *y, float by, long many) {
  for (long at = 0; at < many; at++) x[at] += by * y[at];
}

typedef struct { /* rows of a step: hypotheses of `sources` sources */
  long rows; /* a step may be for `many` of them only, with indices `who` unless NULL */
  long many;
  const int64_t *who;
  long sources, places;
  const float *pairs; /* (layers, sources, heads, places, 2 · d_k): keys and values */
  const uint8_t *mask; /* (sources, places), True before False */
  long groups, slots, positions,
      used; /* rows of a group share a KV cache of `positions`, of which `used` are written */
  float *past; /* (layers, groups, heads, positions, slots, 2 · d_k): KV cache */
  const int64_t *table; /* (rows, used+1): slot of each position, or -1; NULL with one slot */
} DecodeBatch;

static inline long row_index(const DecodeBatch *words, long row) { return words->who ? words->who[row] : row; }

static inline long source_of(const DecodeBatch *words, long row) {
  return row_index(words, row) / (words->rows / words->sources);
}

static long length_of(const DecodeBatch *words, long source) {
  long length = 0;
  while (length < words->places && words->mask[source * words->places + length]) length++;
  return length;
}

/* List the cache entries of a row, and their number; NULL if they are contiguous. */
static const long *own(const DecodeBatch *words, const int64_t *table, Scratch *scratch, long *many) {
  *many = words->used + 1;
  if (words->slots == 1 && (!table || table[0] >= 0)) return NULL; /* then the later ones are, too */
  long found = 0;
  for (long at = 0; at < *many; at++)
    if (table[at] >= 0) scratch->listed[found++] = at * words->slots + table[at];
  *many = found;
  return scratch->listed;
}

/* Append the keys and values of the step to the cache, and attend over it. */
static void cached_self_attend(const Stack *stack, const DecodeBatch *words, long layer, Scratch *scratch) {
  long size = stack->size, heads = stack->heads, head = size / heads, slots = words->slots;
  for (long row = 0; row < words->many; row++) {
    long one = row_index(words, row), many;
    const long *listed = own(words, words->table ? words->table + one * (words->used + 1) : NULL, scratch, &many);
    const float *projected = scratch->wide + row * 3 * size;
    for (long h = 0; h < heads; h++) {
      long block = (layer * words->groups + one / slots) * heads + h;
      float *past = words->past + block * words->positions * slots * 2 * head;
      interleave_kv(projected + size + h * head, size, head, past + (words->used * slots + one % slots) * 2 * head);
      attend(projected + h * head, past, past + head, 2 * head, listed, many, head, scratch->scores,
             scratch->found + row * size + h * head);
    }
  }
}

/* Attend over the sources. Weights of one head (-1: mean of all heads) are added to `attention` (rows, places). */
static void cross_attend(const Stack *stack, const DecodeBatch *words, long layer, Scratch *scratch, long head_index,
                         float *attention) {
  long size = stack->size, heads = stack->heads, head = size / heads;
  for (long first = 0, last; first < words->many; first = last) {
    long source = source_of(words, first), length = length_of(words, source);
    for (last = first + 1; last < words->many && source_of(words, last) == source;) last++;
    for (long h = 0; h < heads; h++) {
      const float *pairs = words->pairs + ((layer * words->sources + source) * heads + h) * words->places * 2 * head;
      for (long row = first; row < last; row++) {
        float *scores = scratch->scores, share = head_index < 0 ? 1.0f / heads : head_index == h;
        long at = row * size + h * head;
        attend(scratch->wide + at, pairs, pairs + head, 2 * head, NULL, length, head, scores, scratch->found + at);
        if (attention && share > 0) axpy(attention + row_index(words, row) * words->places, scores, share, length);
      }
    }
  }
}

/* Set the output of empty sources to zero. */
static void zero_empty_sources(const DecodeBatch *words, long size, float *given) {
  for (long row = 0; row < words->many; row++)
    if (!length_of(words, source_of(words, row))) memset(given + row * size, 0, sizeof(float) * size);
}

/* Return the largest number of scores of a query up to step `last`. */
static long max_scores(const DecodeBatch *words, long last) { return last < words->places ? words->places : last + 1; }

typedef struct { /* whose attention is returned: layer and head (-1: mean of all heads) */
  long layer, head;
} AlignmentSource;

/* Run all layers: logits (many, out_features). `attention` (rows, places) is zero before. */
static void forward(const Stack *stack, const DecodeBatch *words, const LinearLayer *output, AlignmentSource from,
                    float *attention, float *logits, Scratch *scratch) {
  long rows = words->many, size = stack->size;
  float *x = scratch->stream;
  for (long row_index = 0; row_index < stack->count; row_index++) {
    const Layer *layer = stack->layers + row_index;
    pre_sublayer(stack, &layer->around_attention, x, rows, scratch);
    int8_gemm(scratch->bytes, &layer->attention, rows, scratch->wide, 0);
    cached_self_attend(stack, words, row_index, scratch);
    out_proj(stack, &layer->attention_out, rows, scratch);
    post_sublayer(stack, &layer->around_attention, x, rows, scratch);
    pre_sublayer(stack, &layer->around_cross, x, rows, scratch);
    int8_gemm(scratch->bytes, &layer->cross, rows, scratch->wide, 0);
    cross_attend(stack, words, row_index, scratch, from.head, row_index == from.layer ? attention : NULL);
    out_proj(stack, &layer->cross_out, rows, scratch);
    zero_empty_sources(words, size, scratch->given);
    post_sublayer(stack, &layer->around_cross, x, rows, scratch);
    feedforward(stack, layer, x, rows, scratch);
  }
  if (stack->last) norm(stack->last, x, NULL, rows, size, x);
  int8_quantize(x, rows, size, scratch->bytes);
  int8_gemm(scratch->bytes, output, rows, logits, 0);
}

/* Return the bytes of workspace for steps up to `last`. */
long int8_step_workspace(const Stack *stack, const DecodeBatch *words, long last) {
  return workspace_bytes(stack, words->rows, max_scores(words, last));
}

/* Take one step: log-probabilities (rows, out_features). Returns whether all token ids are valid. */
int int8_step(const Stack *stack, const DecodeBatch *words, const Embedding *embedding, const LinearLayer *output,
              AlignmentSource from, const int64_t *tokens, const int64_t *places, float *attention, float *log_probs,
              char *workspace) {
  Scratch scratch = layout_workspace(stack, words->rows, max_scores(words, words->used), workspace);
  if (!embed(embedding, tokens, places, words->rows, stack->size, scratch.stream)) return 0;
  forward(stack, words, output, from, attention, log_probs, &scratch);
  for (long row = 0; row < words->rows; row++) {
    float *x = log_probs + row * output->out_features, whole = logsumexp(x, output->out_features);
    for (long at = 0; at < output->out_features; at++) x[at] -= whole;
  }
  return 1;
}

typedef struct { /* limits of a search */
  long min_long; /* minimum length */
  const int64_t *limits; /* maximum length of each row */
  int64_t end;
  const int64_t *never; /* forbidden tokens, */
  long many; /* their number */
  const int64_t *names; /* ids of the tokens if the vocabulary is restricted, or NULL */
} SearchLimits;

typedef struct { /* open hypotheses */
  int64_t *who, *read; /* (many,): their indices, and newest tokens */
  int64_t *places; /* (many,): buffer for their positions */
  float *reached; /* (rows,): log-probabilities */
  int64_t *done; /* (rows,): last step of each */
} ActiveRows;

typedef struct { /* output of some steps */
  int64_t *tokens; /* (steps, rows) */
  float *log_probs; /* (steps, rows), cumulative */
  float *attention; /* (steps, rows, places), or NULL */
  float *logits; /* (rows, out_features), buffer */
} StepOutput;

/* Return the index of the largest allowed logit; any index if there are NaNs. */
static long argmax_allowed(float *x, long many, const SearchLimits *search, int early) {
  for (long one = 0; one < search->many; one++) x[search->never[one]] = -INFINITY;
  if (early) x[search->end] = -INFINITY;
  float most = row_max(x, many);
  long place = 0;
  while (place < many - 1 && !(x[place] >= most)) place++;
  return place;
}

/* Choose the next token of each open row; rows that have not ended stay open. */
static void greedy_update(DecodeBatch *words, const LinearLayer *output, const SearchLimits *search, ActiveRows *active,
                          long step, int64_t *tokens, float *log_probs, float *logits) {
  long left = 0;
  for (long row = 0; row < words->many; row++, logits += output->out_features) {
    float whole = logsumexp(logits, output->out_features);
    long one = active->who[row], token = argmax_allowed(logits, output->out_features, search, step < search->min_long);
    tokens[one] = token;
    log_probs[one] = active->reached[one] += logits[token] - whole;
    active->done[one] = step;
    if (token == search->end || step >= search->limits[one] || !(log_probs[one] > -INFINITY)) continue;
    active->who[left] = one;
    active->read[left++] = search->names ? search->names[token] : token;
  }
  words->many = left;
}

/* Search greedily for some steps, or until all rows have ended. */
void int8_greedy(const Stack *stack, DecodeBatch *words, const Embedding *embedding, const LinearLayer *output,
                 AlignmentSource from, const SearchLimits *search, ActiveRows *active, const StepOutput *output_steps,
                 long steps, char *workspace) {
  long rows = words->rows, looks = rows * words->places;
  Scratch scratch = layout_workspace(stack, rows, max_scores(words, words->used + steps), workspace);
  words->who = active->who;
  for (long step = 0; step < steps && words->many; step++) {
    float *attention = output_steps->attention ? output_steps->attention + step * looks : NULL;
    if (attention) memset(attention, 0, sizeof(float) * looks);
    for (long row = 0; row < words->many; row++) active->places[row] = words->used;
    embed(embedding, active->read, active->places, words->many, stack->size, scratch.stream);
    forward(stack, words, output, from, attention, output_steps->logits, &scratch);
    greedy_update(words, output, search, active, ++words->used, output_steps->tokens + step * rows,
                  output_steps->log_probs + step * rows, output_steps->logits);
  }
}
