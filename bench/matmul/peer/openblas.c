// Times single-precision C = A·B of OpenBLAS (cblas_sgemm, row-major, no transposition) and prints one line per size:
// the size and the GFLOP/s of the fastest of several repetitions. Usage: openblas SIZE...
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

static float *matrix(size_t n) {
  float *x = aligned_alloc(64, n * n * sizeof *x);
  for (size_t i = 0; i < n * n; i++) x[i] = (float)rand() / RAND_MAX - 0.5f;
  return x;
}

int main(int argc, char **argv) {
  fprintf(stderr, "%s\n", openblas_get_config());
  fprintf(stderr, "core %s, %d thread(s)\n", openblas_get_corename(), openblas_get_num_threads());
  for (int arg = 1; arg < argc; arg++) {
    int n = atoi(argv[arg]);
    float *a = matrix(n), *b = matrix(n), *c = matrix(n);
    double best = 1e30, start = now();
    for (int i = 0; i < 3 || now() - start < 0.4; i++) {
      double t = now();
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a, n, b, n, 0, c, n);
      t = now() - t;
      if (t < best) best = t;
    }
    printf("%d %.2f\n", n, 2.0 * n * n * n / best * 1e-9);
    free(a), free(b), free(c);
  }
}
