/* Decoder step of a Transformer, and greedy search. */

#include "int8.h"

static void axpy(float *x, const float *y, float by, long many) {
  for (long at = 0; at < many; at++) x[at] += by * y[at];
}

static inline long row_index(const DecodeBatch *batch, long row) { return batch->row_ids ? batch->row_ids[row] : row; }

static inline long source_index(const DecodeBatch *batch, long row) {
  return row_index(batch, row) / (batch->rows / batch->sources);
}

static long real_length(const DecodeBatch *batch, long source) {
  long length = 0;
  while (length < batch->source_length && batch->mask[source * batch->source_length + length]) length++;
  return length;
}

/* List the cache entries of a row, and their number; NULL if they are contiguous. */
static const long *cache_entries(const DecodeBatch *batch, const int64_t *table, Scratch *scratch, long *many) {
  *many = batch->num_written + 1;
  if (batch->slots == 1 && (!table || table[0] >= 0)) return NULL; /* then the later ones are, too */
  long found = 0;
  for (long at = 0; at < *many; at++)
    if (table[at] >= 0) scratch->listed[found++] = at * batch->slots + table[at];
  *many = found;
  return scratch->listed;
}

/* Append the keys and values of the step to the cache, and attend over it. */
static void cached_self_attend(const Stack *stack, const DecodeBatch *batch, long layer, Scratch *scratch) {
  long size = stack->size, heads = stack->heads, head = size / heads, slots = batch->slots;
  for (long row = 0; row < batch->num_active; row++) {
    long one = row_index(batch, row), many;
    const int64_t *table = batch->table ? batch->table + one * (batch->num_written + 1) : NULL;
    const long *listed = cache_entries(batch, table, scratch, &many);
    const float *projected = scratch->wide + row * 3 * size;
    for (long h = 0; h < heads; h++) {
      long block = (layer * batch->groups + one / slots) * heads + h;
      float *past = batch->kv_cache + block * batch->positions * slots * 2 * head;
      float *newest = past + (batch->num_written * slots + one % slots) * 2 * head;
      interleave_kv(projected + size + h * head, size, head, newest);
      attend(projected + h * head, past, past + head, 2 * head, listed, many, head, scratch->scores,
             scratch->found + row * size + h * head);
    }
  }
}

/* Attend over the sources. Weights of one head (-1: mean of all heads) are added to `attention`
   (rows, source_length). */
static void cross_attend(const Stack *stack, const DecodeBatch *batch, long layer, Scratch *scratch, long head_index,
                         float *attention) {
  long size = stack->size, heads = stack->heads, head = size / heads;
  for (long first = 0, last; first < batch->num_active; first = last) {
    long source = source_index(batch, first), length = real_length(batch, source);
    for (last = first + 1; last < batch->num_active && source_index(batch, last) == source;) last++;
    for (long h = 0; h < heads; h++) {
      long block = (layer * batch->sources + source) * heads + h;
      const float *pairs = batch->source_kv + block * batch->source_length * 2 * head;
      for (long row = first; row < last; row++) {
        float *scores = scratch->scores, share = head_index < 0 ? 1.0f / heads : head_index == h;
        long at = row * size + h * head;
        attend(scratch->wide + at, pairs, pairs + head, 2 * head, NULL, length, head, scores, scratch->found + at);
        if (!attention || share <= 0) continue;
        axpy(attention + row_index(batch, row) * batch->source_length, scores, share, length);
      }
    }
  }
}

/* Set the output of empty sources to zero. */
static void zero_empty_sources(const DecodeBatch *batch, long size, float *given) {
  for (long row = 0; row < batch->num_active; row++)
    if (!real_length(batch, source_index(batch, row))) memset(given + row * size, 0, sizeof(float) * size);
}

/* Return the largest number of scores of a query up to step `last`. */
static long max_scores(const DecodeBatch *batch, long last) {
  return last < batch->source_length ? batch->source_length : last + 1;
}

/* Run all layers: logits (num_active, out_features). `attention` (rows, source_length) is zero before. */
static void forward(const Stack *stack, const DecodeBatch *batch, const LinearLayer *output, AlignmentSource from,
                    float *attention, float *logits, Scratch *scratch) {
  long rows = batch->num_active, size = stack->size;
  float *x = scratch->stream;
  for (long layer_index = 0; layer_index < stack->count; layer_index++) {
    const Layer *layer = stack->layers + layer_index;
    pre_sublayer(stack, &layer->around_attention, x, rows, scratch);
    int8_gemm(scratch->bytes, &layer->attention, rows, scratch->wide, 0);
    cached_self_attend(stack, batch, layer_index, scratch);
    out_proj(stack, &layer->attention_out, rows, scratch);
    post_sublayer(stack, &layer->around_attention, x, rows, scratch);
    pre_sublayer(stack, &layer->around_cross, x, rows, scratch);
    int8_gemm(scratch->bytes, &layer->cross, rows, scratch->wide, 0);
    cross_attend(stack, batch, layer_index, scratch, from.head, layer_index == from.layer ? attention : NULL);
    out_proj(stack, &layer->cross_out, rows, scratch);
    zero_empty_sources(batch, size, scratch->given);
    post_sublayer(stack, &layer->around_cross, x, rows, scratch);
    feedforward(stack, layer, x, rows, scratch);
  }
  if (stack->last) norm(stack->last, x, NULL, rows, size, x);
  int8_quantize(x, rows, size, scratch->bytes);
  int8_gemm(scratch->bytes, output, rows, logits, 0);
}

long int8_step_workspace(const Stack *stack, const DecodeBatch *batch, long last) {
  return workspace_bytes(stack, batch->rows, max_scores(batch, last));
}

int int8_step(const Stack *stack, const DecodeBatch *batch, const Embedding *embedding, const LinearLayer *output,
              AlignmentSource from, const int64_t *tokens, const int64_t *places, float *attention, float *log_probs,
              char *workspace) {
  Scratch scratch = layout_workspace(stack, batch->rows, max_scores(batch, batch->num_written), workspace);
  if (!embed(embedding, tokens, places, batch->rows, stack->size, scratch.stream)) return 0;
  forward(stack, batch, output, from, attention, log_probs, &scratch);
  for (long row = 0; row < batch->rows; row++) {
    float *x = log_probs + row * output->out_features, whole = logsumexp(x, output->out_features);
    for (long at = 0; at < output->out_features; at++) x[at] -= whole;
  }
  return 1;
}

/* Return the index of the largest allowed logit; any index if there are NaNs. */
static long argmax_allowed(float *x, long many, const SearchLimits *search, int early) {
  for (long one = 0; one < search->num_forbidden; one++) x[search->forbidden[one]] = -INFINITY;
  if (early) x[search->eos] = -INFINITY;
  float most = row_max(x, many);
  long place = 0;
  while (place < many - 1 && !(x[place] >= most)) place++;
  return place;
}

/* Choose the next token of each open row; rows that have not ended stay open. */
static void greedy_update(DecodeBatch *batch, const LinearLayer *output, const SearchLimits *search, ActiveRows *active,
                          long step, int64_t *tokens, float *log_probs, float *logits) {
  long left = 0;
  for (long row = 0; row < batch->num_active; row++, logits += output->out_features) {
    float whole = logsumexp(logits, output->out_features);
    int early = step < search->min_length;
    long one = active->row_ids[row], token = argmax_allowed(logits, output->out_features, search, early);
    tokens[one] = token;
    log_probs[one] = active->log_probs[one] += logits[token] - whole;
    active->done[one] = step;
    if (token == search->eos || step >= search->max_lengths[one] || !(log_probs[one] > -INFINITY)) continue;
    active->row_ids[left] = one;
    active->tokens[left++] = search->token_ids ? search->token_ids[token] : token;
  }
  batch->num_active = left;
}

void int8_greedy(const Stack *stack, DecodeBatch *batch, const Embedding *embedding, const LinearLayer *output,
                 AlignmentSource from, const SearchLimits *search, ActiveRows *active, const StepOutput *output_steps,
                 long steps, char *workspace) {
  long rows = batch->rows, attention_size = rows * batch->source_length;
  Scratch scratch = layout_workspace(stack, rows, max_scores(batch, batch->num_written + steps), workspace);
  batch->row_ids = active->row_ids;
  for (long step = 0; step < steps && batch->num_active; step++) {
    float *attention = output_steps->attention ? output_steps->attention + step * attention_size : NULL;
    if (attention) memset(attention, 0, sizeof(float) * attention_size);
    for (long row = 0; row < batch->num_active; row++) active->positions[row] = batch->num_written;
    embed(embedding, active->tokens, active->positions, batch->num_active, stack->size, scratch.stream);
    forward(stack, batch, output, from, attention, output_steps->logits, &scratch);
    greedy_update(batch, output, search, active, ++batch->num_written, output_steps->tokens + step * rows,
                  output_steps->log_probs + step * rows, output_steps->logits);
  }
}
