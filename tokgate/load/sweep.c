/* The measuring worker's hot path, compiled: one call reads every connection that is ready, keeps what is plainly one
 * event in the middle of a stream, and stops at everything else, which Python takes (tokgate/load/compiled.py).
 *
 * What is plain here is what Reader._several of tokgate/load/reader.py takes as one event, and less: an event that is
 * not recognised costs time, never a fact. tests/load/test_compiled.py holds the two to the same records.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#ifndef SO_TIMESTAMPNS
#define SO_TIMESTAMPNS 35
#endif
#define PREFIX "\r\ndata: {"
#define MIDDLE "\"finish_reason\":null"
#define END "}\n\n\r\n"
#define LENGTH(literal) ((int64_t)sizeof literal - 1)

enum { TAIL = 192, STAMP = 16, NEAR = 1024 };
/* Why Python is asked; below 0 an errno. */
enum { PASS_OVER = 0, LOOK = 1, LOG_FULL = 2 };

/* One connection, by descriptor. */
struct slot {
    int64_t owner;   /* number of its request; 0 while its next read may not be one whole event */
    int64_t last_ns; /* CLOCK_REALTIME after the last read kept here */
    int64_t mark;    /* where the last event had its finish reason, bytes from its end */
};

/* One event kept; with owner 0 it stands for one that Python keeps. */
struct entry {
    int64_t user_ns;
    char stamp[STAMP];
    int32_t owner, size, kept;
    char tail[TAIL];
};

struct sweep {
    /* Set by Python. */
    int64_t poller;
    char *buffer;
    int64_t buffer_size;
    struct slot *slots;
    int64_t slot_count;
    struct epoll_event *events;
    int64_t event_count;
    struct entry *log; /* a ring */
    int64_t room, written, taken;
    /* Where this pass is. */
    int64_t ready, at;
    /* What Python is asked to look at. With size -1 nothing was read. */
    int64_t fd, mask, size, now_ns, stamped;
    char stamp[STAMP];
};

int64_t tokgate_layout(void) {
    return (int64_t)(sizeof(struct sweep) << 20 | sizeof(struct entry) << 10 | sizeof(struct slot));
}

/* Where the event's data begins, behind "data: ", when these bytes are one chunk with one event in the middle of a
 * stream; else 0. */
static int64_t plain(const char *data, int64_t size, struct slot *slot) {
    int64_t digits = 1;
    while (digits < 4 && size - 4 - digits >= (int64_t)1 << 4 * digits) digits++;
    int64_t number = size - 4 - digits, head = digits + LENGTH(PREFIX);
    if (size < head + LENGTH(MIDDLE) + LENGTH(END)) return 0;
    for (int64_t i = 0; i < digits; i++)
        if (data[i] != "0123456789abcdef"[number >> 4 * (digits - 1 - i) & 15]) return 0;
    if (memcmp(data + digits, PREFIX, (size_t)LENGTH(PREFIX))) return 0;
    if (memcmp(data + size - LENGTH(END), END, (size_t)LENGTH(END))) return 0;
    const char *line = data + digits + 2;
    if (memchr(line, '\n', (size_t)(data + size - line)) != data + size - 4) return 0;
    int64_t mark = slot->mark, least = LENGTH(MIDDLE) + LENGTH(END);
    if (mark < least || mark > size - head || memcmp(data + size - mark, MIDDLE, (size_t)LENGTH(MIDDLE))) {
        int64_t from = size - NEAR > head ? size - NEAR : head;
        const char *found = memmem(
            data + from, (size_t)(size - LENGTH(END) - from), MIDDLE, (size_t)LENGTH(MIDDLE));
        if (!found) return 0;
        slot->mark = data + size - found;
    }
    return head - 1;
}

static void keep(struct sweep *s, struct slot *slot, int64_t start) {
    struct entry *entry = s->log + s->written++ % s->room;
    int64_t stop = s->size - LENGTH(END), from = stop - TAIL > start ? stop - TAIL : start;
    entry->user_ns = slot->last_ns = s->now_ns;
    memcpy(entry->stamp, s->stamp, STAMP);
    entry->owner = (int32_t)slot->owner;
    entry->size = (int32_t)s->size;
    entry->kept = (int32_t)(stop - from);
    memcpy(entry->tail, s->buffer + from, (size_t)(stop - from));
}

/* Read once; whether the rest of what this connection has is Python's. */
static int receive(struct sweep *s, struct slot *slot) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(STAMP)];
    } control;
    struct iovec part = {s->buffer, (size_t)s->buffer_size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg((int)s->fd, &message, 0);
    if (got < 0) return 1; /* it comes again there */
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    s->now_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    s->size = got;
    struct cmsghdr *stamp = CMSG_FIRSTHDR(&message);
    s->stamped = stamp && stamp->cmsg_level == SOL_SOCKET && stamp->cmsg_type == SO_TIMESTAMPNS &&
        stamp->cmsg_len == CMSG_LEN(STAMP);
    if (s->stamped) memcpy(s->stamp, CMSG_DATA(stamp), STAMP);
    else memset(s->stamp, 0, STAMP);
    int64_t start;
    /* A full buffer may not be all: Python reads on. */
    if (got == s->buffer_size || !(start = plain(s->buffer, got, slot))) return 1;
    keep(s, slot, start);
    return 0;
}

/* Go on with this pass. */
int tokgate_go_on(struct sweep *s) {
    while (s->at < s->ready) {
        if (s->written - s->taken >= s->room) return LOG_FULL;
        const struct epoll_event *event = s->events + s->at++;
        s->fd = event->data.fd;
        s->mask = event->events;
        s->size = -1;
        s->stamped = 0;
        if (s->mask != EPOLLIN || s->fd >= s->slot_count || !s->slots[s->fd].owner) return LOOK;
        if (receive(s, s->slots + s->fd)) return LOOK;
    }
    return PASS_OVER;
}

/* Wait for connections that are ready, and begin a pass over them. */
int tokgate_sweep(struct sweep *s, int wait_ms) {
    int count = epoll_wait((int)s->poller, s->events, (int)s->event_count, wait_ms);
    s->at = 0;
    s->ready = count < 0 ? 0 : count;
    if (count < 0) return errno == EINTR ? PASS_OVER : -errno;
    return tokgate_go_on(s);
}
