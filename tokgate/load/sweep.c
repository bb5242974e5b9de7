/* The measuring worker's hot path, compiled: one call reads every connection that is ready, keeps what is plainly one
 * event on one line, and puts everything else aside with its date for Python (tokgate/load/compiled.py), which is slow
 * and comes last, so that nothing is read late because of it.
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
#define PREFIX "\r\ndata: "
#define MIDDLE "\"finish_reason\":null"
#define END "\n\n\r\n"
#define LENGTH(literal) ((int64_t)sizeof literal - 1)

enum { TAIL = 192, STAMP = 16 };
/* Why Python is asked; below 0 an errno. */
enum { PASS_OVER = 0, LOOK = 1 };
/* What an entry holds: the tail of an event, or a part of one that is kept whole. */
enum { TAIL_OF = 0, PART = 1, LAST_PART = 2 };

/* One connection, by descriptor. */
struct slot {
    int64_t owner;   /* number of its request; 0 while its next read may not be one whole event */
    int64_t last_ns; /* CLOCK_REALTIME after the last read kept here */
    int64_t mark;    /* where the last event had its finish reason, bytes from its end */
    int64_t first;   /* the next event is the first of its stream, which is kept whole */
};

/* One event kept; with owner 0 it stands for one that Python keeps. */
struct entry {
    int64_t user_ns;
    char stamp[STAMP];
    int32_t owner, size, kept;
    char tail[TAIL];
    int32_t part;
};

/* What Python is to look at: a read, dated, or with size -1 a connection that it reads by itself. */
struct look {
    int64_t fd, mask, size, now_ns, stamped, from; /* from: where the read begins in the buffer */
    char stamp[STAMP];
};

struct sweep {
    /* Set by Python. */
    int64_t poller;
    char *buffer; /* holds the reads that are put aside, and behind them the next one */
    int64_t buffer_size, read_size;
    struct look *looks;
    int64_t look_room;
    struct slot *slots;
    int64_t slot_count;
    struct epoll_event *events;
    int64_t event_count;
    struct entry *log; /* a ring */
    int64_t room, written, taken, parts; /* parts: entries that no event ends in */
    /* Where this pass is, and what it has put aside. */
    int64_t ready, at, look_count, used;
};

int64_t tokgate_layout(void) {
    return (int64_t)(sizeof(struct sweep) << 30 | sizeof(struct entry) << 20 | sizeof(struct look) << 10 | sizeof(struct slot));
}

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The size of the chunk that these bytes begin with, when it is one event on one line; else 0. ``whole``: it is none
 * in the middle of a stream, and kept whole: the first, the last, an error, [DONE]. */
static int64_t plain(const char *data, int64_t size, struct slot *slot, int *whole) {
    int64_t number = 0, digits = 0;
    for (; digits < 4 && digits < size && data[digits] != '\r'; digits++) {
        int digit = hex(data[digits]);
        if (digit < 0) return 0;
        number = number << 4 | digit;
    }
    int64_t chunk = digits + 2 + number + 2, head = digits + LENGTH(PREFIX);
    if (!digits || chunk > size || chunk <= head + LENGTH(END)) return 0;
    const char *line = data + digits + 2, *end = data + chunk - LENGTH(END);
    if (memcmp(data + digits, PREFIX, (size_t)LENGTH(PREFIX)) || memcmp(end, END, (size_t)LENGTH(END))) return 0;
    if (memchr(line, '\n', (size_t)(chunk - digits - 2)) != end || end[-1] == '\r') return 0;
    *whole = (int)slot->first;
    int64_t mark = slot->mark;
    if (*whole) return chunk;
    const char *middle = NULL;
    if (mark > LENGTH(END) + LENGTH(MIDDLE) && mark <= chunk - head &&
        !memcmp(data + chunk - mark, MIDDLE, (size_t)LENGTH(MIDDLE)))
        middle = data + chunk - mark;
    if (!middle) middle = memmem(data + head, (size_t)(end - data - head), MIDDLE, (size_t)LENGTH(MIDDLE));
    *whole = !middle;
    if (*whole) return chunk;
    if (data[head] != '{' || end[-1] != '}') return 0;
    slot->mark = data + chunk - middle;
    return chunk;
}

static void put(struct sweep *s, const struct slot *slot, const struct look *read, const char *from, const char *to,
                int64_t size, int part) {
    struct entry *entry = s->log + s->written++ % s->room;
    entry->user_ns = read->now_ns;
    memcpy(entry->stamp, read->stamp, STAMP);
    entry->owner = (int32_t)slot->owner;
    entry->size = (int32_t)size;
    entry->kept = (int32_t)(to - from);
    entry->part = part;
    memcpy(entry->tail, from, (size_t)(to - from));
}

/* Keep an event; whether the log had room for it. */
static int keep(struct sweep *s, struct slot *slot, const struct look *read, const char *data, int64_t chunk, int whole) {
    const char *start = (const char *)memchr(data, ' ', (size_t)chunk) + 1, *stop = data + chunk - LENGTH(END);
    int64_t room = s->room - (s->written - s->taken);
    if (room < (whole ? (stop - start - 1) / TAIL + 1 : 1)) return 0;
    slot->last_ns = read->now_ns;
    slot->first = 0;
    if (whole) {
        for (; stop - start > TAIL; start += TAIL, s->parts++) put(s, slot, read, start, start + TAIL, 0, PART);
        put(s, slot, read, start, stop, chunk, LAST_PART);
        return 1;
    }
    stop--; /* without the brace */
    if (stop - start > TAIL) start = stop - TAIL;
    put(s, slot, read, start, stop, chunk, TAIL_OF);
    return 1;
}

/* Read once; whether Python is to look at what is left of it, or to read by itself (size -1). */
static int receive(struct sweep *s, struct slot *slot, struct look *read) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(STAMP)];
    } control;
    char *data = s->buffer + s->used;
    struct iovec part = {data, (size_t)s->read_size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg((int)read->fd, &message, 0);
    if (got < 0) return 1; /* it comes again there */
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    read->now_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
    struct cmsghdr *stamp = CMSG_FIRSTHDR(&message);
    read->stamped = stamp && stamp->cmsg_level == SOL_SOCKET && stamp->cmsg_type == SO_TIMESTAMPNS &&
        stamp->cmsg_len == CMSG_LEN(STAMP);
    if (read->stamped) memcpy(read->stamp, CMSG_DATA(stamp), STAMP);
    else memset(read->stamp, 0, STAMP);
    int64_t at = 0, chunk;
    int whole;
    /* A full read may not be all: Python reads on. A client that was held up finds several events in one read, and must
     * not fall further behind. Python empties a full log. */
    while (at < got && got < s->read_size && (chunk = plain(data + at, got - at, slot, &whole)) &&
           keep(s, slot, read, data + at, chunk, whole))
        at += chunk;
    read->size = got - at;
    read->from = s->used + at;
    if (got && at == got) return 0;
    s->used += got;
    return 1;
}

/* Go on with this pass, to its end or until there is no room to put more aside; whether Python is to look. */
int tokgate_go_on(struct sweep *s) {
    s->look_count = s->used = 0;
    while (s->at < s->ready && s->look_count < s->look_room && s->buffer_size - s->used >= s->read_size) {
        const struct epoll_event *event = s->events + s->at++;
        struct look *read = s->looks + s->look_count;
        *read = (struct look){.fd = event->data.fd, .mask = event->events, .size = -1};
        if (event->events != EPOLLIN || read->fd >= s->slot_count || !s->slots[read->fd].owner ||
            receive(s, s->slots + read->fd, read))
            s->look_count++;
    }
    return s->look_count ? LOOK : PASS_OVER;
}

/* Wait for connections that are ready, and begin a pass over them. */
int tokgate_sweep(struct sweep *s, int wait_ms) {
    int count = epoll_wait((int)s->poller, s->events, (int)s->event_count, wait_ms);
    s->at = 0;
    s->ready = count < 0 ? 0 : count;
    if (count < 0) return errno == EINTR ? PASS_OVER : -errno;
    return tokgate_go_on(s);
}
