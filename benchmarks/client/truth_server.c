/* A streaming server that knows when it sent what: the truth that measuring clients are judged by.
 *
 * usage: truth_server [--step-us N] [--spec] [--first-us N] [--incremental]
 * It prints "port N", serves on 127.0.0.1, and ends when its standard input closes.
 *
 *   POST /generate, /v1/completions, /v1/chat/completions   server-sent events, as SGLang frames them
 *   GET /log    one line per token-bearing event since the last call:
 *               REQUEST EVENT TOKENS SENT_NS ARRIVED_NS DONE_NS  (CLOCK_MONOTONIC; before and after the send; arrival
 *               of the request by the kernel's stamp)
 *
 * Like an inference engine it works in steps: on each tick every stream that is due gets one event, one
 * after the other. With --spec an event brings 1 to 4 tokens, and the last one the speculative counters.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_TIMESTAMPNS
#define SO_TIMESTAMPNS 35
#endif

enum { MAX_CONN = 2048, REQUEST_MAX = 4 << 20 };
enum route { GENERATE, COMPLETIONS, CHAT };

struct conn {
    int fd;
    char *request;
    size_t have;
    bool active;
    enum route route;
    uint32_t id, event;
    int asked, tokens, verifies, histogram[4];
    int64_t arrived_ns, due_ns;
    uint32_t random;
    char *text, *ids;
    size_t text_len, ids_len;
    char *pending; /* what the socket did not take at once */
    size_t pending_len, pending_at;
};

struct entry {
    uint32_t request, event, tokens;
    int64_t sent_ns, arrived_ns, done_ns;
};

static struct conn *conns[MAX_CONN];
static struct entry *entries;
static size_t entry_count, entry_room;
static int64_t step_ns = 5000000, first_ns = 20000000;
static bool spec, incremental;
static uint32_t next_id;
static int poller;
static char out[4 << 20];

static int64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void drop(struct conn *c) {
    conns[c->fd] = NULL;
    close(c->fd);
    free(c->request);
    free(c->text);
    free(c->ids);
    free(c->pending);
    free(c);
}

static void watch(struct conn *c, uint32_t mask, int operation) {
    struct epoll_event e = {.events = mask, .data.fd = c->fd};
    if (epoll_ctl(poller, operation, c->fd, &e)) die("epoll_ctl");
}

/* Write, or keep what does not fit for later. Returns false when the connection is gone. */
static bool put(struct conn *c, const char *data, size_t size) {
    size_t done = 0;
    if (c->pending_len == c->pending_at) {
        while (done < size) {
            ssize_t n = send(c->fd, data + done, size - done, MSG_NOSIGNAL);
            if (n < 0 && errno == EAGAIN) break;
            if (n < 0) return false;
            done += (size_t)n;
        }
        if (done == size) return true;
        c->pending_len = c->pending_at = 0;
        watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
    }
    c->pending = realloc(c->pending, c->pending_len + size - done);
    memcpy(c->pending + c->pending_len, data + done, size - done);
    c->pending_len += size - done;
    return true;
}

static bool put_chunk(struct conn *c, size_t size) {
    /* `out` holds 16 free bytes, then the event. One write a chunk, as uvicorn does it. */
    char head[16];
    int n = snprintf(head, sizeof head, "%zx\r\n", size);
    memcpy(out + 16 - n, head, (size_t)n);
    memcpy(out + 16 + size, "\r\n", 2);
    return put(c, out + 16 - n, size + (size_t)n + 2);
}

static void note(struct conn *c, int64_t sent_ns) {
    if (entry_count == entry_room) {
        entry_room = entry_room ? 2 * entry_room : 1 << 16;
        entries = realloc(entries, entry_room * sizeof *entries);
    }
    entries[entry_count++] = (struct entry){
        c->id, c->event, (uint32_t)c->tokens, sent_ns, c->arrived_ns, now_ns(CLOCK_MONOTONIC)};
}

static size_t add(size_t at, const char *data, size_t size) {
    memcpy(out + at, data, size);
    return at + size;
}

#define ADD(...) (at += (size_t)snprintf(out + at, 2048, __VA_ARGS__))

static size_t event_generate(struct conn *c, size_t text_from, size_t ids_from, bool last) {
    size_t at = 16;
    ADD("data: {\"text\":\"");
    at = add(at, c->text + text_from, c->text_len - text_from);
    ADD("\",\"output_ids\":[");
    at = add(at, c->ids + ids_from, c->ids_len - ids_from);
    ADD("],\"meta_info\":{\"id\":\"8b9cb84e26a54a70a9c7031c4ea4b%03x\",\"finish_reason\":", c->id & 0xfff);
    if (last) ADD("{\"type\":\"length\",\"length\":%d}", c->asked);
    else ADD("null");
    ADD(",\"prompt_tokens\":3,\"weight_version\":\"default\",\"num_retractions\":0,\"queue_time\":0.0,"
        "\"reasoning_tokens\":0,\"completion_tokens\":%d,\"cached_tokens\":0,\"cached_tokens_details\":null,"
        "\"dp_rank\":null", c->tokens);
    if (c->event == 1) ADD(",\"response_sent_to_client_ts\":1795955248.7463498");
    if (last) {
        ADD(",\"e2e_latency\":0.0001");
        if (spec)
            ADD(",\"spec_accept_rate\":0.4,\"spec_accept_length\":2.4,\"spec_verify_ct\":%d,"
                "\"spec_accept_histogram\":[%d,%d,%d,%d]", c->verifies, c->histogram[0], c->histogram[1],
                c->histogram[2], c->histogram[3]);
        ADD(",\"request_received_ts\":1795955248.7309475,\"api_server_dispatch_finish_ts\":1795955248.731216,"
            "\"response_sent_to_client_ts\":1795955248.7463498,\"request_finished_ts\":1795955248.7755566,"
            "\"decode_throughput\":782.8165637855482");
    }
    ADD("}}\n\n");
    return at - 16;
}

static size_t event_openai(struct conn *c, size_t text_from, bool last) {
    size_t at = 16;
    ADD("data: {\"id\":\"26a525dc8ea7448ea704d22e9f7fc203\",\"object\":\"%s\",\"created\":1795955123,"
        "\"model\":\"x\",\"choices\":[{\"index\":0,%s",
        c->route == CHAT ? "chat.completion.chunk" : "text_completion",
        c->route == CHAT ? "\"delta\":{\"role\":null,\"content\":\"" : "\"text\":\"");
    at = add(at, c->text + text_from, c->text_len - text_from);
    ADD("\"%s,\"logprobs\":null,\"finish_reason\":%s,\"matched_stop\":null}],\"usage\":{\"prompt_tokens\":3,"
        "\"total_tokens\":%d,\"completion_tokens\":%d,\"prompt_tokens_details\":null,\"reasoning_tokens\":0}}\n\n",
        c->route == CHAT ? "}" : "", last ? "\"length\"" : "null", 3 + c->tokens, c->tokens);
    return at - 16;
}

static bool step(struct conn *c) {
    int brought = 1;
    size_t text_from = c->text_len, ids_from = c->ids_len;
    if (spec && c->event) {
        c->random = c->random * 1664525u + 1013904223u;
        brought = 1 + (int)(c->random >> 16) % 4;
        c->verifies++;
        c->histogram[brought - 1]++;
    }
    if (c->tokens + brought > c->asked) brought = c->asked - c->tokens;
    for (int i = 0; i < brought; i++) {
        int token = (int)((c->tokens + 1) * 7919u % 31991u);
        c->text_len += (size_t)sprintf(c->text + c->text_len, " t%d", token);
        c->ids_len += (size_t)sprintf(c->ids + c->ids_len, "%s%d", c->ids_len && (!incremental || i) ? "," : "", token);
        c->tokens++;
    }
    c->event++;
    bool last = c->tokens >= c->asked;
    size_t size = c->route == GENERATE
        ? event_generate(c, incremental ? text_from : 0, incremental ? ids_from : 0, last)
        : event_openai(c, text_from, last);
    int64_t sent_ns = now_ns(CLOCK_MONOTONIC);
    if (!put_chunk(c, size)) return false;
    note(c, sent_ns);
    if (!last) {
        c->due_ns += step_ns;
        return true;
    }
    c->active = false;
    if (c->route != GENERATE) {
        size_t at = 16;
        ADD("data: {\"id\":\"26a525dc8ea7448ea704d22e9f7fc203\",\"object\":\"text_completion\",\"created\":1795955123,"
            "\"model\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n",
            3 + c->tokens, c->tokens);
        if (!put_chunk(c, at - 16)) return false;
    }
    memcpy(out + 16, "data: [DONE]\n\n", 14);
    return put_chunk(c, 14) && put(c, "0\r\n\r\n", 5);
}

static long number_after(const char *body, const char *key, long otherwise) {
    const char *found = strstr(body, key);
    if (!found) return otherwise;
    found += strlen(key);
    while (*found == ' ' || *found == ':' || *found == '"') found++;
    return strtol(found, NULL, 10);
}

static bool send_log(struct conn *c) {
    size_t room = entry_count * 100 + 1, at = 0;
    char *text = malloc(room), head[128];
    for (size_t i = 0; i < entry_count; i++)
        at += (size_t)sprintf(text + at, "%u %u %u %lld %lld %lld\n", entries[i].request, entries[i].event,
            entries[i].tokens, (long long)entries[i].sent_ns, (long long)entries[i].arrived_ns, (long long)entries[i].done_ns);
    entry_count = 0;
    int n = snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %zu\r\n\r\n", at);
    bool alive = put(c, head, (size_t)n) && put(c, text, at);
    free(text);
    return alive;
}

static bool serve(struct conn *c, int64_t arrived_ns) {
    c->request[c->have] = 0;
    char *end = memmem(c->request, c->have, "\r\n\r\n", 4);
    if (!end) return c->have < REQUEST_MAX - 1;
    size_t length = 0, head = (size_t)(end + 4 - c->request);
    *end = 0;
    char *field = strcasestr(c->request, "\r\ncontent-length:");
    if (field) length = strtoul(field + 17, NULL, 10);
    *end = '\r';
    if (c->have < head + length) return c->have < REQUEST_MAX - 1;
    c->have = 0;
    if (!strncmp(c->request, "GET /log", 8)) return send_log(c);
    if (strncmp(c->request, "POST ", 5)) {
        static const char models[] =
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 58\r\n\r\n"
            "{\"object\":\"list\",\"data\":[{\"id\":\"x\",\"object\":\"model\"}]}    ";
        return put(c, models, sizeof models - 1);
    }
    const char *body = c->request + head;
    c->route = strncmp(c->request, "POST /generate", 14) == 0 ? GENERATE
        : strncmp(c->request, "POST /v1/chat", 13) == 0 ? CHAT : COMPLETIONS;
    c->asked = (int)number_after(body, "\"max_new_tokens\"", number_after(body, "\"max_tokens\"",
        number_after(body, "\"max_completion_tokens\"", 16)));
    c->id = next_id++;
    c->event = 0;
    c->tokens = c->verifies = 0;
    memset(c->histogram, 0, sizeof c->histogram);
    c->random = 12345 + c->id;
    c->text = realloc(c->text, (size_t)c->asked * 8 + 64);
    c->ids = realloc(c->ids, (size_t)c->asked * 8 + 64);
    c->text_len = c->ids_len = 0;
    c->arrived_ns = arrived_ns;
    /* Steps lie on one grid for all streams, as in an engine. */
    c->due_ns = (arrived_ns + first_ns) / step_ns * step_ns + step_ns;
    c->active = true;
    static const char answer[] =
        "HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 12:27:28 GMT\r\nserver: truth\r\n"
        "content-type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
    return put(c, answer, sizeof answer - 1);
}

static bool readable(struct conn *c) {
    char control[128];
    struct iovec part = {c->request + c->have, REQUEST_MAX - 1 - c->have};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n = recvmsg(c->fd, &message, 0);
    if (n <= 0) return n < 0 && errno == EAGAIN;
    int64_t arrived_ns = now_ns(CLOCK_MONOTONIC);
    for (struct cmsghdr *m = CMSG_FIRSTHDR(&message); m; m = CMSG_NXTHDR(&message, m))
        if (m->cmsg_level == SOL_SOCKET && m->cmsg_type == SO_TIMESTAMPNS) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(m), sizeof t);
            arrived_ns = t.tv_sec * 1000000000LL + t.tv_nsec - (now_ns(CLOCK_REALTIME) - now_ns(CLOCK_MONOTONIC));
        }
    c->have += (size_t)n;
    return serve(c, arrived_ns);
}

static bool writable(struct conn *c) {
    while (c->pending_at < c->pending_len) {
        ssize_t n = send(c->fd, c->pending + c->pending_at, c->pending_len - c->pending_at, MSG_NOSIGNAL);
        if (n < 0) return errno == EAGAIN;
        c->pending_at += (size_t)n;
    }
    watch(c, EPOLLIN, EPOLL_CTL_MOD);
    return true;
}

static void greet(int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (fd >= MAX_CONN) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        struct conn *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->request = malloc(REQUEST_MAX);
        conns[fd] = c;
        watch(c, EPOLLIN, EPOLL_CTL_ADD);
    }
}

static void tick(void) {
    int64_t now = now_ns(CLOCK_MONOTONIC);
    for (int fd = 0; fd < MAX_CONN; fd++) {
        struct conn *c = conns[fd];
        if (c && c->active && c->due_ns <= now && !step(c)) drop(c);
    }
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--spec")) spec = true;
        else if (!strcmp(argv[i], "--incremental")) incremental = true;
        else if (!strcmp(argv[i], "--step-us") && i + 1 < argc) step_ns = atoll(argv[++i]) * 1000;
        else if (!strcmp(argv[i], "--first-us") && i + 1 < argc) first_ns = atoll(argv[++i]) * 1000;
        else {
            fprintf(stderr, "unknown option %s\n", argv[i]);
            return 2;
        }
    }
    prctl(PR_SET_TIMERSLACK, 1);
    /* What it logs must be when it sent: others must not get between its clock and its send. As far as allowed. */
    sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof where;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&where, sizeof where) || listen(listener, 1024)) die("listen");
    getsockname(listener, (struct sockaddr *)&where, &size);
    printf("port %d\n", ntohs(where.sin_port));
    fflush(stdout);
    poller = epoll_create1(0);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    int64_t first_tick = now_ns(CLOCK_MONOTONIC) / step_ns * step_ns + step_ns;
    struct itimerspec period = {
        .it_interval = {step_ns / 1000000000, step_ns % 1000000000},
        .it_value = {first_tick / 1000000000, first_tick % 1000000000}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &period, NULL);
    int watched[] = {0, listener, timer};
    for (int i = 0; i < 3; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.fd = watched[i]};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, watched[i], &e)) die("epoll_ctl");
    }
    for (;;) {
        struct epoll_event events[256];
        int n = epoll_wait(poller, events, 256, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == 0) {
                char byte;
                if (read(0, &byte, 1) <= 0) return 0;
            } else if (fd == listener) greet(listener);
            else if (fd == timer) {
                uint64_t times;
                if (read(timer, &times, sizeof times) > 0) tick();
            } else if (conns[fd]) {
                struct conn *c = conns[fd];
                bool alive = !(events[i].events & EPOLLOUT) || writable(c);
                if (alive && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) alive = readable(c);
                if (!alive) drop(c);
            }
        }
    }
}
