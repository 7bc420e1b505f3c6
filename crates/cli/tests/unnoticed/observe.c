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
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

// A child is busy until its first instruction, as others see it: who waits until it sleeps waits for a
// sleep of its own. The kernel shows also who only looks as asleep, for a microsecond.
static void awake_in_fork(void) {
    int *begun = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int slept = 0, status;
    for (int round = 0; round < 100; round++) {
        int seen_asleep = 0;
        __atomic_store_n(begun, 0, __ATOMIC_SEQ_CST);
        pid_t child = fork();
        if (!child) {
            __atomic_store_n(begun, 1, __ATOMIC_SEQ_CST);
            _exit(0);
        }
        char path[40], state = 0;
        snprintf(path, sizeof path, "/proc/%d/stat", child);
        int file = open(path, O_RDONLY);
        while (!__atomic_load_n(begun, __ATOMIC_SEQ_CST)) {
            char text[64] = "";
            if (pread(file, text, sizeof text - 1, 0) <= 0) break;
            if (sscanf(text, "%*d (%*[^)]) %c", &state) != 1) say("stat", -1);
            seen_asleep += state == 'S';
        }
        close(file);
        waitpid(child, &status, 0);
        slept += seen_asleep > 20;
    }
    printf("children that slept: %s\n", slept > 10 ? "some" : "none");
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

static unsigned char *map(void *place, size_t bytes) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (place ? MAP_FIXED : 0);
    return mmap(place, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
}

static char unknown_program[64];

static void make_file(const char *path, const char *content) {
    int file = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0700);
    if (file == -1 || write(file, content, strlen(content)) == -1) say(path, -1);
    close(file);
    chmod(path, 0700);
}

// Of SIGSTKSZ bytes, as it was for long. The kernel takes some of it.
enum { SMALL = 8192, OWN = 512 };
static char *small_stack;
static long small_result, small_used;

static void execute_in_handler(int signal) {
    (void)signal;
    volatile char *lowest = small_stack;
    uintptr_t here = (uintptr_t)__builtin_frame_address(0);
    for (volatile char *at = lowest; (uintptr_t)at < here - OWN; at++) *at = 0x5a;
    small_result = execve(unknown_program, (char *[]){"x", NULL}, environ);
    while (*lowest == 0x5a) lowest++;
    small_used = here - (uintptr_t)lowest;
}

static void execute_and_wait(const char *what, const char *path, char **environment) {
    int status = 0;
    pid_t child = vfork();
    if (!child) {
        execve(path, (char *[]){"sh", "-c", "exit 7", NULL}, environment);
        _exit(errno);
    }
    waitpid(child, &status, 0);
    printf("%s: %d\n", what, WEXITSTATUS(status));
}

// What the kernel refuses it refuses at once.
static void odd_executions(void) {
    char *arguments[] = {"x", NULL};
    char folder[] = "/tmp/observe-XXXXXX", link[64], fifo[64];
    if (!mkdtemp(folder)) say("mkdtemp", -1);
    snprintf(unknown_program, sizeof unknown_program, "%s/unknown", folder);
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    make_file(unknown_program, "text\n");
    say("mkfifo", mkfifo(fifo, 0700));
    alarm(60);

    // Files that are none.
    say("a fifo", execve(fifo, arguments, environ));
    int descriptor = open(fifo, O_PATH | O_CLOEXEC);
    say("an open fifo", syscall(SYS_execveat, descriptor, "", arguments, environ, AT_EMPTY_PATH));
    say("a device", execve("/dev/null", arguments, environ));
    say("a link to a fifo", symlink(fifo, link));
    say("it", execve(link, arguments, environ));
    say("it itself", syscall(SYS_execveat, AT_FDCWD, link, arguments, environ, AT_SYMLINK_NOFOLLOW));
    char script[64], line[80];
    snprintf(script, sizeof script, "%s/script", folder);
    snprintf(line, sizeof line, "#!%s\n", fifo);
    make_file(script, line);
    say("a script of a fifo", execve(script, arguments, environ));
    say("no such folder", syscall(SYS_execveat, -1, "program", arguments, environ, 0));
    say("no such folder, from the root",
        syscall(SYS_execveat, -1, unknown_program, arguments, environ, 0));
    say("no such flag", syscall(SYS_execveat, AT_FDCWD, unknown_program, arguments, environ, 2));
    descriptor = open(unknown_program, O_PATH | O_CLOEXEC);
    say("an open path", syscall(SYS_execveat, descriptor, "", arguments, environ, AT_EMPTY_PATH));

    // What cannot be read.
    char *memory = (char *)map(NULL, 8192), *end = memory + 4096;
    mprotect(end, 4096, PROT_NONE);
    char *volatile bad = (char *)8, **list = (char **)end - 1;
    say("a bad string", execve("/bin/true", arguments, (char *[]){"A=b", bad, NULL}));
    list[0] = "A=b";
    say("a list without end", execve("/bin/true", arguments, list));
    say("arguments without end", execve("/bin/true", list, environ));
    say("a bad list", execve("/bin/true", arguments, (char **)bad));
    memcpy(end - 11, "LD_PRELOAD=", 11);
    say("a string without end", execve("/bin/true", arguments, (char *[]){end - 11, NULL}));
    memcpy(end - 9, "/bin/true", 9);
    say("a path without end", execve(end - 9, arguments, environ));
    say("a bad path", execve(bad, arguments, environ));
    memory[0] = '/';
    memset(memory + 1, 'a', 4095);
    say("a long path without end", execve(memory, arguments, environ));
    mprotect(end, 4096, PROT_READ | PROT_WRITE);
    say("a long path", execve(memory, arguments, environ));

    // What is too large.
    size_t bytes = 200000;
    char *large = (char *)map(NULL, bytes);
    memset(large, 'x', bytes - 1);
    memcpy(large, "LD_PRELOAD=", 11);
    say("a long string", execve("/bin/true", arguments, (char *[]){large, NULL}));
    char **many = (char **)map(NULL, bytes * sizeof *many);
    for (size_t i = 0; i + 1 < bytes; i++) many[i] = "A=bcdefghijklmnopqrstuvwxyz0123456789";
    say("a long list", execve("/bin/true", arguments, many));

    // What is not.
    execute_and_wait("no environment", "/bin/sh", NULL);
    many[5000] = NULL;
    execute_and_wait("5000 variables", "/bin/sh", many);
    for (int i = 0; i < 100; i++) {
        if (i % 2) execve(unknown_program, arguments, environ);
        execute_and_wait("again", i % 4 ? "/bin/sh" : unknown_program, environ);
    }

    small_stack = (char *)map(NULL, 4096 + SMALL) + 4096;
    mprotect(small_stack - 4096, 4096, PROT_NONE);
    stack_t stack = {.ss_sp = small_stack, .ss_size = SMALL};
    say("sigaltstack", sigaltstack(&stack, NULL));
    struct sigaction action = {.sa_handler = execute_in_handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    say("on a small stack", small_result);
    printf("it is enough: %d\n", small_used < 2048);
    unlink(fifo);
    unlink(link);
    unlink(script);
    unlink(unknown_program);
    rmdir(folder);
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

// Threads that use their memory, of which much is evicted, all at a time, while others give theirs
// back.
enum { THREADS = 300, THREAD_PAGES = 32, THREAD_ROUNDS = 4 };
static pthread_barrier_t together;

static void *use_and_give_back(void *argument) {
    uintptr_t number = (uintptr_t)argument;
    long wrong = 0;
    unsigned char *area = map(NULL, THREAD_PAGES * 4096);
    for (int round = 0; round < THREAD_ROUNDS; round++) {
        fill_in(area, THREAD_PAGES, round);
        pthread_barrier_wait(&together);
        // The first thread sees to it that they are evicted.
        pthread_barrier_wait(&together);
        if ((number + round) % 3 == 0) {
            munmap(area, 8 * 4096);
            map(area, 8 * 4096);
            madvise(area + 8 * 4096, 8 * 4096, MADV_DONTNEED);
            wrong += area[5] + area[9 * 4096] + wrong_in(area + 16 * 4096, 16, round + 16);
        } else {
            wrong += wrong_in(area, THREAD_PAGES, round);
        }
    }
    munmap(area, THREAD_PAGES * 4096);
    return (void *)wrong;
}

static void many_threads(void) {
    static pthread_t threads[THREADS];
    long all_wrong = 0;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    pthread_barrier_init(&together, NULL, THREADS + 1);
    for (uintptr_t i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], &attributes, use_and_give_back, (void *)i)) say("thread", -1);
    }
    for (int round = 0; round < THREAD_ROUNDS; round++) {
        pthread_barrier_wait(&together);
        use_memory(round);
        pthread_barrier_wait(&together);
    }
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        all_wrong += (long)wrong;
    }
    printf("wrong in threads %ld\n", all_wrong);
}

// Threads that end without an instruction of their own that touches their memory, which the kernel
// writes to nevertheless. Without the area of rseq, which many C libraries do not have, it does not
// touch it either when they wake.
static int go_on;

static void *end_at_once(void *unused) {
    extern const ptrdiff_t __rseq_offset __attribute__((weak));
    if (&__rseq_offset) {
        void *area = (char *)__builtin_thread_pointer() + __rseq_offset;
        syscall(SYS_rseq, area, 32, 1, 0x53053053);
    }
#ifdef __x86_64__
    __asm__ volatile(
        "1: mov %[futex], %%eax\n"
        "mov %[word], %%rdi\n"
        "mov $128, %%esi\n" // FUTEX_WAIT, FUTEX_PRIVATE_FLAG
        "xor %%edx, %%edx\n"
        "xor %%r10d, %%r10d\n"
        "syscall\n"
        "mov (%[word]), %%eax\n"
        "test %%eax, %%eax\n"
        "jz 1b\n"
        "mov %[exit], %%eax\n"
        "xor %%edi, %%edi\n"
        "syscall\n"
        :
        : [word] "b"(&go_on), [futex] "i"(SYS_futex), [exit] "i"(SYS_exit)
        : "rax", "rcx", "rdx", "rsi", "rdi", "r10", "r11", "memory");
#endif
    return unused;
}

static void threads_end(void) {
    pthread_t threads[50];
    size_t count = sizeof threads / sizeof *threads;
    for (int round = 0; round < 2; round++) {
        go_on = 0;
        for (size_t i = 0; i < count; i++) pthread_create(&threads[i], NULL, end_at_once, NULL);
        use_memory(round);
        // What is shared with a child may be protected.
        pid_t child = fork();
        if (!child) _exit(wrong(round) != 0);
        use_memory(round + 1);
        int status;
        waitpid(child, &status, 0);
        printf("status %x\n", status);
        alarm(100);
        __atomic_store_n(&go_on, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &go_on, 129, 1000, NULL, NULL, 0); // FUTEX_WAKE
        for (size_t i = 0; i < count; i++) pthread_join(threads[i], NULL);
        alarm(0);
    }
}

static const struct {
    const char *name;
    void (*observe)(void);
} sections[] = {
    {"threads_and_children", threads_and_children},
    {"awake_in_fork", awake_in_fork},
    {"namespaces", namespaces},
    {"strict_seccomp", strict_seccomp},
    {"backtraces", backtraces},
    {"symbols", symbols},
    {"refused_calls", refused_calls},
    {"odd_executions", odd_executions},
    {"stops", stops},
    {"moved_pieces", moved_pieces},
    {"many_threads", many_threads},
    {"threads_end", threads_end},
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
