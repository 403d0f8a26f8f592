/* Encoder of a Transformer, over sources without padding. */

#include "int8.h"

#define BLOCK 128 /* tokens that go through all layers at a time */

/* Self-attention of one source; queries, keys and values are rows of 3 · size. */
static void self_attend(const Stack *stack, const float *projected, long length, float *found, float *scores) {
  long size = stack->size, head = size / stack->heads, apart = 3 * size;
  for (long at = 0; at < size; at += head)
    for (long row = 0; row < length; row++) {
      const float *query = projected + row * apart + at, *keys = projected + size + at, *values = keys + size;
      attend(query, keys, values, apart, NULL, length, head, scores, found + row * size + at);
    }
}

/* Run concatenated sources through all layers. */
static void encode(const Stack *stack, const int64_t *lengths, long sources, long rows, Scratch *scratch) {
  long size = stack->size;
  float *x = scratch->stream;
  for (const Layer *layer = stack->layers; layer < stack->layers + stack->count; layer++) {
    pre_sublayer(stack, &layer->around_attention, x, rows, scratch);
    int8_gemm(scratch->bytes, &layer->attention, rows, scratch->wide, 0);
    for (long one = 0, first = 0; one < sources; first += lengths[one++])
      self_attend(stack, scratch->wide + first * 3 * size, lengths[one], scratch->found + first * size,
                  scratch->scores);
    out_proj(stack, &layer->attention_out, rows, scratch);
    post_sublayer(stack, &layer->around_attention, x, rows, scratch);
    feedforward(stack, layer, x, rows, scratch);
  }
  if (stack->last) norm(stack->last, x, NULL, rows, size, x);
}

/* Interleave keys and values of the memory as a step reads them: (sources, heads, places, 2 · d_k). */
static void project(const float *projected, const int64_t *lengths, long sources, long places, long size, long heads,
                    float *pairs) {
  long head = size / heads;
  for (long one = 0; one < sources; projected += lengths[one++] * 2 * size)
    for (long at = 0; at < size; at += head, pairs += 2 * head * places)
      for (long place = 0; place < lengths[one]; place++)
        interleave_kv(projected + place * 2 * size + at, size, head, pairs + place * 2 * head);
}

int int8_encode(const Stack *stack, const Embedding *embedding, const int64_t *ids, const int64_t *lengths,
                long sources, long places, const LinearLayer *memory, long count, long heads, float *pairs,
                char *workspace) {
  long size = stack->size;
  for (long first = 0, many, rows; first < sources; first += many) {
    rows = many = 0;
    while (first + many < sources && (!many || rows + lengths[first + many] <= BLOCK)) rows += lengths[first + many++];
    Scratch scratch = layout_workspace(stack, rows, places, workspace);
    float *x = scratch.stream;
    for (long one = first; one < first + many; x += lengths[one++] * size)
      if (!embed(embedding, ids + one * places, NULL, lengths[one], size, x)) return 0;
    encode(stack, lengths + first, many, rows, &scratch);
    int8_quantize(scratch.stream, rows, size, scratch.bytes);
    for (long layer = 0; layer < count; layer++) {
      int8_gemm(scratch.bytes, memory + layer, rows, scratch.wide, 0);
      float *block = pairs + (layer * sources + first) * 2 * size * places;
      project(scratch.wide, lengths + first, many, places, size, heads, block);
    }
  }
  return 1;
}

long int8_encode_workspace(const Stack *stack, long places) {
  return workspace_bytes(stack, places > BLOCK ? places : BLOCK, places);
}
