// Grows by MEGABYTES as fast as it can, in one of the ways listed below, and checks what it wrote.
//
// growth WAY MEGABYTES
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define CHILDREN 12

static size_t bytes;

static unsigned char *map(size_t length, int flags) {
    unsigned char *at =
        mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    return at;
}

static void fill(unsigned char *at, size_t length, int value) {
    for (size_t page = 0; page < length; page += 4096) memset(at + page, value + page / 4096, 4096);
}

static long wrong(const unsigned char *at, size_t length, int value) {
    long count = 0;
    for (size_t i = 0; i < length; i += 509) count += at[i] != (unsigned char)(value + i / 4096);
    return count;
}

static long filled_and_checked(unsigned char *at) {
    fill(at, bytes, 3);
    return wrong(at, bytes, 3);
}

static long map_populate(void) {
    unsigned char *at = map(bytes, MAP_POPULATE);
    return filled_and_checked(at);
}

static long advise_populate(void) {
    unsigned char *at = map(bytes, 0);
    if (madvise(at, bytes, MADV_POPULATE_WRITE)) perror("madvise");
    return filled_and_checked(at);
}

static long written(void) { return filled_and_checked(map(bytes, 0)); }

// Memory that is read first has the kernel's page of zeros, and what is written to that is no first
// touch.
static long read_first(void) {
    unsigned char *at = map(bytes, 0);
    long sum = 0;
    for (size_t page = 0; page < bytes; page += 4096) sum += at[page];
    return sum + filled_and_checked(at);
}

// In the place of what was unmapped, so that the program never has more.
static long mapped_again(void) {
    long sum = 0;
    for (int round = 0; round < 4; round++) {
        unsigned char *at = map(bytes, round % 2 ? MAP_POPULATE : 0);
        sum += filled_and_checked(at);
        munmap(at, bytes);
    }
    return sum;
}

// The same where nothing is unmapped: the other half is not writable meanwhile.
static long protected_in_turns(void) {
    unsigned char *at = map(bytes, 0), *other = map(bytes, 0);
    mprotect(other, bytes, PROT_NONE);
    long sum = filled_and_checked(at);
    mprotect(at, bytes, PROT_NONE);
    mprotect(other, bytes, PROT_READ | PROT_WRITE);
    return sum + filled_and_checked(other);
}

static long from_malloc(void) {
    enum { PIECE = 24 * 4096 };
    size_t count = bytes / PIECE;
    unsigned char **pieces = malloc(count * sizeof *pieces);
    for (size_t i = 0; i < count; i++) fill(pieces[i] = malloc(PIECE), PIECE, i);
    long sum = 0;
    for (size_t i = 0; i < count; i++) sum += wrong(pieces[i], PIECE, i);
    return sum;
}

// Grown in place or moved, again and again.
static long reallocated(void) {
    unsigned char *at = NULL;
    size_t step = bytes / 64 & ~4095UL;
    for (size_t length = 0; length + step <= bytes; length += step) {
        at = realloc(at, length + step);
        fill(at + length, step, length / 4096);
    }
    return wrong(at, step * 64, 0);
}

static void *fill_part(void *argument) {
    unsigned char *at = map(bytes / THREADS, 0);
    fill(at, bytes / THREADS, (uintptr_t)argument);
    return (void *)wrong(at, bytes / THREADS, (uintptr_t)argument);
}

static long threads(void) {
    pthread_t made[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) pthread_create(made + i, NULL, fill_part, (void *)i);
    uintptr_t sum = 0;
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(made[i], &result);
        sum += (uintptr_t)result;
    }
    return sum;
}

// A server that forks before it has work: each child writes a part of what it shares.
static long prefork(void) {
    unsigned char *at = map(bytes, 0);
    fill(at, bytes, 5);
    pid_t children[CHILDREN];
    int gate[2];
    if (pipe(gate)) return -1;
    for (int child = 0; child < CHILDREN; child++) {
        children[child] = fork();
        if (children[child] == 0) {
            char byte;
            close(gate[1]);
            if (read(gate[0], &byte, 1) != 0) _exit(3);
            size_t part = bytes / CHILDREN & ~4095UL;
            fill(at + child * part, part, child);
            _exit(wrong(at + child * part, part, child) != 0);
        }
    }
    close(gate[1]);
    long sum = 0;
    for (int child = 0; child < CHILDREN; child++) {
        int status;
        waitpid(children[child], &status, 0);
        sum += status != 0;
    }
    return sum + wrong(at, bytes, 5);
}

// A snapshot: a child reads what its parent is writing over.
static long snapshot(void) {
    unsigned char *at = map(bytes, 0);
    fill(at, bytes, 0);
    long sum = 0;
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) _exit(wrong(at, bytes, round) != 0);
        fill(at, bytes, round + 1);
        int status;
        waitpid(child, &status, 0);
        sum += status != 0;
    }
    return sum + wrong(at, bytes, 3);
}

// A worker that shares a little with who started it, and writes all that it has again and again.
static long forked(void) {
    unsigned char *shared = map(8 << 20, 0);
    fill(shared, 8 << 20, 7);
    pid_t child = fork();
    if (child == 0) {
        unsigned char *at = map(bytes, 0);
        long sum = madvise(at, bytes, MADV_POPULATE_READ);
        for (int round = 0; round < 4; round++) {
            fill(at, bytes, round);
            sum += wrong(at, bytes, round);
        }
        _exit((sum + wrong(shared, 8 << 20, 7)) != 0);
    }
    int status;
    waitpid(child, &status, 0);
    return status != 0;
}

static const struct {
    const char *name;
    long (*grow)(void);
} ways[] = {
    {"map_populate", map_populate}, {"advise_populate", advise_populate},
    {"written", written},           {"read_first", read_first},
    {"mapped_again", mapped_again}, {"protected_in_turns", protected_in_turns},
    {"from_malloc", from_malloc},
    {"reallocated", reallocated},   {"threads", threads},
    {"prefork", prefork},           {"snapshot", snapshot},
    {"forked", forked},
};

int main(int count, char **arguments) {
    for (size_t i = 0; count == 3 && i < sizeof ways / sizeof *ways; i++) {
        if (!strcmp(arguments[1], ways[i].name)) {
            bytes = strtoul(arguments[2], NULL, 10) << 20;
            long result = ways[i].grow();
            printf("wrong %ld\n", result);
            return result != 0;
        }
    }
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) puts(ways[i].name);
    return 2;
}
