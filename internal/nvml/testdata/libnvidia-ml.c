// SPDX-License-Identifier: Apache-2.0

// A libnvidia-ml of two devices with nvml.h's functions and layouts. FAIL names a function that fails.
#include <stdlib.h>
#include <string.h>

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { unsigned long long total, free, used; } memory_info;
typedef struct { unsigned gpu, memory; } rates;

static int fails(const char *name) { const char *f = getenv("FAIL"); return f && strcmp(f, name) == 0; }
static int devices[2];
static int text(char *to, unsigned n, const char *s) {
    if (strlen(s) + 1 > n) return 7;
    strcpy(to, s);
    return 0;
}

int nvmlInit_v2(void) { return fails("init") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { return n < 80 ? 7 : text(s, n, "570.86.15"); }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) {
    if (i > 1) return 2;
    *d = &devices[i];
    return 0;
}
static int index_of(void *d) { return (int *)d - devices; }
int nvmlDeviceGetName(void *d, char *s, unsigned n) { return text(s, n, index_of(d) ? "NVIDIA A10G" : "NVIDIA H100 80GB HBM3"); }
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) { return text(s, n, index_of(d) ? "GPU-b" : "GPU-a"); }
int nvmlDeviceGetPciInfo_v3(void *d, pci_info *p) {
    memset(p, 0xff, sizeof *p);
    return text(p->bus_id, 32, index_of(d) ? "00000000:00:1F.0" : "00000000:00:1E.0");
}
int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) {
    *major = index_of(d) ? 8 : 9;
    *minor = index_of(d) ? 6 : 0;
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *d, memory_info *m) {
    m->total = index_of(d) ? 24ull << 30 : 80ull << 30;
    m->free = 1ull << 30;
    m->used = m->total - m->free;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *d, rates *r) {
    if (fails("utilization")) return 15;
    if (index_of(d)) return 3;
    r->gpu = 97;
    r->memory = 41;
    return 0;
}
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = 612340; return index_of(d) ? 3 : 0; }
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *t) {
    if (sensor != 0) return 2;
    *t = 58;
    return 0;
}
