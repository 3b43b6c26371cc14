// SPDX-License-Identifier: Apache-2.0

// The functions of libcuda that launch and capture, without a device: said() tells what they were called with. The types
// are those of cuda.h, version 13.0.
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    void *func;
    unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    void **kernelParams, **extra;
    void *kern, *ctx;
} CUDA_KERNEL_NODE_PARAMS_v2;

static char text[8192];
static size_t used;
static __thread void *current;
static pthread_t capturer;
static int capturing;
static uintptr_t nodes, last[1];

static void say(const char *format, ...) {
    va_list list;
    va_start(list, format);
    used += vsnprintf(text + used, sizeof text - used, format, list);
    va_end(list);
}

const char *said(void) { used = 0; return text; }

// bytes says what a list of options CU_LAUNCH_PARAM_BUFFER_POINTER and …_SIZE points to.
static void bytes(void **extra) {
    if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4] != 0) say(" a wrong list");
    for (size_t i = 0; i < *(size_t *)extra[3]; i++) say(" %02x", ((unsigned char *)extra[1])[i]);
    say("\n");
}

static void node(void) {
    if (capturing && !pthread_equal(capturer, pthread_self())) say("another thread\n");
    if (capturing) last[0] = 0x500 + ++nodes;
}

int cuCtxSetCurrent(void *c) { current = c; return 0; }
int cuCtxSynchronize(void) { return capturing ? 900 : 0; }
int cuGetErrorName(int code, const char **s) { (void)code; *s = "CUDA_ERROR_INVALID_VALUE"; return 0; }
int cuGetErrorString(int code, const char **s) { (void)code; *s = "invalid argument"; return 0; }

int cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra) {
    if (params || current != (void *)0x1234) return 1;
    node();
    say("launch %p %u %u %u of %u %u %u, shared %u, stream %p:", f, gx, gy, gz, bx, by, bz, shared, stream);
    bytes(extra);
    return f == (void *)0xbad;
}

int cuMemsetD8Async(unsigned long long p, unsigned char v, size_t n, void *stream) {
    node();
    say("set %llx %d %zu, stream %p\n", p, v, n, stream);
    return 0;
}

int cuStreamBeginCapture_v2(void *stream, int mode) {
    capturer = pthread_self();
    capturing = 1;
    nodes = 0;
    say("begin %p, mode %d\n", stream, mode);
    return current != (void *)0x1234;
}

static int captured(void *stream, int *status, uint64_t *id, void **graph, const uintptr_t **dependencies, size_t *n) {
    if (stream != (void *)0x77 || id || graph) return 1;
    *status = 1;
    *dependencies = last;
    *n = 1;
    return 0;
}

#ifdef CAPTURE_INFO_V2
int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, const uintptr_t **dependencies,
                              size_t *n) {
    return captured(stream, status, id, graph, dependencies, n);
}
#endif

#ifdef CAPTURE_INFO_V3
int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph, const uintptr_t **dependencies,
                              const void **edges, size_t *n) {
    *edges = 0;
    return captured(stream, status, id, graph, dependencies, n);
}
#endif

int cuStreamEndCapture(void *stream, void **graph) {
    node();
    capturing = 0;
    say("end %p\n", stream);
    *graph = (void *)0xa;
    return 0;
}

int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
    say("instantiate %p, flags %llu\n", graph, flags);
    *exec = (void *)0xb;
    return 0;
}

int cuGraphLaunch(void *exec, void *stream) { say("launch graph %p, stream %p\n", exec, stream); return 0; }

int cuGraphExecKernelNodeSetParams_v2(void *exec, void *node, const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    if (p->kernelParams || p->kern || p->ctx) return 1;
    say("change %p of %p: %p %u %u %u of %u %u %u, shared %u:", node, exec, p->func, p->gridDimX, p->gridDimY, p->gridDimZ,
        p->blockDimX, p->blockDimY, p->blockDimZ, p->sharedMemBytes);
    bytes(p->extra);
    return 0;
}

int cuGraphExecDestroy(void *exec) { say("destroy exec %p\n", exec); return 0; }
int cuGraphDestroy(void *graph) { say("destroy graph %p\n", graph); return 0; }
