// Threads move areas of their own to places that they have just reserved, and check each page after
// each move. Where an area leaves a place another thread may reserve it.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { THREADS = 4, PAGE = 4096, PAGES = 1500 };
static double seconds;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static char *map(int access) {
    char *area = mmap(0, PAGES * PAGE, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return area;
}

static void *moves(void *argument) {
    uint64_t number = (uint64_t)(intptr_t)argument + 1;
    char *area = map(PROT_READ | PROT_WRITE);
    for (uint64_t page = 0; page < PAGES; page++)
        ((uint64_t *)(area + page * PAGE))[page % 512] = number << 32 | page;
    for (double end = now() + seconds; now() < end;) {
        char *place = map(PROT_NONE);
        char *moved = mremap(area, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place);
        if (moved != place) {
            perror("mremap");
            exit(2);
        }
        area = moved;
        for (uint64_t page = 0; page < PAGES; page++) {
            uint64_t found = ((uint64_t *)(area + page * PAGE))[page % 512];
            if (found != (number << 32 | page)) {
                printf("page %lu of thread %lu holds %lx\n", page, number, found);
                exit(1);
            }
        }
        nanosleep(&(struct timespec){0, 5000000}, 0);
    }
    return 0;
}

int main(int count, char **arguments) {
    seconds = count > 1 ? atof(arguments[1]) : 1;
    pthread_t threads[THREADS];
    for (intptr_t number = 0; number < THREADS; number++)
        pthread_create(&threads[number], 0, moves, (void *)number);
    for (int number = 0; number < THREADS; number++)
        pthread_join(threads[number], 0);
    puts("right");
}
