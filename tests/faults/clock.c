/* Preloaded (LD_PRELOAD), it adds a number of seconds to the clock of the day: the 8 bytes of the file RUEDA_CLOCK.
   CLOCK_MONOTONIC and the times of files, which the kernel sets, stay as they are. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile int64_t *offset;
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("RUEDA_CLOCK");
    real_clock = dlsym(RTLD_NEXT, "clock_gettime");
    if (file) {
        int handle = open(file, O_RDONLY);
        void *memory = handle < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ, MAP_SHARED, handle, 0);
        if (memory != MAP_FAILED) offset = memory;
    }
}

int clock_gettime(clockid_t which, struct timespec *found) {
    if (!real_clock) begin();
    int status = real_clock(which, found);
    if (status == 0 && offset && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) found->tv_sec += *offset;
    return status;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
