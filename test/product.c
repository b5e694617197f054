/* Prints the processor seconds of a fixed matrix product; check.sh scales its time budget by them. */
#include <stdio.h>
#include <time.h>

enum { N = 384, TIMES = 96 };

static float a[N][N], b[N][N], c[N][N];

int main(void) {
    for (int i = 0; i < N; i++)
        for (int k = 0; k < N; k++) a[i][k] = (float)(i + k) / N, b[i][k] = (float)(i - k) / N;
    for (int t = 0; t < TIMES; t++)
        for (int i = 0; i < N; i++)
            for (int k = 0; k < N; k++)
                for (int j = 0; j < N; j++) c[i][j] += a[i][k] * b[k][j];
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    if (c[N / 2][N / 3] == 0) puts("no product");
    printf("%.2f\n", (double)used.tv_sec + (double)used.tv_nsec / 1e9);
    return 0;
}
