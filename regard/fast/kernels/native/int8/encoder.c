/* A Transformer's encoder, over sources without padding. */

#include "int8.h"

#define TOGETHER 128 /* words of sources that go through all layers at a time */

/* Self-attention of one source, whose queries, keys and values are in rows of 3 · size. */
static void look_around(const Stack *stack, const float *projected, long length, float *found, float *scores) {
  long size = stack->size, head = size / stack->heads, apart = 3 * size;
  for (long at = 0; at < size; at += head)
    for (long row = 0; row < length; row++) {
      const float *query = projected + row * apart + at, *keys = projected + size + at, *values = keys + size;
      find(query, keys, values, apart, NULL, length, head, scores, found + row * size + at);
    }
}

/* The stream, rows of some sources one behind the other, through all layers. */
static void encode(const Stack *stack, const int64_t *lengths, long sources, long rows, Scratch *scratch) {
  long size = stack->size;
  float *x = scratch->stream;
  for (const Layer *layer = stack->layers; layer < stack->layers + stack->count; layer++) {
    enter(stack, &layer->around_attention, x, rows, scratch);
    octets_multiply(scratch->bytes, &layer->attention, rows, scratch->wide, 0);
    for (long one = 0, first = 0; one < sources; first += lengths[one++])
      look_around(stack, scratch->wide + first * 3 * size, lengths[one], scratch->found + first * size,
                  scratch->scores);
    combine(stack, &layer->attention_out, rows, scratch);
    leave(stack, &layer->around_attention, x, rows, scratch);
    feedforward(stack, layer, x, rows, scratch);
  }
  if (stack->last) norm(stack->last, x, NULL, rows, size, x);
}

/* Keys and values of memory as a step reads them: sources,heads,places,2 · d_k. */
static void project(const float *projected, const int64_t *lengths, long sources, long places, long size, long heads,
                    float *pairs) {
  long head = size / heads;
  for (long one = 0; one < sources; projected += lengths[one++] * 2 * size)
    for (long at = 0; at < size; at += head, pairs += 2 * head * places)
      for (long place = 0; place < lengths[one]; place++)
        pair(projected + place * 2 * size + at, size, head, pairs + place * 2 * head);
}

/* Sources of ids sources,places, with so many words each, through all layers; for each of `count` layers of a decoder,
   by `memory`, their keys and values, side by side: count,sources,heads,places,2 · d_k. Some go through at a time, so
   that all they need stays in the cache. Gives whether all ids are words. */
int octets_encode(const Stack *stack, const Embedding *embedding, const int64_t *ids, const int64_t *lengths,
                  long sources, long places, const Product *memory, long count, long heads, float *pairs, char *space) {
  long size = stack->size;
  for (long first = 0, many, rows; first < sources; first += many) {
    rows = many = 0;
    while (first + many < sources && (!many || rows + lengths[first + many] <= TOGETHER))
      rows += lengths[first + many++];
    Scratch scratch = laid_out(stack, rows, places, space);
    float *x = scratch.stream;
    for (long one = first; one < first + many; x += lengths[one++] * size)
      if (!embed(embedding, ids + one * places, NULL, lengths[one], size, x)) return 0;
    encode(stack, lengths + first, many, rows, &scratch);
    octets_quantise(scratch.stream, rows, size, scratch.bytes);
    for (long layer = 0; layer < count; layer++) {
      octets_multiply(scratch.bytes, memory + layer, rows, scratch.wide, 0);
      float *block = pairs + (layer * sources + first) * 2 * size * places;
      project(scratch.wide, lengths + first, many, places, size, heads, block);
    }
  }
  return 1;
}

/* Bytes of space that this takes. */
long octets_encode_space(const Stack *stack, long places) {
  return needed(stack, places > TOGETHER ? places : TOGETHER, places);
}
