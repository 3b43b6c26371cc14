// SPDX-License-Identifier: Apache-2.0

// Runs blocks one after the other, their threads as fibres, the last thread first.
#include "shim.h"

#include <stdio.h>

#include <map>
#include <string>

namespace shim {

Thread *current;
std::vector<Warp> warps;
Dim grid, block, blockIndex;
char *dynamic;

static const size_t stackBytes = 64 << 10, dynamicBytes = 256 << 10;
static std::vector<Thread> threads;  // as many as the largest block had
static size_t count;                 // of this block
static jmp_buf scheduler;
static std::function<void()> body;

void fail(const char *why) {
  fprintf(stderr, "shim: block (%u,%u,%u): %s\n", blockIndex.x, blockIndex.y, blockIndex.z, why);
  abort();
}

void pause(Wait wait) {
  current->wait = wait;
  if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}

static void entry() {
  body();
  pause(DONE);
}

// start makes the fibres of a block.
static void start() {
  for (size_t i = 0; i < count; i++) {
    Thread &t = threads[i];
    if (!t.stack) t.stack = malloc(stackBytes);
    t.index = {unsigned(i % block.x), unsigned(i / block.x % block.y), unsigned(i / block.x / block.y)};
    t.lane = i % 32, t.warp = i / 32, t.wait = RUNS, t.odd = t.begun = false;
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack;
    t.context.uc_stack.ss_size = stackBytes;
    makecontext(&t.context, entry, 0);
  }
  memset((void *)warps.data(), 0, warps.size() * sizeof warps[0]);
}

// run lets a thread go on until it waits.
static void run(Thread *t) {
  current = t;
  if (_setjmp(scheduler)) return;
  if (t->begun) _longjmp(t->place, 1);
  t->begun = true;
  setcontext(&t->context);
}

// met lets threads first to end run if all that are not done wait for the same, and reports whether there are any.
static bool met(size_t first, size_t end, Wait wait) {
  bool any = false;
  for (size_t i = first; i < end; i++) {
    if (threads[i].wait != DONE && threads[i].wait != wait) return false;
    any |= threads[i].wait == wait;
  }
  for (size_t i = first; any && i < end; i++) {
    if (threads[i].wait == wait) threads[i].wait = RUNS;
  }
  return any;
}

static void runBlock() {
  start();
  size_t n = count;
  for (;;) {
    bool done = true;
    for (size_t i = n; i-- > 0;) {
      if (threads[i].wait == RUNS) run(&threads[i]);
      done &= threads[i].wait == DONE;
    }
    if (done) return;
    bool moved = false;
    for (size_t first = 0; first < n; first += 32) moved |= met(first, std::min(first + 32, n), FOR_WARP);
    if (!moved && !met(0, n, FOR_BLOCK)) fail("threads wait for each other in different places");
  }
}

static std::map<std::string, std::function<std::function<void()>(const char *)>> &kernels() {
  static std::map<std::string, std::function<std::function<void()>(const char *)>> all;
  return all;
}

Kernel::Kernel(const char *name, std::function<std::function<void()>(const char *)> bind) { kernels()[name] = bind; }

}  // namespace shim

// shim_launch runs a kernel. It returns 1 if there is none of that name, or the shared memory is too large.
extern "C" int shim_launch(const char *name, const unsigned *grid, const unsigned *block, const char *parameters,
                           size_t shared) {
  auto found = shim::kernels().find(name);
  if (found == shim::kernels().end() || shared > shim::dynamicBytes) return 1;
  if (!shim::dynamic) shim::dynamic = (char *)aligned_alloc(128, shim::dynamicBytes);
  shim::body = found->second(parameters);
  shim::grid = {grid[0], grid[1], grid[2]};
  shim::block = {block[0], block[1], block[2]};
  size_t n = shim::count = (size_t)block[0] * block[1] * block[2];
  shim::threads.resize(std::max(n, shim::threads.size()));
  shim::warps.resize((n + 31) / 32);
  for (unsigned z = 0; z < grid[2]; z++) {
    for (unsigned y = 0; y < grid[1]; y++) {
      for (unsigned x = 0; x < grid[0]; x++) {
        shim::blockIndex = {x, y, z};
        memset(shim::dynamic, 0xff, shared);
        shim::runBlock();
      }
    }
  }
  return 0;
}
