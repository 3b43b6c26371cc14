// SPDX-License-Identifier: Apache-2.0

// A libcuda of one device that computes nothing. Functions that are not here return 0: the test adds them.
#include <stdint.h>
#include <string.h>

static char context;
static __thread void *current;

int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return i != 0 ? 101 : 0; }
int cuDeviceGetName(char *s, int n, int d) { strncpy(s, "no device", n); return d; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = 1 << 30; return d; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = &context; return d; }
int cuCtxSetCurrent(void *c) { current = c; return c == &context ? 0 : 201; }
int cuCtxGetCurrent(void **c) { *c = current; return 0; }

int cuStreamCreate(void **s, unsigned flags) {
    static uintptr_t made;
    if (flags != 1) return 1;
    made += 16;
    *s = (void *)made;
    return 0;
}

int cuGetErrorName(int code, const char **s) { *s = code == 201 ? "CUDA_ERROR_INVALID_CONTEXT" : "unknown"; return 0; }
int cuGetErrorString(int code, const char **s) { (void)code; *s = "no device"; return 0; }
