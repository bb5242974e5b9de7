/* The least that a client of token streams can do: receive with the kernel's stamp, read the clock, keep both.
 *
 * usage: raw_reader PORT STREAMS TOKENS
 * Opens STREAMS connections to 127.0.0.1:PORT, sends one /generate on each, reads to the end, prints
 *   {"reads": N, "cpu_s": X, "itl_p99_ms": X, "ttft_p99_ms": X}
 * It parses nothing, so it is no measuring client; its CPU time is the floor for one.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_TIMESTAMPNS
#define SO_TIMESTAMPNS 35
#endif

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static double cpu_s(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double p99(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    double at = 0.99 * (double)(count - 1);
    size_t below = (size_t)at;
    if (below + 1 >= count) return values[count - 1];
    return values[below] + (at - (double)below) * (values[below + 1] - values[below]);
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int streams = atoi(argv[2]), tokens = atoi(argv[3]), open_streams = streams;
    struct sockaddr_in where = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char body[256], request[512];
    static char buffer[65536];
    int size = snprintf(body, sizeof body,
        "{\"input_ids\":[16,17,18],\"sampling_params\":{\"temperature\":0,\"max_new_tokens\":%d,\"ignore_eos\":true},"
        "\"stream\":true}", tokens);
    int length = snprintf(request, sizeof request,
        "POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
        size, body);
    int poller = epoll_create1(0);
    int64_t *times = calloc((size_t)streams * (size_t)(tokens + 8), sizeof *times);
    struct timespec *stamps = calloc((size_t)streams * (size_t)(tokens + 8), sizeof *stamps);
    int *reads = calloc((size_t)streams, sizeof *reads), *fds = calloc((size_t)streams, sizeof *fds);
    int64_t *sent = calloc((size_t)streams, sizeof *sent);
    for (int i = 0; i < streams; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fds[i], (struct sockaddr *)&where, sizeof where)) {
            perror("connect");
            return 1;
        }
        int one = 1;
        setsockopt(fds[i], SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        epoll_ctl(poller, EPOLL_CTL_ADD, fds[i], &e);
    }
    double began_s = cpu_s();
    size_t total = 0;
    for (int i = 0; i < streams; i++) {
        sent[i] = now_ns();
        if (send(fds[i], request, (size_t)length, 0) != length) return 1;
    }
    while (open_streams) {
        struct epoll_event events[256];
        int n = epoll_wait(poller, events, 256, 10000);
        if (n <= 0) return 1;
        for (int k = 0; k < n; k++) {
            int i = (int)events[k].data.u32;
            char control[64];
            struct iovec part = {buffer, sizeof buffer};
            struct msghdr message = {
                .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
            ssize_t got = recvmsg(fds[i], &message, 0);
            int64_t now = now_ns();
            struct cmsghdr *stamp = CMSG_FIRSTHDR(&message);
            if (got <= 0) return 1;
            total++;
            if (got > 5 && memcmp(buffer, "HTTP/", 5) && reads[i] < tokens) {
                size_t at = (size_t)i * (size_t)(tokens + 8) + (size_t)reads[i]++;
                times[at] = now;
                if (stamp) memcpy(stamps + at, CMSG_DATA(stamp), sizeof *stamps);
            }
            if (got >= 5 && !memcmp(buffer + got - 5, "0\r\n\r\n", 5)) {
                epoll_ctl(poller, EPOLL_CTL_DEL, fds[i], NULL);
                open_streams--;
            }
        }
    }
    double used_s = cpu_s() - began_s;
    double *gaps = calloc((size_t)streams * (size_t)tokens, sizeof *gaps), *firsts = calloc((size_t)streams, sizeof *firsts);
    size_t count = 0;
    for (int i = 0; i < streams; i++) {
        int64_t *t = times + (size_t)i * (size_t)(tokens + 8);
        firsts[i] = (double)(t[0] - sent[i]) / 1e6;
        for (int k = 1; k < reads[i]; k++) gaps[count++] = (double)(t[k] - t[k - 1]) / 1e6;
    }
    printf("{\"reads\": %zu, \"cpu_s\": %.6f, \"itl_p99_ms\": %.6f, \"ttft_p99_ms\": %.6f}\n", total, used_s,
        p99(gaps, count), p99(firsts, (size_t)streams));
    return 0;
}
