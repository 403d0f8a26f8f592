/* A Transformer's encoder, over sources without padding. */

#include "octets.h"

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

static void encode(const Stack *stack, float *x, const int64_t *lengths, long sources, long rows, Room *room) {
  long size = stack->size;
  for (const Layer *layer = stack->layers; layer < stack->layers + stack->count; layer++) {
    enter(stack, &layer->around_attention, x, rows, room);
    octets_multiply(room->bytes, &layer->attention, rows, room->wide, 0);
    for (long one = 0, first = 0; one < sources; first += lengths[one++])
      look_around(stack, room->wide + first * 3 * size, lengths[one], room->found + first * size, room->scores);
    combine(stack, &layer->attention_out, rows, room);
    leave(stack, &layer->around_attention, x, rows, room);
    feedforward(stack, layer, x, rows, room);
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

/* Embedded words x of sources with so many each, one source behind the other, through all layers, and for each of
   `count` layers of a decoder their keys and values, side by side: count,sources,heads,places,2 · d_k. Some sources go
   through at a time, so that all they need stays in the cache. */
void octets_encode(const Stack *stack, float *x, const int64_t *lengths, long sources, const Product *memory,
                   long count, long heads, long places, float *pairs, char *room_for) {
  long size = stack->size;
  for (long first = 0, many, rows; first < sources; first += many, x += rows * size) {
    rows = many = 0;
    while (first + many < sources && (!many || rows + lengths[first + many] <= TOGETHER))
      rows += lengths[first + many++];
    Room room = laid_out(stack, rows, places, room_for);
    encode(stack, x, lengths + first, many, rows, &room);
    octets_quantise(x, rows, size, room.bytes);
    for (long layer = 0; layer < count; layer++) {
      octets_multiply(room.bytes, memory + layer, rows, room.wide, 0);
      float *block = pairs + (layer * sources + first) * 2 * size * places;
      project(room.wide, lengths + first, many, places, size, heads, block);
    }
  }
}

/* Bytes of room that this takes. */
long octets_encode_room(const Stack *stack, long places) {
  return needed(stack, places > TOGETHER ? places : TOGETHER, places);
}
