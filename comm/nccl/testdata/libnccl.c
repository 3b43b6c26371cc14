// SPDX-License-Identifier: Apache-2.0

// A library with the functions of NCCL that comm/nccl calls. It moves nothing. What it has in common with NCCL is when
// it touches the memory of others, and when its own is gone:
//
// - ncclCommInitRankConfig of a communicator that does not block stores the communicator where the caller says, and
//   again, from a thread of its own, when the initialisation ends. Here that is when fake_finish is called.
// - ncclCommAbort and ncclCommDestroy free the communicator. Here its page is unmapped, so that a later use of it ends
//   the process.
// - A group is in progress after ncclGroupEnd until connections are made, which is for ever here.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

enum { success, invalid_argument = 4, in_progress = 7 };

struct comm {
	atomic_int state;
	atomic_int finish;
	struct comm **newcomm;
	pthread_t init;
};

typedef struct { char bytes[128]; } unique_id;

static struct comm *last, *grouped;
static atomic_int looks;

int ncclGetVersion(int *v) { *v = 22809; return success; }
const char *ncclGetErrorString(int code) { return code == invalid_argument ? "invalid argument" : "an error"; }
const char *ncclGetLastError(void *c) { return ""; }

int ncclGetUniqueId(unique_id *id) {
	for (int i = 0; i < (int)sizeof id->bytes; i++) id->bytes[i] = i + 1;
	return success;
}

static void *initialise(void *arg) {
	struct comm *c = arg;
	while (!c->finish) ;
	__atomic_store_n(c->newcomm, c, __ATOMIC_RELEASE);
	c->state = success;
	return NULL;
}

int ncclCommInitRankConfig(struct comm **newcomm, int n, unique_id id, int rank, void *config) {
	for (int i = 0; i < (int)sizeof id.bytes; i++)
		if (id.bytes[i] != (char)(i + 1)) return invalid_argument;
	struct comm *c = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	c->state = in_progress;
	c->newcomm = newcomm;
	last = *newcomm = c;
	return pthread_create(&c->init, NULL, initialise, c) ? invalid_argument : in_progress;
}

int ncclCommGetAsyncError(struct comm *c, int *code) { *code = c->state; looks++; return success; }

static int destroy(struct comm *c) {
	c->finish = 1; // a thread that still initialises is joined
	pthread_join(c->init, NULL);
	return munmap(c, 4096);
}

int ncclCommAbort(struct comm *c) { return destroy(c); }
int ncclCommDestroy(struct comm *c) { return destroy(c); }
int ncclCommFinalize(struct comm *c) { return c->state; }

int ncclGroupStart(void) { grouped = NULL; return success; }
int ncclSend(void *p, size_t n, int type, int to, struct comm *c, void *stream) { grouped = c; return success; }
int ncclRecv(void *p, size_t n, int type, int from, struct comm *c, void *stream) { grouped = c; return success; }
int ncclGroupEnd(void) {
	if (grouped) grouped->state = in_progress;
	return grouped ? in_progress : success;
}

int ncclAllReduce(void *in, void *out, size_t n, int type, int op, struct comm *c, void *stream) { return c->state; }
int ncclReduceScatter(void *in, void *out, size_t n, int type, int op, struct comm *c, void *stream) { return c->state; }
int ncclAllGather(void *in, void *out, size_t n, int type, struct comm *c, void *stream) { return c->state; }
int ncclBroadcast(void *in, void *out, size_t n, int type, int root, struct comm *c, void *stream) { return c->state; }

// What the test asks for.
void fake_finish(void) { last->finish = 1; }
int fake_looks(void) { return looks; }
