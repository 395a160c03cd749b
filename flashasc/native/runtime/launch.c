/* The loop over a grid's programs, on the calling thread and a pool of workers. */

#define _GNU_SOURCE
#include "runtime.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* One program of a kernel: arguments in 8-byte slots, grid sizes, program ids. */
typedef void Program(const void *args, int32_t grid_x, int32_t grid_y, int32_t grid_z, int32_t x,
                     int32_t y, int32_t z);

typedef struct Launch {
  Program *program;
  const void *args;
  int64_t grid[3], total;
  _Atomic int64_t next;
  _Atomic int failed;
  /* guarded by pool.mutex */
  int open, helping; /* workers that may still join; workers that are inside */
  struct Launch *queued;
} Launch;

enum { MOST_WORKERS = 1024 };

static void run_programs(Launch *launch) {
  fenv_t callers_floats;
  fegetenv(&callers_floats);
  /* round to nearest, subnormals kept: whatever the calling thread has set */
  fesetenv(FE_DFL_ENV);
  jmp_buf escape, *outer;
  if (!memory_open(&escape, &outer)) {
    atomic_store(&launch->failed, 1);
  } else {
    if (setjmp(escape)) {
      atomic_store(&launch->failed, 1);
    } else {
      int64_t id;
      while (!atomic_load_explicit(&launch->failed, memory_order_relaxed) &&
             (id = atomic_fetch_add(&launch->next, 1)) < launch->total) {
        int64_t x = id % launch->grid[0], rest = id / launch->grid[0];
        memory_reset();
        launch->program(launch->args, (int32_t)launch->grid[0], (int32_t)launch->grid[1],
                        (int32_t)launch->grid[2], (int32_t)x, (int32_t)(rest % launch->grid[1]),
                        (int32_t)(rest / launch->grid[1]));
      }
    }
    memory_close(outer);
  }
  fesetenv(&callers_floats);
}

static struct {
  pthread_mutex_t mutex;
  pthread_cond_t work, done;
  Launch *queue;
  int workers;
} pool = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0};

static void *work(void *unused) {
  pthread_mutex_lock(&pool.mutex);
  for (;;) {
    Launch *launch = pool.queue;
    while (launch && !launch->open) launch = launch->queued;
    if (!launch) {
      pthread_cond_wait(&pool.work, &pool.mutex);
      continue;
    }
    launch->open--;
    launch->helping++;
    pthread_mutex_unlock(&pool.mutex);
    run_programs(launch);
    pthread_mutex_lock(&pool.mutex);
    if (--launch->helping == 0) pthread_cond_broadcast(&pool.done);
  }
  return unused;
}

/* Start workers until there are `wanted`; fewer is no error, the launch only takes longer. */
static void hire(int wanted) {
  sigset_t all, before;
  pthread_attr_t attributes;
  sigfillset(&all);
  /* signals belong to the program's own threads */
  pthread_sigmask(SIG_BLOCK, &all, &before);
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, (size_t)8 << 20);
  pthread_t thread;
  while (pool.workers < wanted && pool.workers < MOST_WORKERS &&
         pthread_create(&thread, &attributes, work, NULL) == 0)
    pool.workers++;
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void before_fork(void) { pthread_mutex_lock(&pool.mutex); }
static void after_fork(void) { pthread_mutex_unlock(&pool.mutex); }

/* The child has this thread alone: no workers, and nobody else's launches. */
static void in_child(void) {
  pthread_mutex_init(&pool.mutex, NULL);
  pthread_cond_init(&pool.work, NULL);
  pthread_cond_init(&pool.done, NULL);
  pool.queue = NULL;
  pool.workers = 0;
}

__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(before_fork, after_fork, in_child);
}

/* Run every program of a grid on up to `threads` threads, the caller's included, and return when
 * all have ended: 0, or 1 when a program got no memory (the rest is then abandoned). */
API int flashasc_run(Program *program, const void *args, int64_t grid_x, int64_t grid_y,
                     int64_t grid_z, int threads) {
  Launch launch = {.program = program,
                   .args = args,
                   .grid = {grid_x, grid_y, grid_z},
                   .total = grid_x * grid_y * grid_z};
  int64_t helpers = threads - 1 < launch.total - 1 ? threads - 1 : launch.total - 1;
  if (helpers <= 0) {
    run_programs(&launch);
    return atomic_load(&launch.failed);
  }
  pthread_mutex_lock(&pool.mutex);
  hire((int)(helpers < MOST_WORKERS ? helpers : MOST_WORKERS));
  launch.open = (int)helpers;
  launch.queued = pool.queue;
  pool.queue = &launch;
  pthread_cond_broadcast(&pool.work);
  pthread_mutex_unlock(&pool.mutex);
  run_programs(&launch);
  pthread_mutex_lock(&pool.mutex);
  Launch **link = &pool.queue;
  while (*link != &launch) link = &(*link)->queued;
  *link = launch.queued;
  while (launch.helping) pthread_cond_wait(&pool.done, &pool.mutex);
  pthread_mutex_unlock(&pool.mutex);
  return atomic_load(&launch.failed);
}
