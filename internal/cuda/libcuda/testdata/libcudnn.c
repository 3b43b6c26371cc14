// SPDX-License-Identifier: Apache-2.0

// A libcudnn with the functions of cudnn_graph.h that convolutions take. It keeps what descriptors are given, refuses
// what it does not expect, and notes what is executed. FAKE_CUDNN says what goes wrong.
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAD = 2000, UNFINISHED = 2004, WRONG_TYPE = 2010, UNSUPPORTED = 3000, TROUBLE = 5000 };
enum { CONVOLUTION = 1, ENGINE, CONFIG, HEURISTICS, PLAN, FORWARD = 10, FILTER, DATA, GRAPH = 15, VARIANT, TENSOR };

typedef struct { int name, type; int64_t count; unsigned char bytes[64]; } attribute;
typedef struct { int magic, kind, final, engine, n; attribute a[16]; } descriptor;
typedef struct { int magic; uintptr_t stream; } handle;

static __thread char said[256];
static char log_text[4096];
static int alive, handles;

int cuCtxGetCurrent(void **c);

static int wrong(const char *how) { return getenv("FAKE_CUDNN") && strcmp(getenv("FAKE_CUDNN"), how) == 0; }

static int refuse(int code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(said, sizeof said, format, args);
    va_end(args);
    return code;
}

const char *fake_log(void) { return log_text; }
int fake_alive(void) { return alive + 1000 * handles; }

size_t cudnnGetVersion(void) { return 90102; }

const char *cudnnGetErrorString(int code) {
    switch (code) {
    case 1001: return "CUDNN_STATUS_NOT_INITIALIZED";
    case BAD: return "CUDNN_STATUS_BAD_PARAM";
    case UNFINISHED: return "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    case WRONG_TYPE: return "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE";
    case UNSUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
    }
    return "CUDNN_STATUS_EXECUTION_FAILED";
}

void cudnnGetLastErrorString(char *message, size_t n) { snprintf(message, n, "%s", said); }

int cudnnCreate(handle **h) {
    void *context = 0;
    cuCtxGetCurrent(&context);
    if (!context || wrong("create")) return refuse(1001, "no context");
    *h = calloc(1, sizeof **h);
    (*h)->magic = 77;
    handles++;
    return 0;
}

int cudnnDestroy(handle *h) {
    if (h->magic != 77) return BAD;
    free(h);
    handles--;
    return 0;
}

int cudnnSetStream(handle *h, void *stream) {
    if (h->magic != 77) return BAD;
    h->stream = (uintptr_t)stream;
    return 0;
}

int cudnnBackendCreateDescriptor(int kind, descriptor **d) {
    if (kind < CONVOLUTION || kind > TENSOR) return refuse(BAD, "kind %d", kind);
    *d = calloc(1, sizeof **d);
    (*d)->magic = 99;
    (*d)->kind = kind;
    alive++;
    return 0;
}

int cudnnBackendDestroyDescriptor(descriptor *d) {
    if (d->magic != 99) return BAD;
    d->magic = 0;
    free(d);
    alive--;
    return 0;
}

static size_t size_of(int type) {
    switch (type) {
    case 0: case 3: case 5: case 6: case 15: return 8; // handle, int64, double, pointer, descriptor
    case 1: case 4: case 7: case 8: return 4;          // data type, float, modes
    }
    return 0;
}

// What each kind of descriptor wants: the name, type and number of values of attributes.
typedef struct { int kind, name, type, count; } want;
static const want wants[] = {
    {CONVOLUTION, 100, 1, 1}, {CONVOLUTION, 101, 7, 1}, {CONVOLUTION, 102, 3, 2}, {CONVOLUTION, 103, 3, 2},
    {CONVOLUTION, 104, 3, 2}, {CONVOLUTION, 105, 3, 2}, {CONVOLUTION, 106, 3, 1},
    {TENSOR, 900, 3, 1}, {TENSOR, 901, 1, 1}, {TENSOR, 902, 3, 4}, {TENSOR, 903, 3, 4}, {TENSOR, 906, 3, 1},
    {FORWARD, 700, 4, 1}, {FORWARD, 701, 4, 1}, {FORWARD, 702, 15, 1}, {FORWARD, 703, 15, 1}, {FORWARD, 704, 15, 1},
    {FORWARD, 705, 15, 1},
    {DATA, 706, 4, 1}, {DATA, 707, 4, 1}, {DATA, 708, 15, 1}, {DATA, 709, 15, 1}, {DATA, 710, 15, 1},
    {DATA, 711, 15, 1},
    {FILTER, 712, 4, 1}, {FILTER, 713, 4, 1}, {FILTER, 714, 15, 1}, {FILTER, 715, 15, 1}, {FILTER, 716, 15, 1},
    {FILTER, 717, 15, 1},
    {GRAPH, 800, 0, 1}, {GRAPH, 801, 15, 1}, {HEURISTICS, 200, 8, 1}, {HEURISTICS, 201, 15, 1}, {PLAN, 400, 0, 1},
    {PLAN, 401, 15, 1}, {VARIANT, 1000, 3, 3}, {VARIANT, 1001, 6, 3}, {VARIANT, 1003, 6, 1},
};

int cudnnBackendSetAttribute(descriptor *d, int name, int type, int64_t count, const void *values) {
    if (!d || d->magic != 99 || d->final) return refuse(BAD, "not a new descriptor");
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        const want *w = &wants[i];
        if (w->kind != d->kind || w->name != name) continue;
        if (w->type != type && !(w->type == 4 && type == 5)) return refuse(WRONG_TYPE, "type %d of %d", type, name);
        if (w->count != count) return refuse(BAD, "%lld values of %d", (long long)count, name);
        if (type == 15 && !(*(descriptor *const *)values)->final) return refuse(UNFINISHED, "value of %d", name);
        attribute *a = &d->a[d->n++];
        a->name = name;
        a->type = type;
        a->count = count;
        memcpy(a->bytes, values, size_of(type) * count);
        return 0;
    }
    return refuse(BAD, "attribute %d of kind %d", name, d->kind);
}

static void *get(descriptor *d, int name) {
    for (int i = 0; i < d->n; i++)
        if (d->a[i].name == name) return d->a[i].bytes;
    return 0;
}

static descriptor *part(descriptor *d, int name) { return *(descriptor **)get(d, name); }

static void note(const char *format, ...) {
    size_t n = strlen(log_text);
    va_list args;
    va_start(args, format);
    vsnprintf(log_text + n, sizeof log_text - n, format, args);
    va_end(args);
}

static void numbers(const char *name, descriptor *d, int attribute, int n) {
    const int64_t *v = get(d, attribute);
    for (int i = 0; i < n; i++) note("%s%lld", i ? "," : name, (long long)v[i]);
}

static void tensor(const char *name, descriptor *d) {
    note(" %s", name);
    numbers(":", d, 906, 1);
    numbers("=", d, 902, 4);
    numbers("/", d, 903, 4);
    numbers("/", d, 900, 1);
    note("/%d", *(int *)get(d, 901));
}

static double scalar(descriptor *d, int attribute) {
    for (int i = 0; i < d->n; i++)
        if (d->a[i].name == attribute && d->a[i].type == 5) return *(double *)d->a[i].bytes;
    return *(float *)get(d, attribute);
}

// describe notes the operation of a graph. Which attribute is which operand is as in cudnn_graph.h.
static void describe(descriptor *op) {
    static const int alpha[] = {[FORWARD] = 700, [DATA] = 706, [FILTER] = 712};
    static const int x[] = {[FORWARD] = 704, [DATA] = 710, [FILTER] = 716};
    static const int w[] = {[FORWARD] = 703, [DATA] = 709, [FILTER] = 715};
    static const int y[] = {[FORWARD] = 705, [DATA] = 711, [FILTER] = 717};
    int k = op->kind;
    descriptor *conv = part(op, alpha[k] + 2);
    note("%s", k == FORWARD ? "forward" : k == DATA ? "data" : "filter");
    tensor("x", part(op, x[k]));
    tensor("w", part(op, w[k]));
    tensor("y", part(op, y[k]));
    note(" compute %d mode %d", *(int *)get(conv, 100), *(int *)get(conv, 101));
    numbers(" dims ", conv, 106, 1);
    numbers(" strides ", conv, 103, 2);
    numbers(" before ", conv, 105, 2);
    numbers(" after ", conv, 104, 2);
    numbers(" dilations ", conv, 102, 2);
    note(" alpha %g beta %g\n", scalar(op, alpha[k]), scalar(op, alpha[k] + 1));
}

// The engines: what they note of themselves, and the workspace that they want; −1: there is no plan of one.
typedef struct { int notes, behavior; int64_t workspace; } engine;
static const engine engines[] = {
    {1 << 4, 0, 0},           // not deterministic
    {1 << 0 | 1 << 9, 0, 64}, // on matrix units
    {0, 1 << 0, 0},           // compiled at run time
    {0, 0, 1ll << 40},        // more workspace than there is
    {0, 0, -1},               // not for this shape
    {1 << 9, 0, 4096},        // good
    {0, 0, 0},                // for any shape
};

int cudnnBackendFinalize(descriptor *d) {
    if (!d || d->magic != 99 || d->final) return refuse(BAD, "not a new descriptor");
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++)
        if (wants[i].kind == d->kind && !get(d, wants[i].name)) return refuse(BAD, "no %d", wants[i].name);
    if (d->kind == PLAN) {
        d->engine = part(d, 401)->engine;
        if (wrong("trouble")) return refuse(TROUBLE, "the device is on fire");
        if (engines[d->engine].workspace < 0) return refuse(UNSUPPORTED, "engine %d", d->engine);
        if (((handle *)part(d, 400))->magic != 77) return refuse(BAD, "handle");
    }
    if (d->kind == GRAPH) {
        if (wrong("graph")) return refuse(UNSUPPORTED, "no such graph");
        if (((handle *)part(d, 800))->magic != 77) return refuse(BAD, "handle");
        describe(part(d, 801));
    }
    d->final = 1;
    return 0;
}

static int notes(int bits, int64_t *found, int *to, int64_t most) {
    *found = 0;
    for (int i = 0; i < 16; i++)
        if (bits >> i & 1 && *found < most) to[(*found)++] = i;
    return 0;
}

int cudnnBackendGetAttribute(descriptor *d, int name, int type, int64_t most, int64_t *found, void *to) {
    if (!d || d->magic != 99 || !d->final) return refuse(UNFINISHED, "attribute %d", name);
    descriptor **list = to;
    if (d->kind == HEURISTICS && name == 202 && type == 15) {
        int first = 0, end = 6;
        if (*(int *)get(d, 200) == 2) first = 6, end = 7;
        else if (*(int *)get(d, 200) != 3) return refuse(BAD, "mode");
        if (wrong("fallback") && first == 0) end = 5;
        if (wrong("none")) end = 4;
        for (*found = 0; first + *found < end && *found < most; (*found)++) {
            list[*found]->engine = first + *found;
            list[*found]->final = 1;
        }
        return 0;
    }
    if (d->kind == CONFIG && name == 300 && type == 15 && most == 1) {
        list[0]->engine = d->engine;
        list[0]->final = 1;
        *found = 1;
        return 0;
    }
    if (d->kind == ENGINE && name == 1303 && type == 11) return notes(engines[d->engine].notes, found, to, most);
    if (d->kind == ENGINE && name == 1305 && type == 19) return notes(engines[d->engine].behavior, found, to, most);
    if (d->kind == PLAN && name == 402 && type == 3 && most == 1) {
        *(int64_t *)to = engines[d->engine].workspace;
        *found = 1;
        return 0;
    }
    return refuse(BAD, "attribute %d of kind %d", name, d->kind);
}

int cudnnBackendExecute(handle *h, descriptor *plan, descriptor *variant) {
    if (h->magic != 77 || !plan->final || !variant->final) return refuse(BAD, "not final");
    if ((handle *)part(plan, 400) != h) return refuse(BAD, "handle");
    note("stream %lx engine %d", (long)h->stream, plan->engine);
    int64_t *ids = get(variant, 1000);
    uintptr_t *pointers = get(variant, 1001);
    for (int i = 0; i < 3; i++) note(" %lld@%lx", (long long)ids[i], (long)pointers[i]);
    note(" workspace %lx\n", *(long *)get(variant, 1003));
    return 0;
}
