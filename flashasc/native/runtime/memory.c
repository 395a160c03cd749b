/* Memory of the programs that run: one arena a thread. */

#include "runtime.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Each thread owns an arena. A program's buffers are carved from it one after another; freed ones
 * are handed out again by size, so that a loop which allocates in each round takes the memory of
 * one round. All of it is taken back when the next program starts. */

enum { ALIGNMENT = 64, SMALL_CLASSES = 16, CLASSES = SMALL_CLASSES + 4 * 40 };

static const size_t FIRST_BYTES = (size_t)1 << 20, KEPT_BYTES = (size_t)64 << 20;

typedef struct Block {
  uint32_t size_class;
  struct Block *next; /* in its free list */
} Block;

typedef struct Chunk {
  struct Chunk *next;
  size_t size;
} Chunk;

typedef struct {
  Chunk *chunks;  /* newest first */
  size_t used;    /* bytes of the newest chunk that are handed out */
  size_t total;   /* bytes of all chunks */
  Block *freed[CLASSES];
  jmp_buf *escape; /* where a program that gets no memory is left to */
} Arena;

static __thread Arena *arena;
static pthread_key_t arena_key;
static pthread_once_t arena_once = PTHREAD_ONCE_INIT;

static void arena_drop(void *pointer) {
  Arena *dropped = pointer;
  for (Chunk *chunk = dropped->chunks, *next; chunk; chunk = next) {
    next = chunk->next;
    free(chunk);
  }
  free(dropped);
}

static void arena_make_key(void) { pthread_key_create(&arena_key, arena_drop); }

int memory_open(jmp_buf *escape, jmp_buf **outer) {
  if (!arena) {
    pthread_once(&arena_once, arena_make_key);
    arena = calloc(1, sizeof(Arena));
    if (!arena) return 0;
    pthread_setspecific(arena_key, arena);
  }
  *outer = arena->escape;
  arena->escape = escape;
  return 1;
}

/* Make room in a new chunk; 0 when there is no memory. */
static int arena_grow(size_t need) {
  size_t size = arena->total > FIRST_BYTES ? arena->total : FIRST_BYTES;
  if (size < need) size = need;
  Chunk *chunk = aligned_alloc(ALIGNMENT, size + ALIGNMENT);
  if (!chunk && size > need) chunk = aligned_alloc(ALIGNMENT, (size = need) + ALIGNMENT);
  if (!chunk) return 0;
  chunk->next = arena->chunks;
  chunk->size = size;
  arena->chunks = chunk;
  arena->used = 0;
  arena->total += size;
  return 1;
}

void memory_reset(void) {
  /* several chunks become one of their total size, so that the next program needs no second */
  if (arena->chunks && arena->chunks->next) {
    size_t total = arena->total;
    for (Chunk *chunk = arena->chunks, *next; chunk; chunk = next) {
      next = chunk->next;
      free(chunk);
    }
    arena->chunks = NULL;
    arena->total = 0;
    arena_grow(total);
  }
  arena->used = 0;
  memset(arena->freed, 0, sizeof arena->freed);
}

void memory_close(jmp_buf *outer) {
  arena->escape = outer;
  memory_reset();
  if (arena->total > KEPT_BYTES) {
    free(arena->chunks);
    arena->chunks = NULL;
    arena->total = 0;
  }
}

/* Size class of a request, and the bytes its blocks have: multiples of 64 up to 1 KiB, then four
 * steps to each doubling. */
static uint32_t size_class(uint64_t bytes, uint64_t *rounded) {
  if (bytes <= 64 * SMALL_CLASSES) {
    uint32_t steps = bytes ? (uint32_t)((bytes + 63) / 64) : 1;
    *rounded = (uint64_t)steps * 64;
    return steps - 1;
  }
  uint32_t top = 63 - (uint32_t)__builtin_clzll(bytes - 1); /* 2**top <= bytes - 1 */
  uint64_t step = (uint64_t)1 << (top - 2);
  uint64_t quarter = (bytes - 1 - ((uint64_t)1 << top)) / step;
  *rounded = ((uint64_t)1 << top) + (quarter + 1) * step;
  return SMALL_CLASSES + 4 * (top - 10) + (uint32_t)quarter;
}

API void *flashasc_alloc(uint64_t bytes) {
  if (bytes > (uint64_t)1 << 46) longjmp(*arena->escape, 1);
  uint64_t size;
  uint32_t index = size_class(bytes, &size);
  Block *block = arena->freed[index];
  if (block) {
    arena->freed[index] = block->next;
    return (char *)block + ALIGNMENT;
  }
  size_t need = (size_t)size + ALIGNMENT;
  if (!arena->chunks || arena->chunks->size - arena->used < need)
    if (!arena_grow(need)) longjmp(*arena->escape, 1);
  block = (Block *)((char *)arena->chunks + ALIGNMENT + arena->used);
  arena->used += need;
  block->size_class = index;
  return (char *)block + ALIGNMENT;
}

API void flashasc_free(void *pointer) {
  if (!pointer) return;
  Block *block = (Block *)((char *)pointer - ALIGNMENT);
  block->next = arena->freed[block->size_class];
  arena->freed[block->size_class] = block;
}

API void *flashasc_calloc(uint64_t count, uint64_t bytes) {
  uint64_t size;
  if (__builtin_mul_overflow(count, bytes, &size)) longjmp(*arena->escape, 1);
  return memset(flashasc_alloc(size), 0, size);
}
