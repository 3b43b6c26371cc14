/* All-reduce of float32 with MPI: checks the sum once, then times sums of zeros in place, each after a barrier. Arguments: bytes, iterations. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 3) {
        fprintf(stderr, "usage: allreduce BYTES ITERATIONS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int rank, size, warm_ups = 5, iterations = atoi(argv[2]);
    size_t n = atol(argv[1]) / sizeof(float);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    float *data = malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) data[i] = (rank + 1) * (float)(i % 1000);
    MPI_Allreduce(MPI_IN_PLACE, data, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (size_t i = 0; i < n; i++) {
        if (data[i] != size * (size + 1) / 2 * (float)(i % 1000)) {
            fprintf(stderr, "element %zu is %g\n", i, data[i]);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    memset(data, 0, n * sizeof(float));
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = 0;
    if (rank == 0) printf("{\"path\": \"%s, in place\", \"seconds\": [", version);
    for (int i = 0; i < warm_ups + iterations; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, data, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double seconds = MPI_Wtime() - start;
        if (rank == 0 && i >= warm_ups) printf("%s%.9f", i > warm_ups ? ", " : "", seconds);
    }
    if (rank == 0) printf("]}\n");
    free(data);
    MPI_Finalize();
    return 0;
}
