/* The threads of a library: linked into it in place of the thread pool of TVM's runtime.
 *
 * TVM's pool pins its threads, and whoever waits calls sched_yield: beside a busy process, each
 * wait costs a time slice. Here nobody is pinned or yields. Who waits spins for a moment, then
 * sleeps. The calling thread does what no other thread has begun. One pool serves all callers: who
 * finds it in use runs alone.
 *
 * The code of kernels calls through the two pointers at the end of this file. They are hidden, so
 * TVM's loader does not find them and leaves them as they are.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST 256
#define MOST_GANGS 64
/* Longer than most of what lies between two kernels of a model, shorter than a time slice. */
#define SPIN_NS 200000
/* Beside a busy process, who waits for a partner at each step is better off asleep soon. */
#define STEP_SPIN_NS 50000

/* The interface of TVM's generated code (tvm/runtime/c_backend_api.h). */
struct environment {
  void *sync_handle;
  int32_t num_task;
};
typedef int (*kernel)(int task, struct environment *env, void *data);

/* What a worker's slot says. */
enum { FREE, ASLEEP, POSTED, TAKEN, AWAITED };

struct slot {
  _Alignas(128) _Atomic uint32_t state;
  int task;
  int is_failed;
};

static struct {
  _Alignas(128) pthread_mutex_t in_use;
  int asked;   /* threads that the session asked for; 0 is unknown */
  int threads; /* with the calling thread; 0 is not started */
  int is_ending;
  pthread_t handles[MOST];
  /* The launch at hand. */
  kernel run;
  void *data;
  struct environment env;
  int is_gang;
  _Alignas(128) _Atomic uint32_t go;
  /* The barrier of the launch at hand. */
  _Alignas(128) _Atomic uint32_t arrived;
  _Alignas(128) _Atomic uint32_t round;
  _Alignas(128) _Atomic uint32_t sleepers;
  struct slot slots[MOST];
} pool = {.in_use = PTHREAD_MUTEX_INITIALIZER};

/* Kernels whose threads were seen to wait for each other. */
static _Atomic(kernel) gangs[MOST_GANGS];

static void futex_wait(_Atomic uint32_t *word, uint32_t expected) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static uint32_t load(_Atomic uint32_t *word) {
  return atomic_load_explicit(word, memory_order_acquire);
}

/* Spin while a word has a value, for so long at most; what it has in the end. */
static uint32_t spin_while(_Atomic uint32_t *word, uint32_t value, int64_t most_ns) {
  int64_t end_ns = 0;
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      uint32_t found = load(word);
      if (found != value) return found;
      relax();
    }
    int64_t time_ns = now_ns();
    if (end_ns == 0) end_ns = time_ns + most_ns;
    if (time_ns > end_ns) return value;
  }
}

static int swap_if(_Atomic uint32_t *word, uint32_t expected, uint32_t desired) {
  return atomic_compare_exchange_strong(word, &expected, desired);
}

static void wait_to_go(void) {
  if (spin_while(&pool.go, 0, SPIN_NS)) return;
  while (!load(&pool.go)) futex_wait(&pool.go, 0);
}

static void *work(void *given) {
  struct slot *slot = given;
  for (;;) {
    uint32_t state = spin_while(&slot->state, FREE, SPIN_NS);
    if (state == FREE && swap_if(&slot->state, FREE, ASLEEP)) state = ASLEEP;
    while ((state = load(&slot->state)) == ASLEEP) futex_wait(&slot->state, ASLEEP);
    if (state != POSTED || !swap_if(&slot->state, POSTED, TAKEN)) continue;
    if (pool.is_ending) return NULL;
    if (pool.is_gang) wait_to_go();
    slot->is_failed = slot->task < pool.env.num_task && pool.run(slot->task, &pool.env, pool.data);
    if (atomic_exchange(&slot->state, FREE) == AWAITED) futex_wake(&slot->state, 1);
  }
}

static void post(struct slot *slot) {
  slot->is_failed = 0;
  if (atomic_exchange(&slot->state, POSTED) == ASLEEP) futex_wake(&slot->state, 1);
}

static void await(struct slot *slot) {
  if (spin_while(&slot->state, TAKEN, SPIN_NS) != TAKEN) return;
  if (swap_if(&slot->state, TAKEN, AWAITED))
    while (load(&slot->state) == AWAITED) futex_wait(&slot->state, AWAITED);
}

/* As many as were asked for; else as the library was tuned for, where there are so many cores. */
static int wanted_threads(void) {
  if (pool.asked) return pool.asked;
  cpu_set_t usable;
  int most = sched_getaffinity(0, sizeof usable, &usable) ? MOST : CPU_COUNT(&usable);
  if (most > MOST) most = MOST;
  return FEWTUNE_THREADS < most ? FEWTUNE_THREADS : most;
}

static void start(void) {
  int wanted = wanted_threads();
  sigset_t all, before;
  sigfillset(&all);
  /* The program's signals are for its own threads. */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (pool.threads = 1; pool.threads < wanted; ++pool.threads) {
    struct slot *slot = &pool.slots[pool.threads];
    atomic_store(&slot->state, FREE);
    if (pthread_create(&pool.handles[pool.threads], NULL, work, slot)) break;
    pthread_setname_np(pool.handles[pool.threads], "fewtune");
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void end(void) {
  pool.is_ending = 1;
  for (int i = 1; i < pool.threads; ++i) post(&pool.slots[i]);
  for (int i = 1; i < pool.threads; ++i) pthread_join(pool.handles[i], NULL);
  pool.is_ending = pool.threads = 0;
}

/* A forked process has none of the threads. */
static void forget(void) {
  pthread_mutex_init(&pool.in_use, NULL);
  pool.is_ending = pool.threads = 0;
}

__attribute__((constructor)) static void prepare(void) { pthread_atfork(NULL, NULL, forget); }

/* Before the library leaves memory. At the end of the process, a kernel may still run. */
__attribute__((destructor)) static void leave(void) {
  if (pthread_mutex_trylock(&pool.in_use) == 0) end();
}

static int run_alone(kernel run, void *data) {
  struct environment env = {NULL, 1};
  return run(0, &env, data);
}

static int is_gang(kernel run) {
  for (int i = 0; i < MOST_GANGS; ++i) {
    kernel known = atomic_load_explicit(&gangs[i], memory_order_relaxed);
    if (known == run || known == NULL) return known == run;
  }
  return 0;
}

static void note_gang(kernel run) {
  for (int i = 0; i < MOST_GANGS; ++i) {
    kernel known = NULL;
    if (atomic_compare_exchange_strong(&gangs[i], &known, run) || known == run) return;
  }
}

/* Threads that wait for each other in a kernel must all run at once: those that are here do. */
static void gather(void) {
  int count = pool.threads, tasks = 1;
  atomic_store(&pool.go, 0);
  for (int i = 1; i < count; ++i) post(&pool.slots[i]);
  int64_t end_ns = now_ns() + SPIN_NS;
  for (int i = 1; i < count; ++i) {
    int64_t left_ns = end_ns - now_ns();
    struct slot *slot = &pool.slots[i];
    spin_while(&slot->state, POSTED, left_ns > 0 ? left_ns : 0);
    slot->task = swap_if(&slot->state, POSTED, FREE) ? MOST : tasks++;
  }
  pool.env.num_task = tasks;
  atomic_store(&pool.go, 1);
  futex_wake(&pool.go, MOST);
}

static int launch(kernel run, void *data, int tasks) {
  (void)tasks; /* generated code asks for as many as there are threads */
  if (pthread_mutex_trylock(&pool.in_use)) return run_alone(run, data);
  if (pool.threads == 0) start();
  int count = pool.threads, is_failed;
  pool.run = run;
  pool.data = data;
  pool.env = (struct environment){NULL, count};
  pool.is_gang = is_gang(run);
  atomic_store_explicit(&pool.arrived, 0, memory_order_relaxed);
  if (pool.is_gang) {
    gather();
  } else {
    for (int i = 1; i < count; ++i) {
      pool.slots[i].task = i;
      post(&pool.slots[i]);
    }
  }
  is_failed = run(0, &pool.env, data);
  for (int i = 1; i < count; ++i) {
    struct slot *slot = &pool.slots[i];
    int is_left = swap_if(&slot->state, POSTED, FREE);
    if (!is_left) await(slot);
    /* An error belongs to the thread that met it: here it is met again. */
    if (is_left || slot->is_failed) is_failed |= run(slot->task, &pool.env, data);
  }
  pthread_mutex_unlock(&pool.in_use);
  return is_failed;
}

static int barrier(int task, struct environment *env) {
  (void)task;
  if (env->num_task == 1) return 0;
  if (!pool.is_gang) note_gang(pool.run);
  uint32_t round = load(&pool.round);
  if (atomic_fetch_add(&pool.arrived, 1) + 1 == (uint32_t)env->num_task) {
    atomic_store_explicit(&pool.arrived, 0, memory_order_relaxed);
    atomic_store(&pool.round, round + 1);
    if (atomic_load(&pool.sleepers)) futex_wake(&pool.round, MOST);
    return 0;
  }
  if (spin_while(&pool.round, round, STEP_SPIN_NS) != round) return 0;
  atomic_fetch_add(&pool.sleepers, 1);
  while (load(&pool.round) == round) futex_wait(&pool.round, round);
  atomic_fetch_sub(&pool.sleepers, 1);
  return 0;
}

/* A value of TVM's FFI (tvm/ffi/c_api.h). */
struct value {
  int32_t type;
  uint32_t padding;
  int64_t number;
};

/* How many threads run a kernel, with the calling one; 0 for as many as it was tuned for. */
int __tvm_ffi_fewtune_set_threads(void *self, struct value *given, int count, struct value *result) {
  (void)self;
  pthread_mutex_lock(&pool.in_use);
  int64_t asked = count > 0 ? given->number : 0;
  int threads = asked < 0 ? 0 : asked > MOST ? MOST : (int)asked;
  if (threads != pool.asked) end();
  pool.asked = threads;
  pthread_mutex_unlock(&pool.in_use);
  *result = (struct value){0, 0, 0};
  return 0;
}

#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN int (*__TVMBackendParallelLaunch)(kernel, void *, int) = launch;
HIDDEN int (*__TVMBackendParallelBarrier)(int, struct environment *) = barrier;
