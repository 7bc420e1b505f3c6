// What a program can see of itself and of the kernel's answers, a line each. Run without and with
// ramfold, at any cap, it must print the same.
//
// observe SECTION: one of the functions listed at the end.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// More than the cap of the test: enough that ramfold is at work.
#define BYTES (100UL << 20)

static unsigned char *memory;

static void fill(int round) {
    for (size_t i = 0; i < BYTES; i += 64) memory[i] = (i >> 7) + round;
}

static long wrong(int round) {
    long count = 0;
    for (size_t i = 0; i < BYTES; i += 64) count += memory[i] != (unsigned char)((i >> 7) + round);
    return count;
}

static void use_memory(int round) {
    fill(round);
    printf("wrong bytes %ld\n", wrong(round));
}

static void say(const char *what, long result) {
    printf("%s: %ld %s\n", what, result, result == -1 ? strerror(errno) : "");
}

static int count_entries(const char *path) {
    DIR *folder = opendir(path);
    int count = 0;
    struct dirent *entry;
    if (!folder) return -1;
    while ((entry = readdir(folder))) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void threads_and_children(void) {
    int status;
    printf("threads %d\n", count_entries("/proc/self/task"));
    printf("descriptors %d\n", count_entries("/proc/self/fd"));
    say("waitpid", waitpid(-1, &status, 0));
    say("waitpid __WALL", waitpid(-1, &status, __WALL | WNOHANG));
    say("waitpid __WCLONE", waitpid(-1, &status, __WCLONE | WNOHANG));
    pid_t child = fork();
    if (!child) {
        printf("child: threads %d, wrong bytes %ld\n", count_entries("/proc/self/task"), wrong(1));
        say("child: waitpid", waitpid(-1, &status, 0));
        fflush(stdout);
        _exit(3);
    }
    say("child", waitpid(-1, &status, 0) == child);
    printf("status %x\n", status);
    say("waitpid", waitpid(-1, &status, 0));
}

static void namespaces(void) {
    int net = open("/proc/self/ns/user", O_RDONLY);
    say("setns to the own user namespace", setns(net, CLONE_NEWUSER));
    pid_t child = fork();
    if (!child) {
        say("unshare in a child", unshare(CLONE_NEWUSER));
        fill(2);
        printf("wrong bytes %ld\n", wrong(2));
        fflush(stdout);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    say("unshare", unshare(CLONE_NEWUSER | CLONE_NEWNS));
    use_memory(3);
}

// A violation of seccomp's strict mode kills one thread: the process, where there is no other.
static void strict_seccomp(void) {
    int status;
    for (int forked = 0; forked < 2; forked++) {
        pid_t child = fork();
        if (!child) {
            if (forked && fork()) {
                wait(&status);
                _exit(WIFSIGNALED(status) ? 100 + WTERMSIG(status) : WEXITSTATUS(status));
            }
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
            getppid();
            _exit(5);
        }
        waitpid(child, &status, 0);
        printf("status %x\n", status);
    }
}

static void on_signal(int signal) {
    void *frames[50];
    printf("signal %d: %d frames\n", signal, backtrace(frames, 50));
}

static void backtraces(void) {
    void *frames[2];
    backtrace(frames, 2);
    signal(SIGUSR1, on_signal);
    raise(SIGUSR1);
    kill(getpid(), SIGUSR1);
    syscall(SYS_tgkill, getpid(), getpid(), SIGUSR1);
}

static void symbols(void) {
    static const char *names[] = {"syscall", "mmap", "munmap", "mremap", "madvise", "brk", "sbrk",
        "mprotect", "fork", "execve", "memcpy", "memset", "malloc"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        Dl_info info;
        void *symbol = dlsym(RTLD_DEFAULT, names[i]);
        const char *file = symbol && dladdr(symbol, &info) ? info.dli_fname : "nowhere";
        const char *slash = strrchr(file, '/');
        printf("%s in %s\n", names[i], slash ? slash + 1 : file);
    }
}

static void refused_calls(void) {
    char *none = mmap(0, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    say("clone3 unreadable", syscall(SYS_clone3, none, 88));
    say("clone3 unaligned", syscall(SYS_clone3, none + 1, 88));
    say("clone3 null", syscall(SYS_clone3, NULL, 88));
    uint64_t *half = (uint64_t *)(none + 4096 - 16);
    mprotect(none, 4096, PROT_READ | PROT_WRITE);
    half[0] = 0;
    say("clone3 half readable", syscall(SYS_clone3, half, 88));
    say("clone nonsense", syscall(SYS_clone, CLONE_SIGHAND, 0, 0, 0, 0));
    say("no such call", syscall(9999));
    say("mmap no length", (long)mmap(0, 0, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    say("mmap unaligned", (long)mmap((void *)1, 4096, 3, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    say("mmap bad file", (long)mmap(0, 4096, 3, MAP_PRIVATE, 77, 0));
    say("mmap too much", (long)mmap(0, 1UL << 60, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    say("mmap taken", (long)mmap(none, 4096, 3,
        MAP_FIXED_NOREPLACE | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    say("mremap nowhere", (long)mremap((void *)4096, 4096, 8192, MREMAP_MAYMOVE));
    say("mremap no room", (long)mremap(none, 4096, 1UL << 46, 0));
    say("mremap bad flags", (long)mremap(none, 4096, 8192, 64));
    say("mprotect unaligned", mprotect(none + 1, 4096, PROT_READ));
    say("mprotect nothing", mprotect((void *)(1UL << 46), 4096, PROT_READ));
    say("madvise nonsense", madvise(none, 4096, 9999));
    say("brk nowhere", brk((void *)4096));
    say("sbrk too much", (long)sbrk(1L << 60));
    say("execve nothing", execve("/no/such/file", (char *[]){"x", NULL}, environ));
    say("execve a folder", execve("/tmp", (char *[]){"x", NULL}, (char *[]){NULL}));
    // Not known to the compiler to be null.
    char *volatile nowhere = NULL;
    say("execve null", execve(nowhere, (char *[]){"x", NULL}, environ));
    say("execveat nothing", syscall(SYS_execveat, AT_FDCWD, "/no/such/file", NULL, NULL, 0));
    int file = open("/etc/passwd", O_RDONLY | O_CLOEXEC);
    say("fexecve no program", fexecve(file, (char *[]){"x", NULL}, (char *[]){NULL}));
}

static void stops(void) {
    int status;
    pid_t child = fork();
    if (!child) {
        raise(SIGSTOP);
        _exit(wrong(1) ? 1 : 4);
    }
    waitpid(child, &status, WUNTRACED);
    printf("stopped %d\n", WIFSTOPPED(status));
    kill(child, SIGCONT);
    waitpid(child, &status, WCONTINUED);
    printf("goes on %d\n", WIFCONTINUED(status));
    waitpid(child, &status, 0);
    printf("status %x\n", status);
    // A group of processes that is stopped, as by a terminal.
    child = fork();
    if (!child) {
        setpgid(0, 0);
        if (!fork()) _exit(wrong(1) ? 1 : 4);
        kill(0, SIGSTOP);
        wait(&status);
        _exit(wrong(1) ? 1 : WEXITSTATUS(status));
    }
    waitpid(child, &status, WUNTRACED);
    printf("stopped %d\n", WIFSTOPPED(status));
    kill(-child, SIGCONT);
    waitpid(child, &status, 0);
    printf("status %x\n", status);
}

static void *end_first_thread(void *unused) {
    (void)unused;
    // Until that has ended, and is dead to the kernel.
    for (char state = 0; state != 'Z'; usleep(1000)) {
        FILE *file = fopen("/proc/self/stat", "r");
        if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1) exit(7);
        fclose(file);
    }
    use_memory(2);
    fflush(stdout);
    exit(6);
}

// The first thread may end before the others.
static void first_thread_ends(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, end_first_thread, NULL);
    pthread_exit(NULL);
}

static unsigned char *map(void *place, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (place ? MAP_FIXED : 0);
    return mmap(place, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
}

static long wrong_in(const unsigned char *at, size_t pages, int value) {
    long wrong = 0;
    for (size_t page = 0; page < pages; page++) {
        for (size_t byte = 0; byte < 4096; byte += 512) {
            wrong += at[page * 4096 + byte] != (unsigned char)(value + page);
        }
    }
    return wrong;
}

static void fill_in(unsigned char *at, size_t pages, int value) {
    for (size_t page = 0; page < pages; page++) memset(at + page * 4096, value + page, 4096);
}

// Memory that was mapped in pieces, some of them evicted and some fresh, is one mapping.
static unsigned char *in_pieces(size_t pages, int round) {
    unsigned char *area = map(NULL, pages * 4096);
    fill_in(area, pages, 0);
    if (wrong(2)) puts("wrong bytes");
    // Every other run of 128 pages is made anew, and half of it is touched before it is known.
    for (size_t page = 128 * (round % 2); page + 128 <= pages; page += 256) {
        if (round % 3) munmap(area + page * 4096, 128 * 4096);
        if (map(area + page * 4096, 128 * 4096) == MAP_FAILED) say("map", -1);
        fill_in(area + page * 4096, 64, page);
        usleep(round % 4 == 0 ? 500 : 0);
        fill_in(area + (page + 64) * 4096, 64, page + 64);
    }
    return area;
}

static void moved_pieces(void) {
    enum { ROUNDS = 12 };
    use_memory(2);
    for (int round = 1; round <= ROUNDS; round++) {
        size_t pages = 4096, bytes = pages * 4096;
        unsigned char *area = in_pieces(pages, round);
        unsigned char *place, *moved;
        switch (round % 4) {
        case 0: // longer, wherever there is room
            moved = mremap(area, bytes, bytes + 100 * 4096, MREMAP_MAYMOVE);
            if (moved != MAP_FAILED) fill_in(moved + bytes, 100, pages);
            pages += 100;
            break;
        case 1: // to a place of its own
            place = map(NULL, bytes + 4096);
            moved = mremap(area, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, place + 4096);
            munmap(place, 4096);
            break;
        case 2: // to another, shorter
            place = map(NULL, bytes);
            pages -= 50;
            moved = mremap(area, bytes, bytes - 50 * 4096 - 7, MREMAP_MAYMOVE | MREMAP_FIXED, place);
            munmap(place + pages * 4096, 50 * 4096);
            break;
        default: // leaving what reads as zeros
            moved = mremap(area, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
            if (moved != MAP_FAILED) {
                long zeros = 0;
                for (size_t page = 0; page < pages; page++) zeros += area[page * 4096 + 5] == 0;
                printf("zeros in %ld of %zu\n", zeros, pages);
                munmap(area, bytes);
            }
        }
        if (moved == MAP_FAILED) {
            say("mremap", -1);
            return;
        }
        printf("round %d, wrong %ld and %ld\n", round, wrong_in(moved, pages, 0), wrong(2));
        munmap(moved, pages * 4096);
    }
    // What is refused.
    unsigned char *area = map(NULL, 64 * 4096);
    if (map(area + 40 * 4096, 24 * 4096) == MAP_FAILED) say("map", -1);
    fill_in(area, 64, 0);
    wrong(2);
    say("grow in place", (long)mremap(area, 20 * 4096, 20 * 4096 + 9, 0));
    munmap(area + 4096, 4096);
    say("hole", (long)mremap(area, 30 * 4096, 31 * 4096, MREMAP_MAYMOVE));
    mprotect(area + 8 * 4096, 4096, PROT_READ);
    say("access", (long)mremap(area + 8192, 8 * 4096, 9 * 4096, MREMAP_MAYMOVE));
    int fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
    say("overlap", (long)mremap(area, 8 * 4096, 8 * 4096, fixed, area + 4096));
    say("odd place", (long)mremap(area, 8 * 4096, 8 * 4096, fixed, area + 7));
    say("no place", (long)mremap(area, 8 * 4096, 8 * 4096, fixed, (void *)-4096L));
    munmap(area, 64 * 4096);
}

static const struct {
    const char *name;
    void (*observe)(void);
} sections[] = {
    {"threads_and_children", threads_and_children},
    {"namespaces", namespaces},
    {"strict_seccomp", strict_seccomp},
    {"backtraces", backtraces},
    {"symbols", symbols},
    {"refused_calls", refused_calls},
    {"stops", stops},
    {"moved_pieces", moved_pieces},
    {"first_thread_ends", first_thread_ends},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    memory = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    use_memory(1);
    for (size_t i = 0; count > 1 && i < sizeof sections / sizeof *sections; i++) {
        if (!strcmp(arguments[1], sections[i].name)) {
            sections[i].observe();
            return 0;
        }
    }
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) puts(sections[i].name);
    return 2;
}
