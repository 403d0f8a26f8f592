/* A step of a Transformer's decoder, and greedy searches that are made of nothing else. */

#include "int8.h"

static void add_times(float *x, const float *y, float by, long many) {
  for (long at = 0; at < many; at++) x[at] += by * y[at];
}

typedef struct { /* what a step knows of its rows, which are hypotheses of `sources` sources */
  long rows; /* of which a step may be for some alone: `many`, with the numbers `who`, if that is given */
  long many;
  const int64_t *who;
  long sources, places;
  const float *pairs; /* layers,sources,heads,places,2 · d_k: keys and values */
  const uint8_t *mask; /* sources,places: all True before all False */
  long groups, slots, positions, used; /* rows of a group share a room; so many positions, of which some are written */
  float *past; /* layers,groups,heads,positions,slots,2 · d_k: keys and values of words so far */
  const int64_t *table; /* rows,used+1: the slot of each word, or -1; without one there is one slot */
} Words;

static inline long number(const Words *words, long row) { return words->who ? words->who[row] : row; }

static inline long source_of(const Words *words, long row) {
  return number(words, row) / (words->rows / words->sources);
}

static long length_of(const Words *words, long source) {
  long length = 0;
  while (length < words->places && words->mask[source * words->places + length]) length++;
  return length;
}

/* Which of the words of a group are a row's own, and how many; NULL where they lie one behind the other. */
static const long *own(const Words *words, const int64_t *table, Scratch *scratch, long *many) {
  *many = words->used + 1;
  if (words->slots == 1 && (!table || table[0] >= 0)) return NULL; /* as all behind the first */
  long found = 0;
  for (long at = 0; at < *many; at++)
    if (table[at] >= 0) scratch->listed[found++] = at * words->slots + table[at];
  *many = found;
  return scratch->listed;
}

/* Attention over the words so far, among which the step's own is taken in. */
static void look_back(const Stack *stack, const Words *words, long layer, Scratch *scratch) {
  long size = stack->size, heads = stack->heads, head = size / heads, slots = words->slots;
  for (long row = 0; row < words->many; row++) {
    long one = number(words, row), many;
    const long *listed = own(words, words->table ? words->table + one * (words->used + 1) : NULL, scratch, &many);
    const float *projected = scratch->wide + row * 3 * size;
    for (long h = 0; h < heads; h++) {
      long block = (layer * words->groups + one / slots) * heads + h;
      float *past = words->past + block * words->positions * slots * 2 * head;
      pair(projected + size + h * head, size, head, past + (words->used * slots + one % slots) * 2 * head);
      find(projected + h * head, past, past + head, 2 * head, listed, many, head, scratch->scores,
           scratch->found + row * size + h * head);
    }
  }
}

/* Attention over the sources. Weights of one head, or of all of them, -1, the mean, are added to `seen` rows,places. */
static void look_across(const Stack *stack, const Words *words, long layer, Scratch *scratch, long viewed,
                        float *seen) {
  long size = stack->size, heads = stack->heads, head = size / heads;
  for (long first = 0, last; first < words->many; first = last) {
    long source = source_of(words, first), length = length_of(words, source);
    for (last = first + 1; last < words->many && source_of(words, last) == source;) last++;
    for (long h = 0; h < heads; h++) {
      const float *pairs = words->pairs + ((layer * words->sources + source) * heads + h) * words->places * 2 * head;
      for (long row = first; row < last; row++) {
        float *scores = scratch->scores, share = viewed < 0 ? 1.0f / heads : viewed == h;
        long at = row * size + h * head;
        find(scratch->wide + at, pairs, pairs + head, 2 * head, NULL, length, head, scores, scratch->found + at);
        if (seen && share > 0) add_times(seen + number(words, row) * words->places, scores, share, length);
      }
    }
  }
}

/* What a source without a word gives is nothing. */
static void blind(const Words *words, long size, float *given) {
  for (long row = 0; row < words->many; row++)
    if (!length_of(words, source_of(words, row))) memset(given + row * size, 0, sizeof(float) * size);
}

/* How many scores a step has at a time, up to a last one. */
static long scoring(const Words *words, long last) { return last < words->places ? words->places : last + 1; }

typedef struct { /* whose look at the source is given out: a layer's, and of its heads one's or, -1, their mean */
  long layer, head;
} Viewpoint;

/* The stream through all layers: logits many,outside. What was seen rows,places is zeros before. */
static void pass(const Stack *stack, const Words *words, const Product *output, Viewpoint from, float *seen,
                 float *logits, Scratch *scratch) {
  long rows = words->many, size = stack->size;
  float *x = scratch->stream;
  for (long number = 0; number < stack->count; number++) {
    const Layer *layer = stack->layers + number;
    enter(stack, &layer->around_attention, x, rows, scratch);
    octets_multiply(scratch->bytes, &layer->attention, rows, scratch->wide, 0);
    look_back(stack, words, number, scratch);
    combine(stack, &layer->attention_out, rows, scratch);
    leave(stack, &layer->around_attention, x, rows, scratch);
    enter(stack, &layer->around_cross, x, rows, scratch);
    octets_multiply(scratch->bytes, &layer->cross, rows, scratch->wide, 0);
    look_across(stack, words, number, scratch, from.head, number == from.layer ? seen : NULL);
    combine(stack, &layer->cross_out, rows, scratch);
    blind(words, size, scratch->given);
    leave(stack, &layer->around_cross, x, rows, scratch);
    feedforward(stack, layer, x, rows, scratch);
  }
  if (stack->last) norm(stack->last, x, NULL, rows, size, x);
  octets_quantise(x, rows, size, scratch->bytes);
  octets_multiply(scratch->bytes, output, rows, logits, 0);
}

/* Bytes of space that steps take, up to a last one. */
long octets_step_space(const Stack *stack, const Words *words, long last) {
  return needed(stack, words->rows, scoring(words, last));
}

/* A token of each row, in these places: log-probabilities rows,outside. Gives whether all tokens are words. */
int octets_step(const Stack *stack, const Words *words, const Embedding *embedding, const Product *output,
                Viewpoint from, const int64_t *tokens, const int64_t *places, float *seen, float *log_probs,
                char *space) {
  Scratch scratch = laid_out(stack, words->rows, scoring(words, words->used), space);
  if (!embed(embedding, tokens, places, words->rows, stack->size, scratch.stream)) return 0;
  pass(stack, words, output, from, seen, log_probs, &scratch);
  for (long row = 0; row < words->rows; row++) {
    float *x = log_probs + row * output->outside, whole = log_sum(x, output->outside);
    for (long at = 0; at < output->outside; at++) x[at] -= whole;
  }
  return 1;
}

typedef struct { /* what is asked of targets */
  long least; /* tokens of the shortest */
  const int64_t *limits; /* steps of each */
  int64_t end;
  const int64_t *never; /* tokens that are not written, */
  long many; /* so many */
  const int64_t *names; /* of tokens, where they are those of some words alone */
} Asked;

typedef struct { /* targets on their way, of those rows that have not ended */
  int64_t *who, *read; /* many: their numbers, and the token that each has written last */
  int64_t *places; /* many: room for where that stands */
  float *reached; /* rows: the log-probability of each so far */
  int64_t *done; /* rows: the step with which each has ended */
} Going;

typedef struct { /* of some steps, each of all rows, what was written */
  int64_t *tokens; /* steps,rows */
  float *log_probs; /* steps,rows: of all so far */
  float *seen; /* steps,rows,places; or nothing */
  float *logits; /* rows,outside: room for those of a step */
} Written;

/* The place of the largest of logits that may be written; where that is no number, any. */
static long likeliest(float *x, long many, const Asked *asked, int early) {
  for (long one = 0; one < asked->many; one++) x[asked->never[one]] = -INFINITY;
  if (early) x[asked->end] = -INFINITY;
  float most = top(x, many);
  long place = 0;
  while (place < many - 1 && !(x[place] >= most)) place++;
  return place;
}

/* What each row that is open writes next, after step `step`; those that have not ended stay open. */
static void choose(Words *words, const Product *output, const Asked *asked, Going *going, long step, int64_t *tokens,
                   float *log_probs, float *logits) {
  long left = 0;
  for (long row = 0; row < words->many; row++, logits += output->outside) {
    float whole = log_sum(logits, output->outside);
    long one = going->who[row], token = likeliest(logits, output->outside, asked, step < asked->least);
    tokens[one] = token;
    log_probs[one] = going->reached[one] += logits[token] - whole;
    going->done[one] = step;
    if (token == asked->end || step >= asked->limits[one] || !(log_probs[one] > -INFINITY)) continue;
    going->who[left] = one;
    going->read[left++] = asked->names ? asked->names[token] : token;
  }
  words->many = left;
}

/* The likeliest token of each row after the other, for so many steps, or until all have ended. */
void octets_write(const Stack *stack, Words *words, const Embedding *embedding, const Product *output, Viewpoint from,
                  const Asked *asked, Going *going, const Written *written, long steps, char *space) {
  long rows = words->rows, looks = rows * words->places;
  Scratch scratch = laid_out(stack, rows, scoring(words, words->used + steps), space);
  words->who = going->who;
  for (long step = 0; step < steps && words->many; step++) {
    float *seen = written->seen ? written->seen + step * looks : NULL;
    if (seen) memset(seen, 0, sizeof(float) * looks);
    for (long row = 0; row < words->many; row++) going->places[row] = words->used;
    embed(embedding, going->read, going->places, words->many, stack->size, scratch.stream);
    pass(stack, words, output, from, seen, written->logits, &scratch);
    choose(words, output, asked, going, ++words->used, written->tokens + step * rows, written->log_probs + step * rows,
           written->logits);
  }
}
