// Leaks memory and has a data race, for sanitizers to find.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static int counter;

static void *count(void *unused) {
    (void)unused;
    for (int i = 0; i < 1000; i++) counter++;
    return NULL;
}

// A list of blocks, of which nothing but the first might still be known by a register.
static void leak(void) {
    void **list = NULL;
    for (int i = 0; i < 1000; i++) {
        void **block = malloc(160000);
        memset(block, 1, 160000);
        *block = list;
        list = block;
    }
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, count, NULL);
    count(NULL);
    pthread_join(thread, NULL);
    leak();
    // What the calls left on the stack.
    memset(__builtin_alloca(4096), 0, 4096);
    return 0;
}
