/* A step of a Transformer's decoder, and greedy searches that are made of nothing else. */

#include "octets.h"

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
static const long *own(const Words *words, const int64_t *table, Room *room, long *many) {
  *many = words->used + 1;
  if (words->slots == 1 && (!table || table[0] >= 0)) return NULL; /* as all behind the first */
  long found = 0;
  for (long at = 0; at < *many; at++)
    if (table[at] >= 0) room->listed[found++] = at * words->slots + table[at];
  *many = found;
  return room->listed;
}

/* Attention over the words so far, among which the step's own is taken in. */
static void look_back(const Stack *stack, const Words *words, long layer, Room *room) {
  long size = stack->size, heads = stack->heads, head = size / heads, slots = words->slots;
  for (long row = 0; row < words->many; row++) {
    long one = number(words, row), many;
    const long *listed = own(words, words->table ? words->table + one * (words->used + 1) : NULL, room, &many);
    const float *projected = room->wide + row * 3 * size;
    for (long h = 0; h < heads; h++) {
      long block = (layer * words->groups + one / slots) * heads + h;
      float *past = words->past + block * words->positions * slots * 2 * head;
      pair(projected + size + h * head, size, head, past + (words->used * slots + one % slots) * 2 * head);
      find(projected + h * head, past, past + head, 2 * head, listed, many, head, room->scores,
           room->found + row * size + h * head);
    }
  }
}

/* Attention over the sources. Weights of one head, or of all of them, -1, the mean, are added to `seen` rows,places. */
static void look_across(const Stack *stack, const Words *words, long layer, Room *room, long viewed, float *seen) {
  long size = stack->size, heads = stack->heads, head = size / heads;
  for (long first = 0, last; first < words->many; first = last) {
    long source = source_of(words, first), length = length_of(words, source);
    for (last = first + 1; last < words->many && source_of(words, last) == source;) last++;
    for (long h = 0; h < heads; h++) {
      const float *pairs = words->pairs + ((layer * words->sources + source) * heads + h) * words->places * 2 * head;
      for (long row = first; row < last; row++) {
        float *scores = room->scores, share = viewed < 0 ? 1.0f / heads : viewed == h;
        long at = row * size + h * head;
        find(room->wide + at, pairs, pairs + head, 2 * head, NULL, length, head, scores, room->found + at);
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

typedef struct { /* E x · scale, plus positions */
  const float *words, *positions; /* words,size and positions,size */
  float scale;
} Embedding;

/* The embeddings of a token of each row, in the places that they have. */
static void embed(const Embedding *by, const int64_t *tokens, const int64_t *places, long rows, long size, float *x) {
  for (long row = 0; row < rows; row++, x += size) {
    const float *word = by->words + tokens[row] * size, *place = by->positions + places[row] * size;
    for (long at = 0; at < size; at++) x[at] = word[at] * by->scale + place[at];
  }
}

typedef struct { /* whose look at the source is given out: a layer's, and of its heads one's or, -1, their mean */
  long layer, head;
} Viewpoint;

/* The stream through all layers: logits many,out. What was seen rows,places is zeros before. */
static void pass(const Stack *stack, const Words *words, const Product *output, Viewpoint from, float *seen,
                 float *logits, Room *room) {
  long rows = words->many, size = stack->size;
  float *x = room->stream;
  for (long number = 0; number < stack->count; number++) {
    const Layer *layer = stack->layers + number;
    enter(stack, &layer->around_attention, x, rows, room);
    octets_multiply(room->bytes, &layer->attention, rows, room->wide, 0);
    look_back(stack, words, number, room);
    combine(stack, &layer->attention_out, rows, room);
    leave(stack, &layer->around_attention, x, rows, room);
    enter(stack, &layer->around_cross, x, rows, room);
    octets_multiply(room->bytes, &layer->cross, rows, room->wide, 0);
    look_across(stack, words, number, room, from.head, number == from.layer ? seen : NULL);
    combine(stack, &layer->cross_out, rows, room);
    blind(words, size, room->given);
    leave(stack, &layer->around_cross, x, rows, room);
    feedforward(stack, layer, x, rows, room);
  }
  if (stack->last) norm(stack->last, x, NULL, rows, size, x);
  octets_quantise(x, rows, size, room->bytes);
  octets_multiply(room->bytes, output, rows, logits, 0);
}

/* Bytes of room that steps take, up to a last one. */
long octets_step_room(const Stack *stack, const Words *words, long last) {
  return needed(stack, words->rows, scoring(words, last));
}

/* A token of each row, in these places: log-probabilities rows,out. */
void octets_step(const Stack *stack, const Words *words, const Embedding *embedding, const Product *output,
                 Viewpoint from, const int64_t *tokens, const int64_t *places, float *seen, float *log_probs,
                 char *room_for) {
  Room room = laid_out(stack, words->rows, scoring(words, words->used), room_for);
  embed(embedding, tokens, places, words->rows, stack->size, room.stream);
  pass(stack, words, output, from, seen, log_probs, &room);
  for (long row = 0; row < words->rows; row++) {
    float *x = log_probs + row * output->out, whole = log_sum(x, output->out);
    for (long at = 0; at < output->out; at++) x[at] -= whole;
  }
}

typedef struct { /* what is asked of targets */
  long most, least; /* steps of the longest, and tokens of the shortest */
  const int64_t *limits; /* steps of each */
  int64_t begin, end;
  const int64_t *never; /* tokens that are not written, */
  long many; /* so many */
  const int64_t *names; /* of tokens, where they are those of some words alone */
} Wish;

/* The place of the largest of logits that may be written; what is no number counts as the largest. */
static long largest(float *x, long many, const Wish *wish, int early) {
  for (long one = 0; one < wish->many; one++) x[wish->never[one]] = -INFINITY;
  if (early) x[wish->end] = -INFINITY;
  four most = all(-INFINITY);
  for (long at = 0; at < many; at += 4) most = vmaxq_f32(most, get(x + at, many - at, -INFINITY));
  float top = vmaxvq_f32(most);
  long place = 0;
  while (place < many && !(x[place] >= top)) place++;
  return place < many ? place : 0;
}

/* The likeliest token of each row after the other, until all have ended. Of each step and row, tokens and the
   log-probability of all so far most,rows, and what was seen most,rows,places, if that is given; `done` rows is the
   step with which each ended. There is room for logits rows,out and, of whole numbers, for three of each row. */
void octets_write(const Stack *stack, Words *words, const Embedding *embedding, const Product *output, Viewpoint from,
                  const Wish *wish, int64_t *tokens, float *log_probs, float *seen, int64_t *done, float *logits,
                  int64_t *numbers, char *room_for) {
  long rows = words->rows, seen_each = rows * words->places;
  Room room = laid_out(stack, rows, scoring(words, wish->most), room_for);
  int64_t *who = numbers, *read = numbers + rows, *places = numbers + 2 * rows;
  for (long row = 0; row < rows; row++) who[row] = row, read[row] = wish->begin;
  words->who = who;
  for (long step = 1; words->many; step++, words->used++) {
    long many = words->many, left = 0;
    float *seen_now = seen ? seen + (step - 1) * seen_each : NULL;
    for (long row = 0; row < many; row++) places[row] = words->used;
    if (seen_now) memset(seen_now, 0, sizeof(float) * seen_each);
    embed(embedding, read, places, many, stack->size, room.stream);
    pass(stack, words, output, from, seen_now, logits, &room);
    for (long row = 0; row < many; row++) {
      float *x = logits + row * output->out, whole = log_sum(x, output->out);
      long one = who[row], at = (step - 1) * rows + one, token = largest(x, output->out, wish, step < wish->least);
      tokens[at] = token;
      log_probs[at] = x[token] - whole + (step > 1 ? log_probs[at - rows] : 0);
      done[one] = step;
      if (token == wish->end || step >= wish->limits[one] || !(log_probs[at] > -INFINITY)) continue;
      who[left] = one;
      read[left++] = wish->names ? wish->names[token] : token;
    }
    words->many = left;
  }
}
