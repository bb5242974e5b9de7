/* The measuring worker's hot path, compiled: one call reads every connection that is ready, keeps what are plainly
 * events in the middle of a stream, and stops at everything else, which Python takes (tokgate/load/compiled.py).
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
enum { PASS_OVER = 0, LOOK = 1 };

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

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The size of the chunk that these bytes begin with, when it is one event in the middle of a stream; else 0. */
static int64_t plain(const char *data, int64_t size, struct slot *slot) {
    int64_t number = 0, digits = 0;
    for (; digits < 4 && digits < size && data[digits] != '\r'; digits++) {
        int digit = hex(data[digits]);
        if (digit < 0) return 0;
        number = number << 4 | digit;
    }
    int64_t chunk = digits + 2 + number + 2, head = digits + LENGTH(PREFIX);
    if (!digits || chunk > size || chunk < head + LENGTH(MIDDLE) + LENGTH(END)) return 0;
    const char *line = data + digits + 2, *end = data + chunk - LENGTH(END);
    if (memcmp(data + digits, PREFIX, (size_t)LENGTH(PREFIX)) || memcmp(end, END, (size_t)LENGTH(END))) return 0;
    if (memchr(line, '\n', (size_t)(chunk - digits - 2)) != end + 1) return 0;
    int64_t mark = slot->mark;
    if (mark >= LENGTH(MIDDLE) + LENGTH(END) && mark <= chunk - head &&
        !memcmp(data + chunk - mark, MIDDLE, (size_t)LENGTH(MIDDLE)))
        return chunk;
    const char *from = chunk - NEAR > head ? data + chunk - NEAR : data + head;
    const char *middle = memmem(from, (size_t)(end - from), MIDDLE, (size_t)LENGTH(MIDDLE));
    if (!middle) return 0;
    slot->mark = data + chunk - middle;
    return chunk;
}

static void keep(struct sweep *s, struct slot *slot, const char *data, int64_t chunk) {
    struct entry *entry = s->log + s->written++ % s->room;
    const char *start = (const char *)memchr(data, '{', (size_t)chunk), *stop = data + chunk - LENGTH(END);
    if (stop - start > TAIL) start = stop - TAIL;
    entry->user_ns = slot->last_ns = s->now_ns;
    memcpy(entry->stamp, s->stamp, STAMP);
    entry->owner = (int32_t)slot->owner;
    entry->size = (int32_t)chunk;
    entry->kept = (int32_t)(stop - start);
    memcpy(entry->tail, start, (size_t)(stop - start));
}

/* Read once; whether Python is to look at what is in the buffer, or to read by itself (size -1). */
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
    struct cmsghdr *stamp = CMSG_FIRSTHDR(&message);
    s->stamped = stamp && stamp->cmsg_level == SOL_SOCKET && stamp->cmsg_type == SO_TIMESTAMPNS &&
        stamp->cmsg_len == CMSG_LEN(STAMP);
    if (s->stamped) memcpy(s->stamp, CMSG_DATA(stamp), STAMP);
    else memset(s->stamp, 0, STAMP);
    s->size = got;
    if (!got || got == s->buffer_size) return 1; /* the end, or maybe not all: Python reads on */
    /* A client that was held up finds several in one read, and must not fall further behind. Python empties a full log. */
    int64_t at = 0, chunk;
    while (at < got && s->written - s->taken < s->room && (chunk = plain(s->buffer + at, got - at, slot))) {
        keep(s, slot, s->buffer + at, chunk);
        at += chunk;
    }
    s->size = got - at;
    if (at && s->size) memmove(s->buffer, s->buffer + at, (size_t)s->size);
    return s->size > 0;
}

/* Go on with this pass. */
int tokgate_go_on(struct sweep *s) {
    while (s->at < s->ready) {
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
