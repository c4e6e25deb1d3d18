/* What a disk has for certain: keeps, beside the files of a process, what it has synced of them.
 *
 * Preloaded into a node (LD_PRELOAD). Below POWER_ROOT every write goes to its file as ever. What `fsync` and
 * `fdatasync` promise is copied to POWER_DISK: data/INODE has the synced content of a file, names/INODE the
 * names in a directory when it was synced last. The promise is POSIX's and no more: a file is its inode, and
 * has a name after a crash only if its directory was synced. A sync returns when its copy is whole, so a process
 * that is killed leaves there what a loss of power would have left at least.
 *
 * kept/INODE is one more link to each file that was opened for writing, so that no inode is used again while
 * its copy is here. What has neither a link nor a copy was there before, and is on the disk.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FILES (1 << 16)
#define LOCKS 64
#define MAX_FD (1 << 16)

/* The bytes from `begin` to `end` of a file were written after its last sync. */
struct written {
    ino_t inode;
    off_t begin, end;
};

static struct written files[MAX_FILES];
static unsigned char watched[MAX_FD];
static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t sync_locks[LOCKS];
static const char *root, *disk;
static size_t root_length;

#define REAL(name) ((__typeof__(name) *)real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) {
        fprintf(stderr, "power.c: there is no %s\n", name);
        abort();
    }
    return found;
}

static void fail(const char *what) {
    fprintf(stderr, "power.c: %s: %s\n", what, strerror(errno));
    abort();
}

__attribute__((constructor)) static void begin(void) {
    root = getenv("POWER_ROOT");
    disk = getenv("POWER_DISK");
    root_length = root && disk ? strlen(root) : 0;
    for (int i = 0; i < LOCKS; i++)
        pthread_mutex_init(&sync_locks[i], NULL);
}

static int is_below(const char *path) {
    return root_length && strncmp(path, root, root_length) == 0 && path[root_length] == '/';
}

static void copy_path(char *out, const char *kind, ino_t inode) {
    snprintf(out, PATH_MAX, "%s/%s/%llu", disk, kind, (unsigned long long)inode);
}

/* The entry of a file; the first time all of it counts as written. With files_lock. */
static struct written *entry(ino_t inode) {
    for (size_t i = inode % MAX_FILES, n = 0; n < MAX_FILES; i = (i + 1) % MAX_FILES, n++) {
        if (!files[i].inode) {
            files[i].inode = inode;
            files[i].begin = 0;
            files[i].end = LLONG_MAX;
        }
        if (files[i].inode == inode)
            return &files[i];
    }
    errno = ENFILE;
    fail("too many files");
    return NULL;
}

static int inode_of(int fd, ino_t *inode) {
    struct stat facts;
    if (fd < 0 || fd >= MAX_FD || !watched[fd] || fstat(fd, &facts) || !S_ISREG(facts.st_mode))
        return 0;
    *inode = facts.st_ino;
    return 1;
}

static void note_write(int fd, off_t begin, off_t end) {
    ino_t inode;
    if (!inode_of(fd, &inode))
        return;
    pthread_mutex_lock(&files_lock);
    struct written *file = entry(inode);
    if (begin < file->begin)
        file->begin = begin;
    if (end > file->end)
        file->end = end;
    pthread_mutex_unlock(&files_lock);
}

static void copy_content(int fd, ino_t inode) {
    char path[PATH_MAX], bytes[1 << 16];
    struct stat facts;
    pthread_mutex_lock(&sync_locks[inode % LOCKS]);
    pthread_mutex_lock(&files_lock);
    struct written *file = entry(inode);
    off_t at = file->begin, end = file->end;
    file->begin = LLONG_MAX;
    file->end = 0;
    pthread_mutex_unlock(&files_lock);
    copy_path(path, "data", inode);
    int copy = REAL(open64)(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (copy < 0 || fstat(fd, &facts) || REAL(ftruncate64)(copy, facts.st_size))
        fail(path);
    while (at < end) {
        size_t wanted = end - at < (off_t)sizeof bytes ? (size_t)(end - at) : sizeof bytes;
        ssize_t got = pread(fd, bytes, wanted, at);
        if (got < 0)
            fail("read of what is synced");
        if (got == 0)
            break;
        if (REAL(pwrite64)(copy, bytes, got, at) != got)
            fail(path);
        at += got;
    }
    REAL(close)(copy);
    pthread_mutex_unlock(&sync_locks[inode % LOCKS]);
}

static void copy_names(int fd, ino_t inode) {
    char path[PATH_MAX], unfinished[PATH_MAX + 8], self[64];
    pthread_mutex_lock(&names_lock);
    copy_path(path, "names", inode);
    snprintf(unfinished, sizeof unfinished, "%s.tmp", path);
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    FILE *out = fopen(unfinished, "we");
    DIR *names = opendir(self);
    if (!out || !names)
        fail(path);
    for (struct dirent *name; (name = readdir(names));)
        if (strcmp(name->d_name, ".") && strcmp(name->d_name, ".."))
            fprintf(out, "%llu %c %s\n", (unsigned long long)name->d_ino, name->d_type == DT_DIR ? 'd' : 'f',
                    name->d_name);
    closedir(names);
    if (fclose(out) || REAL(rename)(unfinished, path))
        fail(path);
    pthread_mutex_unlock(&names_lock);
}

static int sync_of(int fd, int (*sync)(int)) {
    struct stat facts;
    int result = sync(fd);
    if (!result && fd >= 0 && fd < MAX_FD && watched[fd] && !fstat(fd, &facts)) {
        if (S_ISDIR(facts.st_mode))
            copy_names(fd, facts.st_ino);
        else if (S_ISREG(facts.st_mode))
            copy_content(fd, facts.st_ino);
    }
    return result;
}

int fsync(int fd) { return sync_of(fd, REAL(fsync)); }
int fdatasync(int fd) { return sync_of(fd, REAL(fdatasync)); }

static int opened(const char *path, int flags, mode_t mode, int at, int has_at) {
    int below = is_below(path);
    if (below)
        pthread_mutex_lock(&names_lock);
    int fd = has_at ? REAL(openat64)(at, path, flags, mode) : REAL(open64)(path, flags, mode);
    int error = errno;
    if (fd >= 0 && fd < MAX_FD) {
        watched[fd] = below;
        ino_t inode;
        if (below && (flags & (O_WRONLY | O_RDWR)) && inode_of(fd, &inode)) {
            char kept[PATH_MAX];
            copy_path(kept, "kept", inode);
            if (link(path, kept) && errno != EEXIST && errno != ENOENT)
                fail(kept);
            if (flags & O_TRUNC)
                note_write(fd, 0, 0);
        }
    }
    if (below)
        pthread_mutex_unlock(&names_lock);
    errno = error;
    return fd;
}

#define MODE_OF(flags, mode)                                                                                 \
    mode_t mode = 0;                                                                                         \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                                 \
        va_list rest;                                                                                        \
        va_start(rest, flags);                                                                               \
        mode = va_arg(rest, mode_t);                                                                         \
        va_end(rest);                                                                                        \
    }

int open(const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    return opened(path, flags, mode, 0, 0);
}
int open64(const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    return opened(path, flags, mode, 0, 0);
}
int openat(int at, const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    return opened(path, flags, mode, at, 1);
}
int openat64(int at, const char *path, int flags, ...) {
    MODE_OF(flags, mode)
    return opened(path, flags, mode, at, 1);
}

int close(int fd) {
    if (fd >= 0 && fd < MAX_FD)
        watched[fd] = 0;
    return REAL(close)(fd);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) {
    ssize_t done = REAL(pwrite64)(fd, data, size, at);
    if (done > 0)
        note_write(fd, at, at + done);
    return done;
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return pwrite64(fd, data, size, at); }

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) {
    ssize_t done = REAL(pwritev64)(fd, parts, count, at);
    if (done > 0)
        note_write(fd, at, at + done);
    return done;
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    return pwritev64(fd, parts, count, at);
}

/* Where it was written is not known any more: all of the file counts. */
ssize_t write(int fd, const void *data, size_t size) {
    ssize_t done = REAL(write)(fd, data, size);
    if (done > 0)
        note_write(fd, 0, LLONG_MAX);
    return done;
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    ssize_t done = REAL(writev)(fd, parts, count);
    if (done > 0)
        note_write(fd, 0, LLONG_MAX);
    return done;
}

int ftruncate64(int fd, off_t size) {
    int result = REAL(ftruncate64)(fd, size);
    if (!result)
        note_write(fd, size, LLONG_MAX);
    return result;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

/* Programs write by hand where it cannot. */
ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t size, unsigned flags) {
    (void)from, (void)from_at, (void)to, (void)to_at, (void)size, (void)flags;
    errno = ENOSYS;
    return -1;
}

int rename(const char *from, const char *to) {
    pthread_mutex_lock(&names_lock);
    int result = REAL(rename)(from, to);
    pthread_mutex_unlock(&names_lock);
    return result;
}

int unlink(const char *path) {
    pthread_mutex_lock(&names_lock);
    int result = REAL(unlink)(path);
    pthread_mutex_unlock(&names_lock);
    return result;
}

/* A descriptor that nobody closes keeps the inode from being used again. */
int rmdir(const char *path) {
    pthread_mutex_lock(&names_lock);
    int kept = is_below(path) ? REAL(open64)(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int result = REAL(rmdir)(path);
    int error = errno;
    if (result && kept >= 0)
        REAL(close)(kept);
    pthread_mutex_unlock(&names_lock);
    errno = error;
    return result;
}

int mkdir(const char *path, mode_t mode) {
    pthread_mutex_lock(&names_lock);
    int result = REAL(mkdir)(path, mode);
    int error = errno;
    struct stat facts;
    if (!result && is_below(path) && !stat(path, &facts)) {
        char names[PATH_MAX];
        copy_path(names, "names", facts.st_ino);
        int empty = REAL(open64)(names, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (empty < 0)
            fail(names);
        REAL(close)(empty);
    }
    pthread_mutex_unlock(&names_lock);
    errno = error;
    return result;
}
