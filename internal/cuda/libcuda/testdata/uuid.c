// SPDX-License-Identifier: Apache-2.0

// Devices of libcuda that have names and UUIDs: a GPU, then two slices of another. UUID is the older function, which
// gives that of a slice's GPU, UUID_V2 the newer one.
#include <string.h>

int cuDeviceGetCount(int *n) { *n = 3; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }

int cuDeviceGetName(char *s, int n, int d) {
    strncpy(s, d ? "NVIDIA A100-SXM4-40GB MIG 1g.5gb" : "NVIDIA A100-SXM4-40GB", n);
    return 0;
}

#ifdef UUID
int cuDeviceGetUuid(unsigned char *uuid, int d) { memset(uuid, d ? 0xaa : 0x11, 16); return 0; }
#endif

#ifdef UUID_V2
int cuDeviceGetUuid_v2(unsigned char *uuid, int d) { memset(uuid, d ? 0xb0 + d : 0x11, 16); return 0; }
#endif
