// llm.c's side of bench/kernels: reads a row's name per line, answers with the median seconds of one run; or "threads" and the number to
// compute on from then on. Its one row is gpt2_124m: a training step of GPT-2 small on 2×512 tokens with AdamW. It does not clip gradients, which the other side
// does.
//
// Built with llm.c's folder among the include paths, by ../peers.sh. Usage: llmc THREADS SECONDS_PER_TURN; OMP_NUM_THREADS holds the number of threads at first.
#define TESTING
#include <omp.h>
#include "train_gpt2.c"

enum { BATCH = 2, BLOCK = 512, MOST = 1000 };

static GPT2 model;
static int inputs[BATCH * BLOCK], targets[BATCH * BLOCK], steps;

// make is gpt2_build_from_checkpoint without a file: small weights that are all but random.
static void make(void) {
    model.config = (GPT2Config){.max_seq_len = 1024, .vocab_size = 50257, .padded_vocab_size = 50304, .num_layers = 12, .num_heads = 12, .channels = 768};
    fill_in_parameter_sizes(model.param_sizes, model.config);
    for (size_t i = 0; i < NUM_PARAMETER_TENSORS; i++) model.num_parameters += model.param_sizes[i];
    model.params_memory = malloc_and_point_parameters(&model.params, model.param_sizes);
    for (size_t i = 0; i < model.num_parameters; i++) model.params_memory[i] = (float)(i * 7919 % 2001) / 50000 - 0.02f;
    for (int i = 0; i < BATCH * BLOCK; i++) inputs[i] = i * 7919 % 50257, targets[i] = (i + 1) * 7919 % 50257;
}

static void step(void) {
    gpt2_forward(&model, inputs, targets, BATCH, BLOCK);
    gpt2_zero_grad(&model);
    gpt2_backward(&model);
    gpt2_update(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.01f, ++steps);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int ascending(const void *x, const void *y) { return (*(double *)x > *(double *)y) - (*(double *)x < *(double *)y); }

int main(int argc, char **argv) {
    double turn = argc > 2 ? atof(argv[2]) : 0, times[MOST];
    FILE *answers = fdopen(dup(1), "w");
    dup2(2, 1); // llm.c prints
    fprintf(answers, "llm.c\n"), fflush(answers);
    for (char line[64]; fgets(line, sizeof line, stdin); fflush(answers)) {
        int n = 0;
        if (!strcmp(line, "gpt2_124m\n")) {
            if (!model.params_memory) make();
            for (double start = now(); !n || (n < MOST && now() - start < turn); n++) {
                double t = now();
                step();
                times[n] = now() - t;
            }
            qsort(times, n, sizeof *times, ascending);
        } else if (!strncmp(line, "threads ", 8)) {
            omp_set_num_threads(atoi(line + 8));
        } else if (line[0] != '\n') {
            return 1;
        }
        fprintf(answers, "%.9f\n", n ? (times[(n - 1) / 2] + times[n / 2]) / 2 : 0.0);
    }
}
