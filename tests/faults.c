/* System calls on files that fail or do less than they were asked: loaded before the C library by tests/faults.rs.

   WATERLINE_FAULT is "CALL NUMBER FAULT": call number NUMBER, from 0, of CALL on a file under WATERLINE_FAULT_FOLDER fails with the errno
   FAULT, or is "short" and moves one byte. WATERLINE_FAULT_FILE is created once it has happened. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const int SHORT = -1;

static int (*real_open)(const char *, int, ...);
static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_write)(int, const void *, size_t);
static int (*real_fsync)(int);
static int (*real_ftruncate)(int, off_t);
static int (*real_rename)(const char *, const char *);
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);

static char call[16];
static long number, fault;
static const char *folder, *happened;

__attribute__((constructor)) static void begin(void)
{
    real_open = dlsym(RTLD_NEXT, "open64");
    real_read = dlsym(RTLD_NEXT, "read");
    real_write = dlsym(RTLD_NEXT, "write");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_rename = dlsym(RTLD_NEXT, "rename");
    real_mmap = dlsym(RTLD_NEXT, "mmap64");
    const char *what = getenv("WATERLINE_FAULT");
    char name[16] = "";
    if (what && sscanf(what, "%15s %ld %15s", call, &number, name) == 3) {
        fault = strcmp(name, "short") ? atol(name) : SHORT;
    }
    folder = getenv("WATERLINE_FAULT_FOLDER");
    happened = getenv("WATERLINE_FAULT_FILE");
}

/* The fault of this call, or 0. */
static long due(const char *name, const char *path)
{
    if (!folder || !fault || strcmp(name, call) || strncmp(path, folder, strlen(folder))) {
        return 0;
    }
    if (__atomic_fetch_sub(&number, 1, __ATOMIC_SEQ_CST) != 0) {
        return 0;
    }
    int file = real_open(happened, O_CREAT | O_WRONLY, 0600);
    if (file >= 0) {
        close(file);
    }
    return fault;
}

static long due_on(const char *name, int file)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) {
        return 0;
    }
    path[length] = 0;
    return due(name, path);
}

int open64(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    int mode = va_arg(arguments, int);
    va_end(arguments);
    long error = due("open", path);
    if (error > 0) {
        errno = (int)error;
        return -1;
    }
    return real_open(path, flags, mode);
}

ssize_t read(int file, void *bytes, size_t count)
{
    long error = due_on("read", file);
    if (error > 0) {
        errno = (int)error;
        return -1;
    }
    return real_read(file, bytes, error == SHORT && count > 1 ? 1 : count);
}

ssize_t write(int file, const void *bytes, size_t count)
{
    long error = due_on("write", file);
    if (error > 0) {
        errno = (int)error;
        return -1;
    }
    return real_write(file, bytes, error == SHORT && count > 1 ? 1 : count);
}

int fsync(int file)
{
    long error = due_on("fsync", file);
    if (error > 0) {
        errno = (int)error;
        return -1;
    }
    return real_fsync(file);
}

int ftruncate64(int file, off_t length)
{
    long error = due_on("ftruncate", file);
    if (error > 0) {
        errno = (int)error;
        return -1;
    }
    return real_ftruncate(file, length);
}

int rename(const char *from, const char *to)
{
    long error = due("rename", from);
    if (error > 0) {
        errno = (int)error;
        return -1;
    }
    return real_rename(from, to);
}

void *mmap64(void *place, size_t length, int protection, int flags, int file, off_t offset)
{
    long error = file >= 0 ? due_on("mmap", file) : 0;
    if (error > 0) {
        errno = (int)error;
        return MAP_FAILED;
    }
    return real_mmap(place, length, protection, flags, file, offset);
}
