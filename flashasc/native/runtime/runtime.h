/* What natively run kernels need at run time. C11 with GNU vector types, for x86-64 and aarch64.
 *
 * Compiled with -ffp-contract=off: nothing here may fuse a product with a sum. No state belongs to a
 * call, so any number of threads may run kernels at once.
 */
#ifndef FLASHASC_RUNTIME_H
#define FLASHASC_RUNTIME_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

/* Memory of the program that this thread runs. Called by kernels instead of malloc; one that gets no
 * memory does not return, but ends the program through the escape. */
API void *flashasc_alloc(uint64_t bytes);
API void *flashasc_calloc(uint64_t count, uint64_t bytes);
API void flashasc_free(void *pointer);

/* Prepare this thread's memory, 0 when there is none; `outer` keeps what the escape was. */
int memory_open(jmp_buf *escape, jmp_buf **outer);
/* Take back all that a program was given. */
void memory_reset(void);
/* After the last program: restore the escape, and return memory that only a large program needs. */
void memory_close(jmp_buf *outer);

#endif
